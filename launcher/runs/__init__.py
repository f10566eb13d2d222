"""The run directory: the only reader and writer of its format, its events, locks and output.

It may import spec, failures, files and what is below them.
"""
