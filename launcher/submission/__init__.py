"""Submits a plan as a job, exactly once: the run directory first, then the job, with a journal in between.

It may import monitoring, schedulers, environment and what is below them.

- `prepare`: a config -> a checked plan, before anything is written or submitted
- `submit`: a checked plan -> a job, once: the run directory, the record, the journal
- `render`: a plan -> its job script, and what its driver reads
- `custom_template`: checks and renders the user's own template (cluster.template)
- `resume`: another attempt of a run that is over
- `from_overrides`: overrides -> a checked plan: of a new run, or of another attempt (`again`)
- `configs`: overrides -> a config, with the number of nodes of the held allocation
- `inputs`: finds and checks the files that a config names, on the login node: program, data, container, environment
- `dependencies`: the key `after`: its syntax and conditions, the state of the runs, the jobs to wait for
- `interrupts`: Ctrl-C during a submission
"""
