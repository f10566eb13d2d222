"""A scheduler that the launcher does not contain: a queue in a folder; jobs are processes of this machine.

A package with a scheduler of its own would look like this folder: the scheduler, its commands, a
template, and an entry point (in installed/, which represents site-packages).
"""
