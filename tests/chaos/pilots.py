"""Kills pilots, slot managers, points and submitters of packed sweeps (kill -9) at random moments.

    python -m tests.chaos.pilots --kills 100 --seed 1
    python -m tests.chaos.pilots --kills 30 --seed 1 --late 2

At the end each point must be done exactly once, or have failed with its cause; none may be lost, or run twice at the
same time. With `--late SECONDS` each process sees the folders of claims and of slot managers as they were up to so many
seconds ago, and pilots do not see each other's processes, as on nodes that share a network file system.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from launcher.errors import UnavailableError
from launcher.processes import Process
from launcher.runs.event_files import read
from launcher.runs.events import ManagerBegan, every
from launcher.runs.history import process_of
from launcher.runs.point_claims import Claims, EntryKind, PointLog, State, fold
from launcher.runs.sweep_directory import Sweep
from tests.launch import PYTHON, ROOT, Launcher

POINTS, PILOTS, SLOTS, RETRIES = 40, 2, 2, 1  # of each sweep
PAUSE = 0.3  # seconds that a point takes
PATIENCE = 240.0  # timeout in seconds for a command, and for a sweep
SUBMITTER = "submitter"


class PointWrong(AssertionError):
    """A point of a sweep was lost, done twice, or run twice at the same time; or a command failed."""


@dataclass
class PilotSiege:
    """Runs packed sweeps one after the other, and kills processes of theirs.

    Attributes:
        launcher: the launcher for the sweeps, on this machine.
        seed: the seed of all random choices.
        late: seconds by which processes see claims late; 0: they see them at once.
        kills: the number of killed processes of each kind.
        failed: the number of failed points.
    """

    launcher: Launcher
    seed: int
    late: float = 0.0
    kills: Counter[str] = field(default_factory=Counter)
    failed: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.length = 1.0  # seconds that the last submission took

    def storm(self, kills: int) -> None:
        """Runs sweeps until so many processes were killed.

        Raises:
            PointWrong: a point of a sweep is not as the module's docstring demands, or a command failed.
        """
        for number in itertools.count():
            if self.kills.total() >= kills:
                return
            self.sweep(Sweep(self.launcher.runs_dir / f"storm-{number}"), kills)

    def sweep(self, sweep: Sweep, kills: int) -> None:
        """Runs a sweep, and kills its processes until it is over, or until `kills` were killed in all sweeps."""
        try:
            self._sweep(sweep, kills)
        finally:
            for pid in processes(sweep.path):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _sweep(self, sweep: Sweep, kills: int) -> None:
        program = "tests.chaos.short_lease" if self.late else "launcher"
        command = [
            PYTHON, "-m", program, "-m", "workload=collective", "workload.entry=tests.chaos.sweep_points:alone",
            "procs_per_node=1", f"seed=range({POINTS})", f"sweep.id={sweep.id}", f"sweep.pack={PILOTS}",
            f"sweep.slots={SLOTS}", f"sweep.retries={RETRIES}", "wait=false", *self.launcher.overrides,
        ]  # fmt: skip
        over, began = False, time.monotonic()
        while not over:
            if time.monotonic() - began > PATIENCE:
                raise PointWrong(f"{sweep.id} is not over after {PATIENCE:g} s: {self._status(sweep)}")
            # If pilots do not see each other's processes, points of a dead pilot continue when its lease has expired.
            if sum(process.alive() for process in pilots(sweep)) < (1 if self.late else PILOTS):
                self._submit(command, dies=self.kills.total() < kills and self.random.random() < 0.5)
            elif self.kills.total() < kills:
                self._kill_one(sweep, command)
            time.sleep(self.random.uniform(0, 0.25))
            over = sum(log.state.over for log in logs(sweep)) == POINTS
        waited = self.launcher("sweep", "wait", sweep.id, timeout=PATIENCE)
        while left := processes(sweep.path):  # pilots exit when they see that no point is left
            if time.monotonic() - began > PATIENCE:
                raise PointWrong(f"of {sweep.id} there are still the processes {left}")
            time.sleep(0.1)
        rows = json.loads(self.launcher("sweep", "status", sweep.id, "--json").stdout)["points"]
        self.failed += check(sweep, {int(row["point"]): str(row["cause"] or "") for row in rows})
        if waited.returncode != int(any(log.state is State.FAILED for log in logs(sweep))):
            raise PointWrong(f"sweep wait of {sweep.id} exits with {waited.returncode}: {waited.stdout}{waited.stderr}")

    def _kill_one(self, sweep: Sweep, command: Sequence[str]) -> None:
        """Kills a process of a random kind; does nothing if the sweep has no process of this kind."""
        kind = self.random.choice((SUBMITTER, "pilot", "manager", "agent", "point", "point", "point", "rank", "rank"))
        if kind == SUBMITTER:
            self._submit(command, dies=True)
            return
        if kind == "pilot":
            if live := [process for process in pilots(sweep) if process.alive()]:
                self.random.choice(live).signal(signal.SIGKILL)
                self.kills[kind] += 1
            return
        managers = [process.pid for process in slot_managers(sweep) if process.alive()]
        points = [child for manager in managers for child in children(manager)]
        victims = {
            "manager": managers, "agent": [parent(manager) for manager in managers], "point": points,
            "rank": [child for point in points for child in children(point)],
        }[kind]  # fmt: skip
        if victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.random.choice(sorted(victims)), signal.SIGKILL)
                self.kills[kind] += 1

    def _submit(self, command: Sequence[str], *, dies: bool) -> None:
        """Submits the sweep, or if it exists, its missing pilots.

        Args:
            command: the command.
            dies: whether to kill the command after a random time, if it still runs.

        Raises:
            PointWrong: the command failed.
        """
        limit, began = self.random.uniform(0, self.length) if dies else PATIENCE, time.monotonic()
        environ = {**self.launcher.environ, "PAUSE": str(PAUSE), "LATE_FILES": str(self.late)}
        with subprocess.Popen(
            command, cwd=ROOT, env=environ, start_new_session=True, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        ) as process:  # fmt: skip
            try:
                said, _ = process.communicate(timeout=limit)
            except subprocess.TimeoutExpired:
                os.kill(process.pid, signal.SIGKILL)
                self.kills[SUBMITTER] += 1
                return
        self.length = time.monotonic() - began
        if process.returncode:
            raise PointWrong(f"the command that submits exits with {process.returncode}: {said}")

    def _status(self, sweep: Sweep) -> str:
        return self.launcher("sweep", "status", sweep.id).stdout


def check(sweep: Sweep, causes: dict[int, str]) -> int:
    """Checks the points of a sweep that is over, and returns how many have failed.

    Args:
        sweep: the sweep.
        causes: the cause of each point's failure in `sweep status`, by the point's number.

    Raises:
        PointWrong: a point was lost, done twice, run twice at the same time, or failed without being killed.
    """
    wrong = []
    entries = Claims(sweep.path, RETRIES).entries()
    for point in range(POINTS):
        log, run = entries.get(point, []), sweep.run(point)
        kinds, lives = Counter(entry.kind for entry in log), list(executions(run.path / "executed"))
        state = fold(log, RETRIES).state
        if (run.path / "twice").exists() or any(a[1] > b[0] for a, b in itertools.pairwise(sorted(lives))):
            wrong.append(f"point {point} ran twice at the same time")
        if len(run.attempts()) > kinds[EntryKind.CLAIMED]:
            wrong.append(f"point {point} has {len(run.attempts())} attempts and {kinds[EntryKind.CLAIMED]} claims")
        if state is State.DONE:
            # A point that is killed after it wrote its line, but before its end is recorded, is executed again.
            again = kinds[EntryKind.CLAIMED] - 1
            if kinds[EntryKind.DONE] != 1 or not 1 <= len(lives) <= 1 + again or run.result() != {"seed": point}:
                wrong.append(f"point {point} is done, was executed {len(lives)} times, and returned {run.result()}")
        elif state is State.FAILED:
            if kinds[EntryKind.FAILED] != RETRIES + 1 or "SIGKILL" not in causes.get(point, ""):
                wrong.append(f"point {point} has failed, and its cause is {causes.get(point)!r}")
        else:
            wrong.append(f"point {point} is {state.value}")
        if wrong:
            told = ", ".join(f"{entry.manager} {entry.kind.value}" for entry in log)
            raise PointWrong(f"{sweep.id}: {'; '.join(wrong)}; its log: {told}")
    return sum(fold(log, RETRIES).state is State.FAILED for log in entries.values())


def executions(path: Path) -> Iterator[tuple[float, float]]:
    """Yields (start, end) of each complete execution of a point, from its file `executed`."""
    for line in path.read_text().splitlines() if path.exists() else ():
        begun, ended = json.loads(line)
        yield begun, ended


def logs(sweep: Sweep) -> list[PointLog]:
    """Returns the logs of claims of the points that have started; empty: they cannot be read now."""
    with contextlib.suppress(UnavailableError, OSError):
        return list(Claims(sweep.path, RETRIES).logs().values())
    return []


def slot_managers(sweep: Sweep) -> list[Process]:
    """Returns the processes of all slot managers that have started."""
    folder = Claims(sweep.path, RETRIES)
    began = [event for each in folder.managers() for event in every(read(folder.journal(each)), ManagerBegan)]
    return [Process(event.pid, event.start, socket.gethostname()) for event in began]


def pilots(sweep: Sweep) -> list[Process]:
    """Returns the process of each pilot's newest attempt."""
    numbers = itertools.takewhile(lambda number: sweep.pilot(number).recorded(), itertools.count())
    found = [process_of(sweep.pilot(number)) for number in numbers]
    return [process for process in found if process is not None]


