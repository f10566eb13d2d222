"""The seam to schedulers: what each of them answers, and what they share; one folder for each of them.

It may import script, environment, runs, spec and what is below them; the schedulers do not import each other.
"""
