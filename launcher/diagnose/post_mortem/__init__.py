"""Finds out why an attempt ended: evidence, classification, advice. Only `evidence` and `findings` read files.

- `evidence`: reads all that is known of an attempt: events, output and tracebacks
- `verdict`: classifies the evidence: the kind of the end, by a table of rules, and its cause as one line
- `advice`: what to do about each kind, with commands to copy
- `findings`: everything that the command `post-mortem` shows: verdict, traceback, stacks, log lines, advice, files
"""
