"""Finds out why an attempt ended: evidence, classification, advice. Only `evidence` and `findings` read files.

- `evidence`: collects what is known about an attempt: events, logs, the scheduler's history of its job
- `verdict`: classifies the evidence: the kind of the end, by a table of rules, and its cause as one line
- `advice`: what to do about each kind, with commands to copy
- `findings`: everything that the command `post-mortem` shows: verdict, traceback, stacks, log lines, advice, files
- `traces`: extracts tracebacks and stacks from logs, and shortens them for display
"""
