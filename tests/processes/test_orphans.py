"""What a killed process has started is found and killed."""

from __future__ import annotations

import subprocess
import sys

GRANDPARENT = """
import os, subprocess, sys, time
from launcher import processes
processes.adopt()
kept = subprocess.Popen(["sleep", "600"])
before = processes.children()
parent = subprocess.Popen([sys.executable, "-c",
    "import subprocess, time; subprocess.Popen(['setsid', 'sleep', '601']); print(flush=True); time.sleep(600)"],
    stdout=subprocess.PIPE)
parent.stdout.readline()
parent.kill()
parent.wait()
while not processes.children() - before:
    time.sleep(0.01)
killed = processes.kill(before)
print(len(killed), kept.poll(), processes.children() == before)
kept.kill()
"""


def test_orphans_are_killed_and_others_are_kept() -> None:
    done = subprocess.run([sys.executable, "-c", GRANDPARENT], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == ["1", "None", "True"], done.stderr
