"""Prepares the environment that ranks run in: the code snapshot, Python, packed archives, containers, secrets.

It may import runs, spec and what is below them.
"""
