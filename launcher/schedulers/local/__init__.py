"""This machine as a scheduler: a job is a process group. The modules are listed in `launcher.schedulers`.

The allocation of this shell is one, too. Neither has a queue, so there are no commands, limits or pending reasons.
"""
