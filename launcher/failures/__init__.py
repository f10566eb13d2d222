"""Failure codes, and the patterns that recognise a failure in a log. Imports only `formatting` and `fast_dataclasses`.

- `codes`: codes of failures, stops and decisions, for programs; kinds of ends, as in `post-mortem`
- `messages`: the words for an event (failure, stop, round, preflight, ...) that has no message of its writer
- `error_patterns`: the patterns by which the kind of a failure is known in an error message, or in a line of output
- `tracebacks`: tracebacks and stacks in the output of ranks: finds and shortens them
"""
