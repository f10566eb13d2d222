"""The checks of `doctor`: this machine, its software, the folder of runs and the scheduler.

- `all_checks`: which checks there are, in which order; data sets, interface
- `machine`: this machine: environment, limits, ports, temporary folder
- `software`: Python, torch and the libraries
- `folder`: the folder of runs: file system, free space, file operations
- `scheduler`: which schedulers are here; the profile's one in detail
- `runner`: runs checks at the same time, each with a time limit
"""
