"""Files that several machines or users share: reading with three outcomes, replacing, locks, owners.

It may import errors, paths and units.
"""
