"""Submits the points of sweeps as job arrays, and changes sweeps that were submitted.

It may import submission, monitoring and what is below them.
"""
