"""Explains why a run waits (`why`), why it ended (`post-mortem`), and what is wrong with a machine (`doctor`).

It may import everything but cli and reports.

- `why`: why a run is in its state; what would start a pending one sooner
- `verdict`: what is known of an attempt that ended (events, output, tracebacks), and its class: the kind of the end, by
  a table of rules, and its cause as one line
- `findings`: all that `post-mortem` shows: verdict, traceback, stacks, log lines, files, and what to do
- `doctor`: the list of checks in report order; runs them concurrently, each with a time limit
- `machine`: what `doctor` looks at on this machine: itself, its software, and the folder of runs
"""
