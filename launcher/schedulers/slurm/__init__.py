"""Slurm. srun starts the tasks, and functions are submitted by submitit's own Slurm executor."""
