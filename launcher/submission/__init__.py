"""From a plan to a job, once: the run directory first, then the scheduler, with a journal in between.

It may import monitoring, schedulers, environment and what is below them.

- `prepare`: a config -> a checked plan, before anything is written or submitted
- `submit`: a plan -> a job, once: the run directory, the record, the journal
- `resume`: another attempt of a run that is over
- `from_overrides`: overrides -> what would be submitted: a new run, or another attempt
- `configs`: overrides -> config, with what it takes from the allocation that is held
- `inputs`: files and folders that a run needs, which must be there: scripts, data, container, environment
- `dependencies`: `after=ok:RUN`: its syntax and conditions, finding those runs, deciding whether to start
- `interrupts`: Ctrl-C during a submission
"""
