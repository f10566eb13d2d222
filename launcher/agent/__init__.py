"""The agent: one process per node that starts ranks, supervises them, and records how they ended.

It may import preflight, attach, worker, rendezvous, runs and what is below them. torch is loaded here once for all
ranks of the node, but by none of the modules in which ranks are started, watched and judged.

- `__main__`: what the scheduler starts on each node; checks the run directory, hands over to submitit
- `payload`: the function that submitit calls in every job
- `attempt`: a node's part of an attempt: imports for its ranks, the rendezvous, rounds, the exit code
- `settings`: limits, places of members and network interface, from the plan and the place in the job
- `supervisor`: a node's ranks in one round: starts, watches and stops them; the event loop
- `workers`: starts ranks as processes, signals, kills and reaps them
- `child`: a rank's process right after the fork: signals reset, CPUs, output, until `worker.main`
- `forks`: whether a fork is safe; what ranks share with their agent: large pages, garbage collection
- `binding`: which cores each rank of this agent gets in this round, and its OMP_NUM_THREADS
- `control`: rounds of an attempt: who leads them, joining late, after a lost leader
- `link`: an agent's connection to the leader, or as the leader to all; sends heartbeats
- `coordinator`: the leader's decisions: who takes part in a round, what follows a failure; messages
- `failure_detection`: on the leader: lost agents, ranks that do not join or hang; timeouts
- `restart_policy`: whether ranks restart from the last checkpoint, or the attempt ends
- `verdicts`: a failure that an agent reports, and the leader's verdict that all agents follow
- `failures`: exits of processes and errors of an agent become faults with codes; which rank is to blame
- `outcome`: how a round or an attempt ends, as types
- `rank_status`: looks at ranks: heartbeats, output, step times; stacks of those that hang
- `stragglers`: step times of ranks, written for commands; events about slow ranks
- `memory`: memory use and limit of the agent's cgroup; the kernel's counts of out-of-memory kills
- `signals`: signals that ask an agent to stop
- `program_stop`: when a program that does not check for stop requests gets its stop signal
- `output`: copies the output of ranks to that of the job, with `[rank]` before each line
- `logs`: names of the files that ranks write to
"""
