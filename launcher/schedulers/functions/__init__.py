"""Submits users' functions through submitit (`submitit.AutoExecutor(folder, cluster="pbs")`) on PBS and Grid Engine.

What differs between schedulers is in a `FunctionScheduler` in each scheduler's folder. It may import what
`launcher.schedulers` may, except the schedulers themselves, torch and Hydra.

- `executor`: submits functions: jobs, arrays, states, results
- `parameters`: what a function may ask for, and the script of its job
- `scheduler`: what a scheduler must offer for functions
- `environment`: the rank of a task; checkpoint and resubmission before the wall time ends
- `task`: the process of a task, which calls the function
- `plugin`: registers our executors with submitit
"""
