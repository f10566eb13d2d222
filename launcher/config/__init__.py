"""The typed schema of everything in conf/, and how Hydra gets to know it.

The schema itself imports the standard library alone. With `cli` and `hydra_plugins` the only place that knows Hydra.
"""
