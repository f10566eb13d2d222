"""The interface of schedulers and the code that they share; each scheduler has a folder of its own.

It may import script, environment, runs, spec and what is below them; the schedulers do not import each other.

- `scheduler`: the interface of a scheduler, and its optional abilities
- `diagnosis`: the optional abilities for diagnosis: pending reasons, history, checks, site
- `registry`: loads a scheduler by its name; those that cannot be loaded, or have no commands here
- `queries`: states of jobs, and the queries that a scheduler with a queue answers
- `query_cache`: one list of the user's jobs for all commands on this machine
- `command`: runs one command of a scheduler: timeout, limit on its output
- `executor`: submits runs and arrays of runs through submitit
- `idempotent_submit`: submits a job exactly once, though an answer was lost
- `job_script`: the scheduler's parts put into the job script of script/
- `planning`: the plan of a config, with the rules of its scheduler
- `job_environment`: which of the user's variables a job inherits
- `environment_file`: the environment of jobs that read it from a file, with secrets
- `exports`: an environment as shell text
- `extra_options`: checks of cluster.directives that are the same everywhere
- `topology`: rank and hosts, from the variables of the command that started a process
- `hostlist`: lists of nodes: `rack[1-2]n[01-04]`, PBS's files
- `allocation`: the allocation in which this shell runs
- `detect`: whose qsub is on PATH: PBS, Torque, Grid Engine, Slurm
- `tasks`: starts the tasks of a run where there is no srun
- `task_group`: tasks of one command that end together
- `successor`: a job that starts when another one has ended
- `explanation`: what `why` prints: the reason, and changes that may start sooner
- `notices`: what schedulers and the kernel write into the output of a job that they end
- `checks`: checks of `doctor` that are the same everywhere
- `site`: parts of `site init` and its profile that are the same everywhere

The folders slurm, pbs, sge and local have the same modules (NAME/...), so far as a scheduler needs them:

- `NAME/scheduler`: the class of the scheduler: what it can do, and what each ability calls
- `NAME/settings`: the keys of `cluster` that it alone has
- `NAME/executor`: how it submits a run
- `NAME/directives`: the #SBATCH, #PBS or #$ lines of a plan
- `NAME/environment`: the environment for its jobs; the variables with a job's id (slurm, local: in `scheduler`)
- `NAME/commands`: its commands for jobs: submit, states, cancel, how jobs ended; parsers
- `NAME/resource_queries`: commands for partitions or queues, nodes, reservations, limits, a pending job; parsers
- `NAME/limits`: a plan against its partitions or queues, nodes and resources; pure
- `NAME/live_check`: the same before a submission, with what it has now
- `NAME/diagnosis`: its abilities for diagnosis, by the modules below; memory requested against used
- `NAME/pending`: `why`: which queries are made for a pending job, and what is shown of them
- `NAME/pending_reasons`: its codes or comments for a pending job, in words
- `NAME/suggestions`: changes of a pending run that may start sooner; which nodes are free
- `NAME/history`: executions of a job and their memory, from its accounting
- `NAME/notices`: the patterns of its notices in the output of a job that it ends
- `NAME/doctor`: the checks of `doctor`
- `NAME/site`: `site init`: what it tells of a site, and the profile made from that
- `NAME/functions`: anybody's functions: what schedulers/functions/ needs of it
- `NAME/parameters`: anybody's functions: what they may ask it for
- `NAME/submitit_executor`: anybody's functions: its classes for submitit
- `pbs/submitit_environment`: anybody's functions: the environment of a task
- `pbs/pbsdsh`: starts tasks by pbsdsh; kills them when this process ends
- `pbs/mpiexec`: starts tasks by the site's mpiexec
- `pbs/task`: one task that pbsdsh has started: its environment, output, exit status, end
- `sge/qrsh`: starts tasks by `qrsh -inherit`, one for each node
- `sge/node`: the program that qrsh starts on a node
- `sge/hosts`: the hosts of a job, from PE_HOSTFILE
- `sge/find_command`: where the commands of Grid Engine are
"""
