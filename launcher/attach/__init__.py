"""Beside a rank of a running job: shells, stacks, the debugger; the part of the login node and the part of the compute
node.

It may import worker, rendezvous, schedulers, runs and what is below them.
"""
