"""Cleans up after old runs: directories that nobody needs any more, and jobs whose run directory was deleted.

It may import sweeps, submission, monitoring and what is below them.
"""
