"""The interface of schedulers and the code that they share; each scheduler has a folder of its own.

It may import script, environment, runs, spec and what is below them; the schedulers do not import each other.
"""
