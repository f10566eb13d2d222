"""What a job does around its agents. docs/job-script.md

It may import submission, schedulers and what is below them; no torch.

- `begin.sh`: every job script sources it before its set-up lines
- `__main__`: what the job script becomes
- `driver`: runs one job, from the lease to the exit code; a job of submitit functions
- `wait_for_others`: waits until the run may start (`after`); releases the runs that wait for a cancelled one
- `requeue`: decides whether the run continues after an attempt, and requeues or resubmits its job
"""
