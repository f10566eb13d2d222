"""Explains the state of a run: for a pending job its reason, the limit that it meets, and what would start sooner."""
