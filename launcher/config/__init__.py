"""The typed schema of everything in conf/, and its configs, composed from overrides by Hydra.

The schema and its keys import the standard library alone, for help and completion. With `cli` and `hydra_plugins` this
is the only place that knows Hydra. It may import failures, files and what is below them: what it needs of others (the
nodes of an allocation) is handed in.
"""
