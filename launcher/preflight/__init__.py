"""Preflight: checks of a few seconds on every node before the ranks of a run start.

It may import worker, rendezvous, runs and what is below them.

- `attempt`: the checks of all nodes before the first round of ranks: runs them, and decides which nodes are bad
- `checks`: the checks of a node, alone (devices, space, folders) and with others (clocks, network); their process
"""
