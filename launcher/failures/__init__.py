"""Failure codes, and the patterns that recognise a failure in a log. Imports `structs` alone of the launcher.

- `codes`: codes of failures, stops and decisions, for programs
- `text`: the message of each failure, made of its code and fields
- `symptoms`: kinds of failures of the user's code, and the output by which they are known
"""
