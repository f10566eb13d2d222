"""The run directory and the sweep directory: the only code that reads and writes their format, events, locks, output.

It may import spec, failures, files and what is below them.

- `directory`: layout of a run directory: its files and names, the record, the attempts
- `sweep_directory`: layout of a sweep directory: manifest, points, submitted arrays, packing
- `events`: every kind of event, with its fields, and their conversion to and from JSON
- `event_file`: reads and appends to event files: files that still grow, damaged lines, limits on size
- `event_writer`: writes the events of an agent or a rank; a failed write never fails the attempt
- `journal`: reads what the submitter recorded about a run: job ids, and the run's process on this machine
- `history`: a run's current job and last attempt, from its record alone (no query to the scheduler)
- `lookup`: finds a run or sweep by its id, a prefix of it, `latest` or a path
- `live_index`: index of the runs that may be live, so that `status` need not read all runs
- `output`: finds the output of attempts, and reads it in pieces, by rank or while it grows
- `carriage_returns`: reduces progress bars in the output to their last state
- `health`: text of preflight results; finds slow ranks (stragglers) in the reported step times
- `stacks`: groups equal stacks of many ranks, so that each is shown once
- `bindings`: makes and reads events about the CPUs that ranks are bound to
- `saves`: detects progress of a user's program by the times of its checkpoint files
- `time_left`: seconds left of an attempt's wall time, although clocks of nodes differ
- `lease`: the lease that keeps two jobs of a run apart: taking it, its heartbeat; whether this attempt still holds it
- `job_file`: what the job's driver needs to know of a run (job.json)
- `submitter_lock`: lock that lets one command at a time submit a run or a sweep
- `claims`: which slot manager runs which point of a packed sweep; heartbeats of slot managers
- `search_record`: files of a search: settings, record template, and Optuna's journal read without Optuna
- `unreadable`: lists the damaged files and lines of a run
"""
