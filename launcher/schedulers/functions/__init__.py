"""Anybody's functions through submitit (`submitit.AutoExecutor(folder, cluster="pbs")`), for schedulers unknown to
submitit: executor, job, environment and task. What differs between schedulers is a `FunctionScheduler` in the folder of
each. May import what `launcher.schedulers` may, but no scheduler; neither torch nor Hydra.
"""
