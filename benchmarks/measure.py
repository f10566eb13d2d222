"""Shared by the benchmarks: contestants timed in turns, medians, and the result of a claim with its target."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Lists the directories that are its arguments, and parses each file with JSON in them.
_PARSE = (
    "import json, os, sys\n"
    "for top in sys.argv[1:]:\n"
    "    for folder, _, names in os.walk(top):\n"
    "        for name in names:\n"
    "            if name.endswith(('.json', '.jsonl')):\n"
    "                with open(os.path.join(folder, name)) as file:\n"
    "                    for text in file if name.endswith('l') else [file.read()]:\n"
    "                        json.loads(text)\n"
)


@dataclass(frozen=True)
class Result:
    """The measured value of one claim, with its target.

    Attributes:
        claim: text about what is measured.
        value: the measured value, in `unit`.
        target: largest value that meets the claim; the smallest one if `at_least`.
        detail: text with the medians and the conditions of the measurement.
        unit: unit of value and target; "x" for a ratio.
        at_least: whether a larger value is better.
    """

    claim: str
    value: float
    target: float
    detail: str
    unit: str = "x"
    at_least: bool = False

    @property
    def met(self) -> bool:
        return self.value >= self.target if self.at_least else self.value <= self.target

    @property
    def shown(self) -> tuple[str, str, str, str]:
        """Claim, value, target, and whether it was met, as texts of a table's row."""
        bound = "at least" if self.at_least else "at most"
        target = f"{bound} {self.target:g} {self.unit}"
        return self.claim, f"{self.value:.2f} {self.unit}", target, "yes" if self.met else "NO"

    @property
    def line(self) -> str:
        claim, value, target, met = self.shown
        return f"{claim}: {value} (target {target}, met: {met}); {self.detail}"


def interleaved(
    contestants: Mapping[str, Callable[[], float]], repeats: int, warmup: int | None = None
) -> dict[str, list[float]]:
    """Runs the contestants in turns, and returns the seconds of each contestant in each round.

    In turns, a busy moment of the machine slows all contestants down.

    Args:
        contestants: by name, a function that does the work once and returns its seconds.
        repeats: number of rounds.
        warmup: number of rounds before these, which fill caches and write bytecode and do not count; None: 1, but none
            before a single round, which judges nothing.
    """
    if warmup is None:
        warmup = int(repeats > 1)
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(warmup + repeats):
        for name, contestant in contestants.items():
            taken = contestant()
            if number >= warmup:
                seconds[name].append(taken)
    return seconds


def median_ratio(seconds: Mapping[str, Sequence[float]], ours: str, theirs: str) -> float:
    """Returns the median, over all rounds, of the time of contestant `ours` divided by that of `theirs` in the same
    round."""
    return statistics.median(mine / other for mine, other in zip(seconds[ours], seconds[theirs], strict=True))


def medians(seconds: Mapping[str, Sequence[float]]) -> str:
    """Returns the medians as text: `ours 310 ms, bare Hydra 260 ms; median of 9 rounds`."""
    each = ", ".join(f"{name} {statistics.median(taken) * 1000:.0f} ms" for name, taken in seconds.items())
    return f"{each}; median of {len(next(iter(seconds.values())))} rounds"


def environment(**variables: str) -> dict[str, str]:
    """Returns this process's environment with `variables`, for a contestant.

    Without PYTHONDONTWRITEBYTECODE and PYTHONPATH, which would make Python start differently than on a user's machine.
    """
    ours = {name: value for name, value in os.environ.items() if name not in ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH")}
    return {**ours, **variables}


def stand_ins(folder: Path, answers: Mapping[str, str]) -> str:
    """Writes shell scripts that stand in for commands; returns a PATH on which they come first.

    Args:
        folder: directory of the scripts.
        answers: lines of shell by the command's name.
    """
    folder.mkdir(exist_ok=True)
    for name, answer in answers.items():
        (folder / name).write_text(f"#!/bin/sh\n{answer}\n")
        (folder / name).chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def python(*arguments: str | Path, env: Mapping[str, str], cwd: Path = ROOT) -> tuple[float, str, str]:
    """Runs this Python interpreter; returns the seconds from its start to its exit, its stdout, and its stderr.

    Raises:
        RuntimeError: its exit code is not 0; the text has its output.
    """
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *map(str, arguments)], env=env, cwd=cwd, capture_output=True, text=True, check=False
    )
    seconds = time.perf_counter() - started
    if done.returncode:
        command = " ".join(map(str, arguments))
        raise RuntimeError(f"{command} exited with {done.returncode}:\n{done.stdout}{done.stderr}")
    return seconds, done.stdout, done.stderr


def parse(folders: Sequence[Path], env: Mapping[str, str]) -> float:
    """Runs a plain script that lists these directories and parses their .json and .jsonl files; returns its seconds.

    Commands that show states from files are compared with it.
    """
    return python("-c", _PARSE, *folders, env=env)[0]


def report(results: Sequence[Result]) -> int:
    """Prints a line for each result and returns 0 if all targets were met, else 1."""
    for result in results:
        print(result.line, flush=True)
    return 0 if all(result.met for result in results) else 1
