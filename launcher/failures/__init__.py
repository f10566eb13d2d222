"""Failure codes, and the patterns that recognise a failure in a log. Imports nothing else of the launcher.

- `codes`: codes of failures, stops and decisions, for programs
- `text`: makes the text of each code, for users
- `preflight_text`: the text of each code of a preflight's check
- `kinds`: the kinds of ends that `post-mortem` distinguishes, and their names for users
- `symptoms`: patterns of torch's, NCCL's, Python's and the kernel's messages
"""
