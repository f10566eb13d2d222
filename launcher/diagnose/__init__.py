"""Explains why a run waits (`why`), why it ended (`post-mortem`), and what is wrong with a machine (`doctor`).

May import everything but cli and reports.
"""
