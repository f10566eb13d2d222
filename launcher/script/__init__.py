"""From a plan to the script of a job: rendering, quoting, templates of the user.

It may import spec and what is below it.
"""
