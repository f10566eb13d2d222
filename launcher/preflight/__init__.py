"""Preflight: checks of a few seconds on every node before the ranks of a run start.

It may import worker, rendezvous, runs and what is below them.
"""
