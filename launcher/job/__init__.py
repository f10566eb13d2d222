"""What the script of a job calls before and after an attempt: whether it may begin, and how the run continues.

It may import submission, schedulers and what is below them; no torch.
"""
