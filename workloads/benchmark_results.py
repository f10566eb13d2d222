"""Writes and reads the results of a benchmark; compares them with those of an earlier run.

results.json is one JSON object: `format`, `workload`, `conditions` (everything that a number depends on), `roof`,
`rows`, `matrix` (of p2p; all pairs of a large one are in matrix.npy), `complete` and `reason`. Times are in seconds,
sizes in bytes, speeds in bytes/s. Both files are rewritten atomically after each size, so that an interrupted sweep
leaves what it has measured.
"""

from __future__ import annotations

import csv
import io
import json
import os
import platform
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from launcher import run_dir
from launcher.files import safe_io
from launcher.files.retried_reads import retry_read, unwrap_or
from launcher.worker import devices
from workloads import hardware_limits
from workloads.across_ranks import WorkloadError, gather, say, together

if TYPE_CHECKING:
    from launcher import Env
    from launcher.config.schema import P2P, Collective


FORMAT = 1
JSON, CSV = "results.json", "results.csv"
MATRIX = "matrix.npy"
# Keys of a row with measured values. The other keys describe what was measured: rows are compared if these are equal.
MEASURED = frozenset(
    ("seconds", "algbw", "busbw", "bandwidth", "latency", "wrong", "checked", "missing", "iterations", "messages",
     "count")
)  # fmt: skip

Row = Mapping[str, Any]


def conditions(config: Collective | P2P, env: Env) -> dict[str, Any]:
    """Returns what the numbers of a run depend on. All ranks must call it, since it gathers their hosts."""
    everyone = gather((env.node_rank, env.host), env)
    hosts, ranks = dict(everyone), Counter(node for node, _ in everyone)
    variables = {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(("NCCL_", "GLOO_")) and not name.startswith("NCCL_DEBUG")
    }
    nccl = env.backend == "nccl"
    folder = run_dir()
    return {
        "hosts": [hosts[node] for node in sorted(hosts)],  # of each node
        "world_size": env.world_size,
        "nodes": len(hosts),
        "ranks_per_node": [ranks[node] for node in sorted(ranks)],
        "backend": env.backend,
        "backend_version": ".".join(map(str, torch.cuda.nccl.version())) if nccl else None,  # of NCCL
        "interface": variables.get(f"{env.backend.upper()}_SOCKET_IFNAME"),  # that the backend is configured to use
        "device": env.device.type,
        "device_name": devices.name(env.device) or _cpu_name(),  # model of the device of rank 0
        "torch": torch.__version__,
        "python": platform.python_version(),
        "iterations": config.iterations,
        "warmup": config.warmup,
        "time": time.time(),  # start of the benchmark in Unix seconds
        "run": folder.name if folder else None,
        "environment": variables,  # that configure the backend
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.processor() or platform.machine())


@dataclass
class Results:
    """The results of one run, which rank 0 collects and writes."""

    workload: str  # collective or p2p
    conditions: Mapping[str, Any]  # what its numbers depend on
    roof: Mapping[str, Any]  # `socket` and `memory` in bytes/s (None: not measured), and `how` they were measured
    folder: Path | None  # directory of the files; None: they are not written (other ranks, or no run)
    rows: list[Row] = field(default_factory=list)  # the measured rows
    matrix: Mapping[str, Any] | None = None  # `Matrix.as_dict()` of p2p; None: not measured
    complete: bool = False  # whether everything that was requested was measured
    reason: str = ""  # why not everything was measured; empty: everything was, or the run was interrupted

    def add(self, *rows: Row) -> None:
        """Adds the rows of one size, and rewrites the files."""
        self.rows.extend(rows)
        self.write()

    def as_dict(self) -> dict[str, Any]:
        """Returns the content of results.json."""
        return {"format": FORMAT, **{name: value for name, value in vars(self).items() if name != "folder"}}

    def write(self) -> None:
        if self.folder is not None:
            safe_io.replace(self.folder / JSON, f"{json.dumps(self.as_dict(), indent=1)}\n".encode(), sync=False)
            safe_io.replace(self.folder / CSV, as_csv(self.rows).encode(), sync=False)


