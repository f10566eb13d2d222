"""Searches (sweep.search): the jobs of a sweep choose its points and prune them, with Optuna's samplers and pruner.

    search = Search(sweep.path)
    trial = search.ask()                          # None: no more points; else trial.number, trial.overrides
    if search.report(trial.number, step, value, total): ...   # True: stop the point, it is pruned
    search.finish(trial.number, TrialState.COMPLETE, value, seconds)

Processes on any number of nodes may do so at the same time, without a server and without a process on the login node.
It may import runs and config. Only this package imports Optuna.

- `search`: the search of points with Optuna: its journal, the distributions of keys, what it asks and tells; what a
  slot manager does for it: chooses a point, makes its run, prunes it, records its end
- `point_template`: the template from which the records of points are made; works without Optuna
- `progress`: how far a search is: its budget, the values that points report, and what it has chosen
"""
