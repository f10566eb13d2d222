"""What ranks run with: the code snapshot, Python, packed archives, containers, secrets.

It may import runs, spec and what is below them.
"""
