"""The current state of runs and sweeps: from their own files first, then from one query to each scheduler.

It may import schedulers, runs and what is below them.

- `run_status`: the rules that decide a run's state (queued, running, done, lost, ...) from its files and its job's
  state; queries each scheduler for all jobs at once, how often, and why it failed; cancels runs
- `sweep_status`: states of a sweep's points, and their counts; its arrays and pilots that are not over, and how many
  elements of an array may run at once
"""
