"""The scheduler interface and the code that all schedulers share. Each scheduler has its own folder.

This package may import environment, runs, plan and the layers below them. The schedulers do not import each
other.

- `base`: the interface of a scheduler: what it can do, what it is asked about jobs, the states of jobs
- `job_environment`: which of the user's environment variables reach a job, and which are dropped
- `registry`: loads schedulers, task starters and function executors by name; those without a queue: this machine, and
  the allocation of this shell
- `qsub`: what PBS and Grid Engine share: which of them qsub belongs to, submission, qsub's options
- `run_command`: runs a scheduler's command with a timeout; submits a job exactly once, and the next job of a run
- `job_cache`: caches the list of the user's jobs for all commands on this machine
- `executor`: the submitit executors that submit runs and job arrays; states of jobs
- `templates`: loads the templates of job scripts, quotes what they print, validates a profile's extra options
- `topology`: rank, world size and hosts from the variables of srun, mpiexec, torchrun and others; node lists
- `tasks`: the command that starts a job's tasks without srun, and ends them together: makes it, and is it
- `pending`: the data that `why` prints; the matcher of pending reasons; notices in the output of a killed job
- `site`: what schedulers share of `site init` and `doctor`, and the findings of checks

The package `functions` submits users' functions through submitit; in it, `task` is the program of a function's task.

The folders slurm, pbs and sge have the same six modules (NAME/...):

- `NAME/settings`: the keys of `cluster` that only this scheduler has
- `NAME/scheduler`: the scheduler's class, which says what it can do
- `NAME/script`: what a job script looks like: the #SBATCH, #PBS or #$ lines of a plan, and Slurm's srun commands
- `NAME/client`: what the scheduler is asked about jobs, queues and nodes, and told: each command with its parser
- `NAME/limits`: what it refuses: a plan against partitions or queues; `doctor`'s checks; `site init`
- `NAME/pending`: why a job is pending: the scheduler's reasons, the queries that explain them, what would fit now

and these of their own:

- `NAME/in_job`: what a job of Slurm or PBS asks about itself, for its driver: the time that it has left, its own id
- `NAME/executor`: parameters and classes of submitit functions, on PBS and Grid Engine
- `pbs/task_starters`: starts tasks with pbsdsh or mpiexec, and is the program of each task
- `sge/qrsh`: starts tasks with `qrsh -inherit`, one per node, and is the program that qrsh starts there
"""
