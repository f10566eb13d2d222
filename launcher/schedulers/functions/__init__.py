"""Anybody's functions through submitit (`submitit.AutoExecutor(folder, cluster="pbs")`), for schedulers unknown to
submitit. What differs between schedulers is a `FunctionScheduler` in the folder of
each. May import what `launcher.schedulers` may, but no scheduler; neither torch nor Hydra.

- `executor`: submits functions: jobs, arrays, states, results
- `parameters`: what a function may ask for, and the script of its job
- `scheduler`: what a scheduler must offer for functions
- `environment`: the rank of a task; checkpoint and resubmission before the wall time ends
- `task`: the process of a task, which calls the function
- `plugin`: tells submitit of our executors
"""
