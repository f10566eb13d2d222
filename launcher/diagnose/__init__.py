"""Explains why a run ended (`post-mortem`).

It may import everything but cli and reports.

- `verdict`: what is known of an attempt that ended (events, output), and its class: the kind of the end, by
  a table of rules, and its cause as one line
- `advice`: what to do, for each kind of end, with commands to copy
"""
