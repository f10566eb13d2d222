"""Slurm. The modules are listed in `launcher.schedulers`.

srun starts the tasks, and functions have submitit's own executor, so there are no modules for either.
"""
