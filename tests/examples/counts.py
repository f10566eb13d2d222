"""Saves a snapshot now and then and loads it when it begins; knows nothing of the launcher, of signals or exit codes.

Without torch, so that it starts at once: what it tests is the launcher's.
"""

import json
import os
import sys
import time

path, until, pause = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])  # seconds a step, until it is resumed
rank, begin = os.environ["RANK"], 0
if os.path.exists(path):
    with open(path) as file:
        begin = json.load(file)
print(f"rank {rank} begins at {begin}", flush=True)
for step in range(begin, until):
    time.sleep(0 if begin else pause)
    if rank == "0":
        with open(f"{path}.new", "w") as file:
            json.dump(step + 1, file)
        os.replace(f"{path}.new", path)
print(f"rank {rank} has counted to {until}", flush=True)
