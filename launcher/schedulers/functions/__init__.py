"""Submits users' functions through submitit (`submitit.AutoExecutor(folder, cluster="pbs")`) on PBS and Grid Engine.

This package may import what `launcher.schedulers` may, but not the schedulers' folders, torch or Hydra.

- `executor`: the submitit executor: parameters of functions' jobs, their script; job states, output, cancel
- `task`: the rank of a task, checkpoint and resubmission before the end of the wall time; the program of a task
"""
