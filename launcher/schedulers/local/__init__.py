"""This machine, and the allocation of this shell, as schedulers: a job is a process group of this machine.

Neither has a queue, so there are no commands, limits or pending reasons. `launcher.schedulers` lists the modules.
"""
