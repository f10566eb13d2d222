"""The run directory and the sweep directory: the only code that reads and writes their format, events, locks, output.

It may import plan, failures, files and what is below them.

- `directory`: layout of a run directory: its files and names, the record, the attempts; which of them are damaged;
  writes the events of an agent or a rank: a failed write never fails the attempt
- `sweep_directory`: layout of a sweep directory: manifest, points, submitted arrays, packing; the files of a search
- `events`: every kind of event, with its fields, and their conversion to and from JSON
- `event_files`: reads and appends to event files: files that still grow, damaged lines, limits on size
- `history`: what happened to a run: its journal on the login node, and the attempts in its directory, with the
  bindings of ranks and remarks on nodes; how often the user's runs fail on a cluster, for the time between two saves
- `lookup`: finds a run or sweep by its id, a prefix of it, `latest` or a path
- `live_runs_index`: index of the runs that may be live, so that `status` need not read all runs
- `output_files`: the output of a run's jobs and ranks: finds the files, follows them, shows rewritten lines once
- `user_checkpoints`: detects progress of a user's program by the times of its checkpoint files
- `lease_and_locks`: what keeps two jobs of a run apart (the lease), two commands that submit it (the submitter's lock),
  and two runs that save in one folder; locks of the kernel; when the holder of a lease is dead
- `job_file`: what the job's driver needs to know of a run (job.json); the file with a job's environment; seconds left
  of an attempt's wall time, although clocks of nodes differ
- `point_claims`: which slot manager runs which point of a packed sweep, and which of them are alive
"""
