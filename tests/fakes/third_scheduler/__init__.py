"""A scheduler that the launcher does not know: a queue in a folder, whose jobs are processes of this machine.

Another package would look like this folder: the scheduler, its commands, an executor for submitit, a template, and an
entry point (installed/, which stands for site-packages).
"""
