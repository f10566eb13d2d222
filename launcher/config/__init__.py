"""The typed schema of everything in conf/, and the composition of configs from overrides by Hydra.

schema.py and keys.py import the standard library alone, for help and completion. Only this package, `cli` and
`hydra_plugins` use Hydra. It may import failures, files and what is below them; what it needs of other packages (the
number of nodes of an allocation) is passed as an argument.
"""
