"""The agent: one process per node that starts ranks, supervises them, and records how they ended.

It may import attach, checkpoint, worker, rendezvous, runs and what is below them. torch is loaded here once for all
ranks of the node, but by none of the modules in which ranks are started, watched and judged.

- `__main__`: what the scheduler starts on each node: checks the run directory, calls submitit, exits
- `payload`: the function that submitit calls in every job
- `attempt`: runs one node's part of an attempt: its agent joins the rendezvous, chooses the ranks' cores, runs them,
  and reports the end
- `preflight`: the round before the first, whose ranks check the nodes: runs it, and decides which nodes are bad
- `preflight_checks`: the checks of a node, alone (devices, space, folders) and with others (clocks, network)
- `supervisor`: the event loop of a round: watches this agent's ranks and the leader, passes on stop requests (also when
  the time is up), reports failures
- `workers`: starts the ranks of one agent as processes, polls, signals and kills them; copies their output
- `leader_connection`: an agent's connection to the leader, or as the leader to all agents: joins rounds, waits for
  messages and signals
- `leader`: the leader's state and decisions, and the table of messages: members of a round, verdicts
- `failure_detector`: how the leader finds that a round has failed: which node is lost, hangs, late or leaves
- `policy`: decisions of agents: what failed first, whether ranks restart; how a round or an attempt of an
  agent ends, and what it reports of a failure
- `rank_watch`: what an agent sees of its ranks from outside: their steps, silence, memory and use of GPUs; what it
  writes of it as events
"""
