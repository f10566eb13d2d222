"""What a job script calls around an attempt: may the run start (`wait_for_others`), and does it continue (`requeue`).

It may import submission, schedulers and what is below them; no torch.
"""
