"""The scheduler interface and the code that all schedulers share. Each scheduler has its own folder.

This package may import environment, runs, spec and the layers below them. The schedulers do not import each
other.

- `scheduler`: the scheduler interface and its optional capabilities; the shell expressions with a job's id
- `diagnosis`: optional capabilities for diagnosis: pending reasons, job history, doctor checks, site survey
- `registry`: loads schedulers, task starters and function executors by name; finds the schedulers of this machine
- `queries`: job states, and the interface of queries and commands (list, cancel, submit, find) of a scheduler
- `query_cache`: caches the list of the user's jobs for all commands on this machine
- `command`: runs one scheduler command with a timeout and a limit on its output
- `executor`: base class of the submitit executors that submit runs and job arrays
- `idempotent_submit`: submits a job exactly once, even if the scheduler's reply is lost
- `templates`: loads the templates of job scripts, and quotes what they print
- `planning`: builds the plan of a config, and validates `resume.how` for its scheduler
- `job_environment`: which of the user's environment variables a job inherits
- `environment_file`: writes environment.sh and the secrets for jobs that read their environment from a file
- `exports`: converts an environment to shell `export` lines
- `extra_options`: validation of cluster.directives that all schedulers share
- `topology`: rank, world size and hosts from the variables of srun, mpiexec, torchrun and other task starters
- `hostlist`: parses node lists: Slurm's `rack[1-2]n[01-04]`, PBS node files
- `allocation`: the allocation in which this shell runs (cluster=allocation)
- `detect`: detects the scheduler that the qsub on PATH belongs to: PBS, Torque, Grid Engine, Slurm
- `tasks`: the command that starts a job's tasks without srun: makes it, and is it
- `task_group`: tasks that end together: their variables, stop signals, grace time, exit status
- `successor`: submits the next job of a run, dependent on the end of the current one
- `explanation`: the data that `why` prints: pending reason, and changes with which the run would start sooner
- `notices`: finds the messages of schedulers and the kernel in the output of a job that they killed
- `checks`: `doctor` checks that all schedulers share
- `site`: the parts of `site init` and of its profile that all schedulers share

The folders slurm, pbs, sge and local have the same modules (NAME/...), as far as each scheduler needs them:

- `NAME/settings`: the keys of `cluster` that only this scheduler has
- `NAME/scheduler`: the scheduler's class, which says what it can do; a job's environment and the variables with its id
- `NAME/script`: what a job script looks like: the #SBATCH, #PBS or #$ lines of a plan, and Slurm's srun commands
- `NAME/client`: what the scheduler is asked about jobs, and told: each command with its parser; states; history
- `NAME/limits`: what it refuses: a plan against partitions or queues; `doctor`'s checks; `site init`
- `NAME/pending`: why a job is pending: the scheduler's reasons, and the queries that explain them
- `NAME/capacity`: partitions or queues, nodes and reservations, a command each; what would fit now
- `NAME/executor`: submits runs, job arrays and anybody's functions through submitit
- `slurm/in_job`: the time that Slurm leaves a job, for its driver
- `pbs/task_starters`: starts tasks with pbsdsh or mpiexec, and is the program of each task
- `sge/qrsh`: starts tasks with `qrsh -inherit`, one per node
- `sge/node`: the program that qrsh starts on a node
"""
