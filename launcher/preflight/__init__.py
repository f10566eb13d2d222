"""Preflight: checks of a few seconds on every node before the ranks of a run start.

It may import worker, rendezvous, runs and what is below them.

- `attempt`: the checks of all nodes before the first round of ranks: runs them, and decides which nodes are bad
- `checks`: the checks that a node makes alone: devices, NCCL's network, free space, the shared run directory
- `process`: the process of a node that makes the checks, alone and together with other nodes
"""
