"""PBS: OpenPBS and PBS Pro. pbsdsh or the site's mpiexec starts the tasks."""
