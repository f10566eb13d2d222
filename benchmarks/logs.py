"""`logs` of a run with 1 GiB of output: time to the first byte, and peak memory to show all of it.

    python -m benchmarks.logs

The time is from the start of the process to its first byte of output, against an interpreter that only prints a
character.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.measure import ROOT, Result, environment, interleaved, median_ratio, medians, report
from launcher.runs import events as kinds

RANKS = 64
CALLS = {"logs": (), "logs --tail 100": ("--tail", "100"), "logs --rank 3-5": ("--rank", "3-5"), "logs -f": ("-f",)}


@contextlib.contextmanager
def _run(folder: Path, size: int) -> Iterator[str]:
    """Writes the directory of a finished run of 64 ranks with `size` bytes of output; yields the run's id."""
    from launcher.runs import event_files
    from launcher.runs.directory import Run
    from tests.unit.plans import plan_of

    run = Run.create(folder / "long")
    run.write_record(plan_of(), {}, {"launcher": "1", "token": "t"})
    attempt = run.path / "attempts" / "0"
    for name in ("events", "logs"):
        (attempt / name).mkdir(parents=True)
    for rank in range(RANKS):
        (attempt / "logs" / f"rank-{rank}.out").touch()
    event_files.append(attempt / "events" / "script.jsonl", kinds.Started(job="7", host="node1", output=0))
    event_files.append(attempt / "events" / "script.jsonl", kinds.Ended(code=0))
    lines = b"".join(b"[%d] step %d/100000  loss 0.1234  samples/s 5678\n" % (n % RANKS, n) for n in range(20_000))
    with open(run.path / "output-7.log", "wb") as file:
        for _ in range(size // len(lines)):
            file.write(lines)
    yield run.id


def _first_byte(arguments: tuple[str, ...], env: Mapping[str, str]) -> float:
    """Runs Python with these arguments; returns the seconds until its first byte of output."""
    began = time.perf_counter()
    with subprocess.Popen([sys.executable, *arguments], env=env, cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        if not process.stdout.read(1):
            raise RuntimeError(f"{' '.join(arguments)} printed nothing")
        seconds = time.perf_counter() - began
        process.kill()
    return seconds


def _memory(arguments: tuple[str, ...], env: Mapping[str, str]) -> float:
    """Runs Python with these arguments to its end; returns its peak memory in MiB."""
    command = [sys.executable, *arguments]
    process = os.posix_spawn(
        sys.executable, command, dict(env), file_actions=[(os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0)]
    )
    _, status, usage = os.wait4(process, 0)
    if status:
        raise RuntimeError(f"{' '.join(command)} failed")
    return usage.ru_maxrss / 1024


def results(repeats: int = 15, size: int = 1 << 30) -> list[Result]:
    with tempfile.TemporaryDirectory() as folder, _run(Path(folder), size) as run:
        env = environment(LAUNCHER_RUNS_DIR=folder, PYTHONPATH=str(ROOT))
        logs = ("-m", "launcher", "logs", run)
        calls = {name: (*logs, *options) for name, options in CALLS.items()}
        calls["python -c print"] = ("-c", "print('x', flush=True)")
        seconds = interleaved({name: lambda c=call: _first_byte(c, env) for name, call in calls.items()}, repeats)  # type: ignore[misc]
        mib = _memory(logs, env)
    detail = medians(seconds)
    return [
        *(
            Result(
                f"{name} of {size >> 20} MiB: first output / python -c print",
                median_ratio(seconds, name, "python -c print"),
                12,
                detail,
            )
            for name in CALLS
        ),
        Result(f"logs of {size >> 20} MiB: memory", mib, 64, "largest resident set of the whole process", unit="MiB"),
    ]


if __name__ == "__main__":
    sys.exit(report(results()))
