"""Explains why a run ended (`post-mortem`).

It may import everything but cli and reports.

- `verdict`: what is known of an attempt that ended (events, output), and its class: the kind of the end, by
  a table of rules, and its cause as one line
- `findings`: all that `post-mortem` shows: verdict, traceback, stacks, log lines, files, and what to do
"""
