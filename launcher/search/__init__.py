"""Searches that the jobs of a sweep decide: which point is next, and which one is pruned.

    search = Search(sweep.path)
    trial = search.ask()                          # None: no more points; else trial.number, trial.overrides
    if search.report(trial.number, step, value, total): ...   # True: the point is to be stopped, as pruned
    search.finish(trial.number, Outcome.DONE, value, seconds)

Processes of any number of nodes may do so at the same time; there is no server, and no process on the login node. It
may import runs and config. Optuna is imported here, and nowhere else but in `launcher.cli.optuna_search`.

- `search`: which point is next, and which one is pruned: samplers, pruner, seeds
- `points`: a search, for a slot manager: choose, make, watch, end a point; what one that fails means for the search
- `template`: the record of a point, made without Hydra from the submitter's template
- `reports`: what a point says of its objective
- `budget`: what may be spent, what was spent and saved; where the rungs are
- `progress`: the best point, the costs and the rungs, for `sweep status`
- `distributions`: the dimensions of a search as Optuna's distributions
- `journal`: Optuna's journal in a file, for many nodes
"""
