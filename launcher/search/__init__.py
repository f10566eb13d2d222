"""Searches (sweep.search): the jobs of a sweep choose its points and prune them, with Optuna's samplers and pruner.

    search = Search(sweep.path)
    trial = search.ask()                          # None: no more points; else trial.number, trial.overrides
    if search.report(trial.number, step, value, total): ...   # True: stop the point, it is pruned
    search.finish(trial.number, Outcome.DONE, value, seconds)

Processes on any number of nodes may do so at the same time, without a server and without a process on the login node.
It may import runs and config. Only this package and `launcher.cli.optuna_search` import Optuna.

- `search`: chooses the next point and decides which points are pruned: samplers, pruner, seeds
- `points`: what a slot manager does for a search: chooses a point, makes its record, prunes it, records its end
- `reports`: reads the objective, the steps and the run time of a point from its events
- `budget`: GPU-hours that were spent and saved; number of steps at the first rung; shuffled order of combinations
- `progress`: best point, hours, and rungs of a search, for `sweep status`
- `distributions`: converts the keys of a search to Optuna's distributions, and their values to overrides and back
- `journal`: Optuna's journal in a file that processes of many nodes write
"""
