"""Failure codes, and the patterns that recognise a failure in a log. Imports only `formatting` and `fast_dataclasses`.

- `codes`: codes of failures, stops and decisions, for programs; kinds of ends, as in `post-mortem`
- `messages`: the words for an event (failure, stop, round, preflight, ...) that has no message of its writer
- `known_errors`: what ranks print: the kind of a failure by patterns; tracebacks and stacks, found and shortened
"""
