"""This machine as a scheduler: a job is a process group."""
