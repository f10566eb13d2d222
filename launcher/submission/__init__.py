"""From a plan to a job, once: the run directory first, then the scheduler, with a journal in between.

It may import monitoring, schedulers, environment and what is below them.
"""
