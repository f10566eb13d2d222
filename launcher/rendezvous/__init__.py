"""How the agents of a run meet: messages that are authenticated both ways, who takes part, the store of the ranks.

It may import files, errors and torch.
"""
