"""The run directory: the only reader and writer of its format, its events, locks and output.

It may import spec, failures, files and what is below them.

- `directory`: the run directory: files, names, the record, attempts
- `sweep_directory`: the same of a sweep: its points, submissions, packing
- `events/`: every kind of event, with its fields
- `event_json`: events <-> JSON; what a reader makes of unknown ones
- `event_file`: files of events: appending, reading while they grow, damaged lines
- `event_writer`: writes the events of a node or a rank; a failed write never fails the work
- `journal`: the submitter's events about a run, with the record of its process on this machine
- `history`: the last job and the last attempt of a run, from its record alone
- `lookup`: a run by its id, a prefix, `latest`, a path
- `live_index`: the index of runs that may be live, for a fast `status`
- `output`: finds the output of attempts, and reads it in pieces or by rank
- `carriage_returns`: progress bars in the output, reduced to their last state
- `health`: results of preflights and slow ranks, from events
- `stacks`: equal stacks of many ranks, shown once
- `bindings`: events about the CPUs of ranks
- `saves`: progress of a user's program, by the times of its checkpoint files
- `time_left`: how much of an attempt's time is left, whatever the clocks say
- `lease`: whether this attempt may still publish
- `submitter_lock`: one submitter of a run or a sweep at a time
- `claims`: who runs which point of a packed sweep; heartbeats of slot managers
- `search_record`: the files of a search
- `unreadable`: which files and lines of a run are damaged
"""
