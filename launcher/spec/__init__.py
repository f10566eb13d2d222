"""From a config to a plan: what is submitted, as one frozen object. Pure.

It may import config.schema, errors and units.
"""