def processes(folder: Path) -> list[int]:
    """Returns the pids of processes whose run directory starts with this path: of a sweep's points and pilots."""
    found, text = [], f"LAUNCHER_RUN_DIR={folder}".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if text in path.read_bytes():
                found.append(int(path.parent.name))
    return found


def children(pid: int) -> list[int]:
    try:
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return pid  # it has ended


def on_this_machine(folder: Path, seed: int, late: float = 0.0) -> PilotSiege:
    """Returns a siege of sweeps on this machine.

    Args:
        folder: the directory for the runs.
        seed: the seed of all random choices.
        late: seconds by which processes see claims late.
    """
    hook = {"PYTHONPATH": f"{ROOT / 'tests/chaos/late_hook'}:{ROOT}"} if late else {}
    return PilotSiege(Launcher(folder, hook, ["cluster=local"]), seed, late)


def report(siege: PilotSiege, kills: int) -> int:
    """Runs sweeps until so many processes were killed, prints the result, and returns the exit code."""
    try:
        siege.storm(kills)
    except PointWrong as wrong:
        print(f"WRONG with seed {siege.seed} after {dict(siege.kills)}: {wrong}")
        return 1
    print(
        f"{siege.kills.total()} kills {dict(siege.kills)}: each point is done once, or has failed with its cause "
        f"({siege.failed}), and none ran twice at the same time"
    )
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--late", type=float, default=0.0, help="seconds for which claims may be seen as they were")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pilots-") as name:
        return report(on_this_machine(Path(name) / "runs", options.seed, options.late), options.kills)


if __name__ == "__main__":
    sys.exit(main())
