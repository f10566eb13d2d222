"""The current state of runs and sweeps: from their own records first, then from one query to each scheduler.

It may import schedulers, runs and what is below them.

- `run_status`: asks each scheduler once for all jobs, combines that with the runs' records; `cancel`
- `state`: the rules: record and job -> queued, running, done, lost, ...
- `progress`: steps, times and checkpoints of a run, from its events
- `sweep`: states of a sweep's points; summary
- `packed`: states of the points of a packed sweep, from the claims of slot managers
"""
