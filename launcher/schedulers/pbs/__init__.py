"""PBS: OpenPBS and PBS Pro. The modules are listed in `launcher.schedulers`.

pbsdsh or the site's mpiexec starts the tasks. pbsdsh passes on no environment, output or exit status: `task` does that.
"""
