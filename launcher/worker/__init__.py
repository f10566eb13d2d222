"""The code that runs in a rank: the process group, the workload or the user's program, and the report of how it ended.

It may import rendezvous, schedulers, runs and what is below them, and nothing of agent. `script.py` runs in whatever
interpreter a program needs, and imports the standard library only.
"""
