"""Failure codes, and the patterns that recognise a failure in a log. Imports nothing else of the launcher."""
