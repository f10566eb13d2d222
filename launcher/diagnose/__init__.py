"""Why a run waits, why one has ended, and what is wrong with a machine: `why`, `post-mortem`, `doctor`.

It may import everything but cli and report.
"""
