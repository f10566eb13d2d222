"""The current state of runs and sweeps: from their own records first, then from one query to each scheduler.

It may import schedulers, runs and what is below them.
"""
