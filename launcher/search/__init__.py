"""Searches (sweep.search): the jobs of a sweep choose its points and prune them, with Optuna's samplers and pruner.

    search = Search(sweep.path)
    trial = search.ask()                          # None: no more points; else trial.number, trial.overrides
    if search.report(trial.number, step, value, total): ...   # True: stop the point, it is pruned
    search.finish(trial.number, Outcome.DONE, value, seconds)

Processes on any number of nodes may do so at the same time, without a server and without a process on the login node.
It may import runs and config. Only this package imports Optuna.

- `search`: the search of points with Optuna: its journal, the distributions of keys, and what it asks and tells
- `points`: what a slot manager does for a search: chooses a point, makes its record, prunes it, records its end
- `progress`: how far a search is: its budget, the values that points report, and what it has chosen
"""
