"""The agent: one process per node that starts ranks, supervises them, and records how they ended.

It may import preflight, attach, worker, rendezvous, runs and what is below them. torch is loaded here once for all
ranks of the node, but by none of the modules in which ranks are started, watched and judged.
"""
