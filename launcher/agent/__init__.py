"""The agent: one process per node that starts ranks, supervises them, and records how they ended.

It may import preflight, attach, worker, rendezvous, runs and what is below them. torch is loaded here once for all
ranks of the node, but by none of the modules in which ranks are started, watched and judged.

- `__main__`: what the scheduler starts on each node: checks the run directory, calls submitit, exits
- `payload`: the function that submitit calls in every job
- `attempt`: an agent's part of an attempt, from start to exit code: rendezvous, preflight, one round after another
- `settings`: the leader's limits, the places of all members and the network interface, derived from the plan
- `supervisor`: the event loop of a round: watches this agent's ranks, passes on stop requests, reports failures
- `preload`: imports the modules that ranks share with the agent, before they are forked
- `workers`: starts ranks as processes, signals, kills and reaps them
- `child`: a rank's process between the fork and `worker.main`: signals, CPUs, output files
- `forks`: whether a fork is safe; garbage collection and large pages around forks
- `binding`: which cores each rank of this agent gets in this round, and its OMP_NUM_THREADS
- `control`: which round an agent joins, and who leads it: at the start, after a failure, after a lost leader
- `link`: the connection between an agent and the leader: heartbeats, sending and polling messages
- `coordinator`: the leader's state and decisions, and the table of messages: members of a round, verdicts
- `failure_detection`: the leader's timeouts: lost agents, ranks that do not join, hangs
- `restart_policy`: after which failures ranks restart, and after which the attempt ends (a pure table)
- `verdicts`: the failure that an agent reports, and the leader's verdict on it, as messages
- `failures`: what exits of ranks, a lost leader and errors of an agent mean, as faults with codes; who is the cause
- `outcome`: how a round or an attempt ends, as types
- `rank_status`: reads the ranks' heartbeats, output sizes, step times, and stacks when they hang
- `stragglers`: step times of ranks: written for commands, and judged for slow ranks
- `memory`: memory use and limit of the agent's cgroup; the kernel's counts of out-of-memory kills
- `signals`: signals that ask an agent to stop
- `program_stop`: when a program that does not check for stop requests gets its stop signal
- `output`: copies the ranks' output to the job's output, with `[rank]` before each line
- `logs`: names of the files that ranks write to
"""
