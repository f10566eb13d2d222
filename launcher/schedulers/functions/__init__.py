"""Submits users' functions through submitit (`submitit.AutoExecutor(folder, cluster="pbs")`) on PBS and Grid Engine.

Each scheduler implements the interface `FunctionScheduler` in its own folder. This package may import what
`launcher.schedulers` may, but not the schedulers' folders, torch or Hydra.

- `executor`: the submitit executor: submits functions as jobs and arrays; job states, output, cancel
- `parameters`: the resources and options of a function's job, their validation, and the job script
- `scheduler`: the interface that a scheduler implements for functions
- `environment`: the rank of a task; checkpoint and resubmission before the end of the wall time
- `task`: the program of each task, which calls the function
- `plugin`: registers the executors with submitit
"""
