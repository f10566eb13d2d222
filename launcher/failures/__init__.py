"""Failure codes, and the patterns that recognise a failure in a log. Imports nothing else of the launcher.

- `codes`: codes of failures, stops and decisions, for programs
- `text`: the text of each code, for people
- `preflight_text`: the text of each code of a preflight's check
- `kinds`: the causes that a post-mortem distinguishes, by their names for users
- `symptoms`: patterns of torch's, NCCL's, Python's and the kernel's messages
"""
