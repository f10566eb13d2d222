"""Explains the state of a run: for a pending job its reason, the limit that it meets, and what would start sooner.

- `of_run`: collects the explanation of a run, from its record, its sweep and its scheduler
- `text`: the text of each code of an explanation, and its JSON
"""
