"""Preflight: checks of a few seconds on every node before the ranks of a run start.

It may import worker, rendezvous, runs and what is below them.

- `attempt`: runs a preflight in the agents: its two parts, timeouts, processes, events, the leader's decision
- `checks`: the checks that a node makes alone: devices, NCCL's network, free space, the shared run directory
- `together`: the checks that need all nodes: clocks, an all_reduce, connections between nodes
- `process`: the forked processes that make the checks: one for each future rank, and the order of its checks
- `bad_nodes`: decides which nodes are bad, and whether the run starts without them
"""
