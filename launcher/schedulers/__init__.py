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

- `NAME/scheduler`: the scheduler's class: its capabilities, and the module that implements each
- `NAME/settings`: the keys of `cluster` that only this scheduler has
- `NAME/executor`: submits a run or a job array
- `NAME/directives`: the #SBATCH, #PBS or #$ lines of a plan
- `NAME/environment`: a job's environment; the variables with a job's id (slurm, local: in `scheduler`)
- `NAME/commands`: job commands and their parsers: submit, list, cancel, records of ended jobs
- `NAME/resource_queries`: queries of partitions or queues, nodes, reservations, limits, one pending job; parsers
- `NAME/limits`: checks a plan against partitions or queues, nodes and resources; pure
- `NAME/live_check`: queries the live limits and nodes before a submission, and calls `limits`
- `NAME/diagnosis`: the diagnosis capabilities; the memory limit to which job history compares
- `NAME/pending`: `why`: the queries about a pending job, and the explanation made from them
- `NAME/pending_reasons`: explains the scheduler's reason codes or comments of a pending job
- `NAME/suggestions`: `why`: changes with which a pending run may start sooner; free nodes
- `NAME/history`: a job's executions and peak memory, from accounting
- `NAME/notices`: regular expressions of the scheduler's messages in the output of a job that it killed
- `NAME/doctor`: the checks of `doctor`
- `NAME/site`: `site init`: facts of the site, and the profile made from them
- `NAME/functions`: submitit functions: the interface of schedulers/functions/ for this scheduler
- `NAME/parameters`: submitit functions: the resources that an executor accepts, such as queue and walltime
- `NAME/submitit_executor`: submitit functions: the executor and job classes
- `slurm/in_job`: the time that Slurm leaves a job, for its driver
- `slurm/job_step`: the srun commands that start a job's tasks, and a process in a running job (`attach`)
- `pbs/submitit_environment`: submitit functions: the environment of a task
- `pbs/pbsdsh`: starts tasks with pbsdsh, and kills them when this process ends
- `pbs/mpiexec`: starts tasks with the site's mpiexec
- `pbs/task`: the program that pbsdsh starts for each task: its environment, output, exit status
- `sge/qrsh`: starts tasks with `qrsh -inherit`, one per node
- `sge/node`: the program that qrsh starts on a node
- `sge/hosts`: the hosts of a job, from PE_HOSTFILE
- `sge/find_command`: finds the commands of Grid Engine
"""
