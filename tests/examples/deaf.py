"""A script that ignores everything: signals, checkpoints, the launcher."""

import os
import signal
import time

for each in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(each, signal.SIG_IGN)
print(f"rank {os.environ['RANK']} begins", flush=True)
time.sleep(float(os.environ.get("DEAF_FOR", "600")))
