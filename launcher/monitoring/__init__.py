"""The current state of runs and sweeps: from their own files first, then from one query to each scheduler.

It may import schedulers, runs and what is below them.

- `run_status`: states of runs: queries each scheduler for all jobs at once, how often, and why it failed; those of
  points of a packed sweep, from the claims of slot managers; cancels runs
- `state`: the rules that decide a run's state (queued, running, done, lost, ...) from its files and its job's state;
  its progress: steps, rate, time left and checkpoints, from its events
- `sweep`: states of a sweep's points, and their counts; throughput of pilots
"""
