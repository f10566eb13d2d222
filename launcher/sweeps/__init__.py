"""Sweeps: their submission as job arrays, and changes to those under way.

It may import submission, monitoring and what is below them.
"""
