"""Preflight: checks of a few seconds on every node before the ranks of a run start.

It may import worker, rendezvous, runs and what is below them.

- `attempt`: the course of a preflight: both parts, timeouts, the decision for all
- `checks`: what a node checks alone: devices, space, the run directory
- `together`: what needs all nodes: clocks, an all_reduce, connections
- `process`: the processes that do the checks
- `bad_nodes`: which nodes are bad, and whether the run starts without them
"""
