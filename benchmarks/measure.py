"""What the benchmarks share: contestants timed in turns, medians, and the line that a claim ends with."""

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


@dataclass(frozen=True)
class Result:
    """What came of one claim.

    Attributes:
        claim: what is claimed, in a few words.
        value: what was measured, a ratio unless `unit` says otherwise.
        target: what it must be at most, or at least if `at_least`.
        detail: the medians behind it, and under which circumstances.
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
        """Claim, value, target, and whether it was met."""
        bound = "at least" if self.at_least else "at most"
        target = f"{bound} {self.target:g} {self.unit}"
        return self.claim, f"{self.value:.2f} {self.unit}", target, "yes" if self.met else "NO"

    @property
    def line(self) -> str:
        claim, value, target, met = self.shown
        return f"{claim}: {value} (target {target}, met: {met}); {self.detail}"


def interleaved(
    contestants: Mapping[str, Callable[[], float]], repeats: int, warmup: int = 1
) -> dict[str, list[float]]:
    """Seconds that each contestant took in each round; they take turns, so that a busy moment hits all of them.

    Args:
        contestants: functions that do the work once and return the seconds that count.
        repeats: rounds that are kept.
        warmup: rounds before, which fill caches and write bytecode.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(warmup + repeats):
        for name, contestant in contestants.items():
            taken = contestant()
            if number >= warmup:
                seconds[name].append(taken)
    return seconds


def median_ratio(seconds: Mapping[str, Sequence[float]], ours: str, theirs: str) -> float:
    """The median over the rounds of one contestant's time divided by the other's in the same round."""
    return statistics.median(mine / other for mine, other in zip(seconds[ours], seconds[theirs], strict=True))


def medians(seconds: Mapping[str, Sequence[float]]) -> str:
    """`ours 310 ms, bare Hydra 260 ms, median of 9 rounds`."""
    each = ", ".join(f"{name} {statistics.median(taken) * 1000:.0f} ms" for name, taken in seconds.items())
    return f"{each}; median of {len(next(iter(seconds.values())))} rounds"


def environment(**variables: str) -> dict[str, str]:
    """The environment for a contestant: without settings that keep Python from using bytecode, as nobody's are."""
    ours = {name: value for name, value in os.environ.items() if name not in ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH")}
    return {**ours, **variables}


def stand_ins(folder: Path, answers: Mapping[str, str]) -> str:
    """Writes commands that execute these lines of shell into `folder`, by name; returns a PATH that begins with it."""
    folder.mkdir(exist_ok=True)
    for name, answer in answers.items():
        (folder / name).write_text(f"#!/bin/sh\n{answer}\n")
        (folder / name).chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def python(*arguments: str | Path, env: Mapping[str, str], cwd: Path = ROOT) -> tuple[float, str, str]:
    """Seconds from the start of an interpreter to its exit, its output, and its errors.

    Raises:
        RuntimeError: it failed; the text is what it wrote.
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


def report(results: Sequence[Result]) -> int:
    """Prints a line for each result and returns 0 if all targets were met, else 1."""
    for result in results:
        print(result.line, flush=True)
    return 0 if all(result.met for result in results) else 1
