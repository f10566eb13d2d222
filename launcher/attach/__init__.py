"""`attach` to a rank of a running job: shells, stacks, the debugger. Both sides are here, login node and compute node.

It may import worker, rendezvous, schedulers, runs and what is below them.
"""