def as_csv(rows: Sequence[Row]) -> str:
    """Returns the rows as CSV with a header line. `seconds` becomes `seconds_min`, `seconds_median` and so on."""
    flat = [_flat(row) for row in rows]
    titles = list(dict.fromkeys(title for row in flat for title in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, titles, lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return text.getvalue()


def _flat(row: Row) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in row.items():
        flat.update({f"{key}_{part}": each for part, each in value.items()} if isinstance(value, Mapping) else
                    {key: value})  # fmt: skip
    return flat


def read(path: Path) -> Results:
    """Returns the results of a run; raises ValueError (none, damaged, in another format) or UnavailableError."""
    file = path / JSON if path.is_dir() else path
    try:
        values = json.loads(_bytes(file))
        if isinstance(values, dict) and values.get("format") == FORMAT:
            if values["matrix"] and values["matrix"].get("block", 1) > 1:
                file = file.with_name(MATRIX)
                latency, bandwidth = np.load(io.BytesIO(_bytes(file)))  # NaN: not measured
                values["matrix"] |= {"latency": latency, "bandwidth": bandwidth, "block": 1}
            return Results(
                values["workload"], values["conditions"], values["roof"], None, list(values["rows"]), values["matrix"],
                values["complete"], values.get("reason", ""),
            )  # fmt: skip
    except FileNotFoundError:
        raise ValueError(
            f"there is no {file}: only runs of workload=collective and workload=p2p that have measured something leave "
            "one"
        ) from None
    except _Unreadable:
        raise
    except (ValueError, KeyError, EOFError) as error:
        raise ValueError(f"{file} is damaged ({error!r}): measure again") from None
    raise ValueError(f"{file} is not of format {FORMAT}, which this version reads: measure again")


class _Unreadable(ValueError):
    """The system refuses to read a file, whose contents are not known."""


def _bytes(file: Path) -> bytes:
    if (found := unwrap_or(_Unreadable, retry_read(file.read_bytes, file))) is None:
        raise FileNotFoundError
    return found


@dataclass(frozen=True)
class Difference:
    """A row that is slower than in the baseline by more than the tolerance."""

    what: str  # text about the row (`all_reduce world 4 1048576 float32 sum out`)
    measure: str  # what is compared: busbw, bandwidth (both in bytes/s) or time (in seconds)
    now: float  # value in this run
    then: float  # value in the baseline
    ratio: float  # speed in this run divided by the speed in the baseline, below 1

    @property
    def shown(self) -> str:
        """Both values as text: `1.2 GB/s, was 2.4 GB/s`."""
        if self.measure == "time":
            return f"{self.now * 1e6:.1f} us, was {self.then * 1e6:.1f} us"
        return f"{self.now / 1e9:.3g} GB/s, was {self.then / 1e9:.3g} GB/s"


def compare(now: Sequence[Row], baseline: Sequence[Row], tolerance: float) -> tuple[list[Difference], int]:
    """Returns the rows that became slower by more than `tolerance` (a share of their speed), and the number compared.

    Two rows are compared if all their keys but MEASURED are equal: by their busbw or bandwidth, or by the median time
    if they have neither (barriers). A row without a measured value now counts as infinitely slow.
    """
    before = {_identity(row): row for row in baseline}
    compared, slower = 0, []
    for row in now:
        old = before.get(_identity(row))
        speed_then = old and _speed(old)
        if old is None or not speed_then:
            continue
        compared += 1
        measure, then, value_then = speed_then
        current = _speed(row)
        ratio = current[1] / then if current else 0.0
        if ratio < 1 - tolerance:
            slower.append(Difference(label(row), measure, current[2] if current else 0.0, value_then, ratio))
    return sorted(slower, key=lambda each: each.ratio), compared


def _identity(row: Row) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((key, json.dumps(value)) for key, value in row.items() if key not in MEASURED))


def _speed(row: Row) -> tuple[str, float, float] | None:
    for measure in ("busbw", "bandwidth"):
        if row.get(measure):
            return measure, float(row[measure]), float(row[measure])
    seconds = (row.get("seconds") or {}).get("median") or row.get("latency")
    return ("time", 1 / seconds, float(seconds)) if seconds else None


def label(row: Row) -> str:
    """Returns a short text about a row without its measured values: `all_reduce world 4 1048576 float32 sum out`."""
    words = [
        str(value)
        for key, value in row.items()
        if key not in MEASURED and key not in ("async", "root", "n") and value not in (None, "", False)
    ]
    return " ".join([*words, *(["async"] if row.get("async") else [])])


def against(
    now: Sequence[Row], baseline: Results, tolerance: float, say: Callable[[str], object], where: str
) -> str | None:
    """Compares this run with its baseline and prints the result; returns an error if it is slower or not comparable."""
    slower, compared = compare(now, baseline.rows, tolerance)
    if not compared:
        there = ", ".join(dict.fromkeys(label(row) for row in baseline.rows[:3]))
        return (
            f"nothing can be compared with baseline={where}: it has no row of the same operation, size, type and "
            f"number of ranks ({there}{', ...' if len(baseline.rows) > 3 else ''} there)"
        )
    left = len(now) - compared
    rest = f"; {left} have no counterpart there" if left else ""
    if not slower:
        say(f"{compared} rows compared with the baseline, none slower by more than {tolerance * 100:g} %{rest}")
        return None
    say(f"slower than the baseline by more than {tolerance * 100:g} %: {len(slower)} of {compared} rows{rest}")
    for each in slower:
        say(f"  {each.ratio * 100:3.0f} % of the speed: {each.measure} {each.shown}")
        say(f"        {each.what}")
    worst = slower[0]
    return (
        f"{len(slower)} of {compared} rows are slower than baseline={where} allows (tolerance={tolerance:g}); the "
        f"worst: {worst.what}, {worst.measure} {worst.shown}"
    )


# -- Reads the results of an earlier run, with which a benchmark is compared, on all ranks


def read_baseline(path: str | None, env: Env) -> Results | None:
    """Returns, on all ranks, the results in a file or run directory, which rank 0 reads; None: there is no baseline.

    Only rank 0 gets the matrix, which is large. Raises WorkloadError: they cannot be read. All ranks must call it.
    """
    if path is None:
        return None

    def read_first() -> Results | None:
        try:
            return read(Path(path)) if env.rank == 0 else None
        except ValueError as error:
            raise ValueError(f"baseline={path}: {error}") from None

    found = together(read_first, env)
    told = gather(found and replace(found, matrix=None), env)[0]
    return found or told


# -- What both benchmarks print and write, which only rank 0 does


FAULTS = 10  # most wrong results that an error lists; the table has all of them
WIDTH = 76  # characters of a line: 80 of a terminal, without the rank's prefix


class Report:
    """A benchmark's output on the terminal and in files. All ranks make one."""

    def __init__(self, config: Collective | P2P, env: Env) -> None:
        self.env = env
        self.baseline = read_baseline(config.baseline, env)
        self.roof = hardware_limits.measure(env)
        self.folder = run_dir() if env.rank == 0 else None
        name = type(config).__name__.lower()
        self.results = Results(name, conditions(config, env), vars(self.roof), self.folder)

    def say(self, *lines: str) -> None:
        if self.env.rank == 0:
            for line in lines:
                say(line)

    def say_wrapped(self, text: str) -> None:
        self.say(*textwrap.wrap(text, WIDTH, subsequent_indent="    "))

    def stop(self, reason: str) -> None:
        """Prints and records why not everything is measured; raises WorkloadError if nothing was."""
        if not self.results.rows:
            raise WorkloadError(f"{reason}: use smaller workload.sizes")
        self.results.reason = "; ".join(filter(None, [self.results.reason, reason]))
        self.results.write()
        self.say_wrapped(reason)

    def conclude(self, faults: Sequence[str]) -> None:
        """Writes complete results; raises WorkloadError with the texts about wrong results, if any."""
        self.results.complete = not self.results.reason
        self.results.write()
        if faults:
            more = [f"and {len(faults) - FAULTS} more"] if len(faults) > FAULTS else []
            raise WorkloadError("; ".join([*faults[:FAULTS], *more]))
