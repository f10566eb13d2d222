"""Slurm. `launcher.schedulers` lists the modules.

srun starts the tasks, and functions use submitit's own Slurm executor, so there are no modules for either.
"""
