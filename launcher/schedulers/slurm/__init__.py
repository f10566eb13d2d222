"""Slurm. srun starts the tasks, and submitit's own Slurm executor functions."""
