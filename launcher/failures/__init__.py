"""Failure codes, and the patterns that recognise a failure in a log. Imports `structs` alone of the launcher.

- `codes`: codes of failures, stops and decisions, for programs
- `messages`: the words for an event (failure, stop, round, restored state) that has no message of its writer
- `symptoms`: kinds of failures of the user's code, and the output by which they are known
"""
