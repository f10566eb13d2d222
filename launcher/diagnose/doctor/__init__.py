"""The checks of the command `doctor`: this machine, its software, the folder of runs (runs_dir) and the scheduler.

- `machine`: this machine: environment, limits, ports, temporary folder
- `software`: Python, torch and the libraries
- `folder`: the folder of runs (runs_dir): file system, free space, file operations
- `checks`: the list of checks in report order; runs them concurrently, each with a time limit
"""
