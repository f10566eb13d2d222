"""What old runs leave behind: run directories that nobody needs, and jobs whose run directory is gone.

It may import sweeps, submission, monitoring and what is below them.
"""
