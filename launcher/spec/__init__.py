"""Makes the plan of a run from its config: one frozen object, which is submitted. Pure.

It may import config.schema, errors and units.
"""
