"""Finds out why an attempt ended: evidence, classification, advice. Only `evidence` and `findings` read files."""
