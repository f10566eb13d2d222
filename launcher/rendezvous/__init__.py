"""Rendezvous of the agents of an attempt: mutually authenticated messages, the rounds, and the store of the ranks.

It may import files, errors and torch.
"""
