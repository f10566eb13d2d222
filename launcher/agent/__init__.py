"""One agent per node: it meets the others, starts this node's ranks, watches them, and says how they ended.

May import runs, spec, errors and what is beside it on compute nodes; torch only where a rank needs it.
"""
