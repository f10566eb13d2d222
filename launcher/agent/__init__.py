"""One process per node that starts ranks, watches them, and says how they ended.

It may import `launcher.worker`, `launcher.runs`, `launcher.plan` and `launcher.errors`. torch is loaded here once for
all ranks of the node, but by none of the modules in which ranks are started, watched and judged.
"""
