"""The data of the scripts in this folder, and whatever goes wrong with it: FAILS names a failure of rank 1."""

import os
import signal
import time

import torch
from torch.utils.data import Dataset

FAILS = os.environ.get("FAILS", "")
if FAILS == "module":
    import tokens_of_nobody  # noqa: F401

FAILURES = {
    "hang": lambda: time.sleep(3600),
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "early": lambda: os._exit(0),
}


class Samples(Dataset):
    def __init__(self, path=""):
        self.inputs = torch.load(path) if path else torch.randn(64, 8)
        self.given = 0

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        self.given += 1
        if self.given == 9 and os.environ["RANK"] == "1" and FAILS in FAILURES:
            FAILURES[FAILS]()
        return {"inputs": self.inputs[index], "labels": self.inputs[index].sum(0, keepdim=True)}
