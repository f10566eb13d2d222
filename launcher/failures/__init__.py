"""The kinds of failures, as codes, and the signs by which one is recognised. Imports nothing of the launcher."""
