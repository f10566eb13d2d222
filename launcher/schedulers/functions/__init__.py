"""Submits users' functions through submitit (`submitit.AutoExecutor(folder, cluster="pbs")`) on PBS and Grid Engine.

Each scheduler implements the interface `FunctionScheduler` in its own folder. This package may import what
`launcher.schedulers` may, but not the schedulers' folders, torch or Hydra.

- `executor`: the submitit executor: submits functions as jobs and arrays; job states, output, cancel
- `scheduler`: the interface that a scheduler implements for functions; the resources and options of their jobs
- `task`: the rank of a task, checkpoint and resubmission before the end of the wall time; the program of a task
"""
