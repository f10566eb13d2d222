"""The checks of the command `doctor`: this machine, its software, the folder of runs (runs_dir) and the scheduler.

- `all_checks`: the list of checks, in report order; the checks of profile, port range, interface and data sets
- `machine`: this machine: environment, limits, ports, temporary folder
- `software`: Python, torch and the libraries
- `folder`: the folder of runs (runs_dir): file system, free space, file operations
- `scheduler`: which schedulers are on this machine; detailed checks of the profile's scheduler
- `runner`: runs checks concurrently, each with a time limit
"""
