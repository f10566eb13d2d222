"""Finds out why an attempt ended: evidence, classification, advice. Only `evidence` and `findings` read files.

- `verdict`: evidence -> the kind of the failure, by a table of rules
- `advice`: what to do, with commands to copy
- `evidence`: what is read about an attempt: events, logs, the scheduler's history
- `findings`: all that `post-mortem` shows: verdicts, stacks, last lines of ranks
- `traces`: tracebacks and stacks, shortened for display
"""
