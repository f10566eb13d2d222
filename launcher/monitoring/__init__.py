"""Runs and sweeps as they are now: their own records first, one question to each scheduler for all of them.

It may import schedulers, runs and what is below them.
"""
