"""Submits a plan as a job, exactly once: the run directory first, then the job, with a journal in between.

It may import monitoring, schedulers, environment and what is below them.

- `prepare`: makes and checks the plan of a run, and finds the files that it names, before anything is written or
  submitted
- `submit`: a checked plan -> a job, once: the run directory, the record, the journal; Ctrl-C meanwhile
- `render`: the job script of a run, from our template or the user's own, and the file that its driver reads
- `resume`: overrides -> a config, with the number of nodes of the held allocation; another attempt of a run from
  overrides: makes its plan, and submits it if the run is over
- `race`: cluster.race: several jobs for a run, of which the first that starts runs it
- `dependencies`: the key `after`: its syntax and conditions, the state of the runs, the jobs to wait for
"""
