"""PBS: OpenPBS and PBS Pro. `launcher.schedulers` lists the modules.

pbsdsh or the site's mpiexec starts the tasks. pbsdsh transfers no environment, output or exit status, so files do.
"""
