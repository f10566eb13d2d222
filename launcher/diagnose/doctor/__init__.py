"""The checks of the command `doctor`: this machine, its software, the folder of runs (runs_dir) and the scheduler.

- `machine`: what `doctor` looks at on this machine: itself, its software, and the folder of runs
- `checks`: the list of checks in report order; runs them concurrently, each with a time limit
"""
