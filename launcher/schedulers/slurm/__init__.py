"""Slurm: its commands, its directives, and a submitit executor."""
