"""The rounds of an attempt: each is a new meeting, so that every round has a store and a port of its own.

After a fault the lowest member that is left becomes the master of the next round and waits for the others. What agents
cannot tell each other once they have lost each other is decided in the attempt's folder `rounds`:

| file | written by | says |
|---|---|---|
| `K.json` | the master of round K | who is in. It can be made only once: of two halves of a parted world one goes on |
| `waiting-M` | member M | it came late, or was lost and is back, and waits for the next round |
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from launcher import runs
from launcher.node.rendezvous import Meeting, Member, RendezvousError, meet
from launcher.plan import JobPlan

KNOCK = 5.0  # seconds that one who is late tries to reach the next round before it looks again which that is
LONG_SILENCE = 90.0  # seconds more than a heartbeat for a file's time to reach another node


class Overtaken(Exception):
    """This member's round is over, and others have begun the next one without it."""


class AttemptOver(Exception):
    """The attempt ended while this member waited to be let in."""


class Rounds:
    """What one member needs to take part in the rounds of an attempt."""

    def __init__(
        self, plan: JobPlan, attempt: runs.Attempt, me: Member, *,
        expected: Sequence[str], hosts: Sequence[str], key: str,
    ) -> None:  # fmt: skip
        """
        Args:
            plan: the run.
            attempt: this attempt.
            me: this member.
            expected: a name for each member of the job.
            hosts: the host of each of them.
            key: tells this attempt from every other.
        """
        self._plan, self._attempt, self.me = plan, attempt, me
        self.size, self._expected, self._hosts, self._key = len(expected), expected, hosts, key
        self._folder = attempt.path / "rounds"
        self.least = plan.min_nodes * plan.tasks_per_node

    @property
    def elastic(self) -> bool:
        """Whether fewer than all members may go on."""
        return self.least < self.size

    def first(self) -> tuple[int, Meeting]:
        """Round 0; or whichever comes next, if that has begun.

        Raises:
            RendezvousError: see `meet`.
            AttemptOver: it ended before this member was let in.
        """
        if self.elastic and self._latest() is not None:
            return self.join()
        if not self.elastic and self._latest() is not None:
            raise RendezvousError(f"{self._expected[self.me.index]} came too late: the attempt has begun", over=True)
        return 0, self._meet(0, 0, range(self.size), self._plan.rendezvous_timeout)

    def next(self, number: int, before: Meeting, lost: Collection[int]) -> Meeting:
        """The meeting of this round, of those that were in the one before, and of those that wait.

        Args:
            number: the round.
            before: the meeting of the round that is over.
            lost: indices of members that are gone.

        Raises:
            RendezvousError: too few came.
            Overtaken: the others have begun without this member.
        """
        left = sorted(member.index for member in before.members if member.index not in lost)
        wanted = {*left, *self.waiting()}
        problem = RendezvousError("nobody is left", over=True)
        for place, leader in enumerate(left):
            try:
                return self._meet(number, leader, wanted - set(left[:place]), self._plan.heartbeat)
            except RendezvousError as error:
                problem = error
                if self.begun(number):
                    raise Overtaken(str(error)) from None
                if error.over:
                    break
        raise problem

    def join(self) -> tuple[int, Meeting]:
        """Waits until the attempt begins a round, and takes part in it.

        Raises:
            AttemptOver: the attempt ended first.
        """
        mark = self._folder / f"waiting-{self.me.index}"
        mark.touch(mode=0o600)
        number, seen, since = -1, "", time.monotonic()
        try:
            while not (self._attempt.path / "exit_code").exists():
                latest = self._latest()
                if latest is None:
                    raise AttemptOver("its rounds are gone")
                number, alive = latest["round"], self._sign_of_life(latest["round"])
                if alive != seen:
                    seen, since = alive, time.monotonic()
                elif time.monotonic() - since > self._plan.heartbeat + LONG_SILENCE:
                    raise AttemptOver(f"round {number} has shown no sign of life for so long")
                left = [member["index"] for member in latest["members"] if member["index"] != self.me.index]
                with contextlib.suppress(RendezvousError):  # not yet
                    return number + 1, self._meet(number + 1, min(left), {*left, self.me.index}, KNOCK)
            raise AttemptOver("it has ended")
        finally:
            mark.unlink(missing_ok=True)

    def names(self, indices: Sequence[int]) -> str:
        """What to call these members."""
        return ", ".join(self._expected[index] for index in indices)

    def waiting(self) -> list[int]:
        """Indices of members that wait for the next round."""
        try:
            names = [entry.name for entry in os.scandir(self._folder) if entry.name.startswith("waiting-")]
        except OSError:
            return []
        return sorted(int(name.partition("-")[2]) for name in names)

    def begun(self, number: int) -> bool:
        """Whether some members are in this round."""
        return (self._folder / f"{number}.json").exists()

    def show_life(self, number: int) -> None:
        """For those who wait; the master of the round does it now and then."""
        with contextlib.suppress(OSError):
            os.utime(self._folder / f"{number}.json")

    def _meet(self, number: int, leader: int, wanted: Collection[int], timeout: float) -> Meeting:
        def claim(members: Sequence[Member], port: int) -> str | None:
            return self._claim(number, members, port)

        return meet(
            self.me,
            size=self.size,
            least=self.least,
            expected=self._expected,
            master=self._hosts[leader] + self._plan.host_suffix,
            key=f"{self._key}/round {number}" if number else self._key,
            port_range=self._plan.port_range,
            timeout=timeout,
            leader=leader,
            wanted=wanted,
            claim=claim,
        )

    def _claim(self, number: int, members: Sequence[Member], port: int) -> str | None:
        """Makes the round's file, whole and only once; words when somebody else has."""
        told = {"round": number, "port": port, "members": [asdict(member) for member in members]}
        path, mine = self._folder / f"{number}.json", self._folder / f".{number}-{self.me.index}"
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            with open(os.open(mine, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                json.dump(told, file)
            try:
                os.link(mine, path)
            except FileExistsError:
                return f"round {number} has begun without {self._expected[self.me.index]}"
            finally:
                mine.unlink(missing_ok=True)
        except OSError as error:  # a full disk; all that is lost is the safety of a world that falls apart
            print(f"launcher: cannot write to {path}: {error}", file=sys.stderr, flush=True)
        return None

    def _latest(self) -> dict[str, Any] | None:
        """The newest round's file."""
        try:
            numbers = [int(path.stem) for path in self._folder.glob("*.json") if path.stem.isdecimal()]
            return dict(json.loads((self._folder / f"{max(numbers)}.json").read_text()))
        except (OSError, ValueError):
            return None

    def _sign_of_life(self, number: int) -> str:
        try:
            return f"{number} {Path(self._folder / f'{number}.json').stat().st_mtime_ns}"
        except OSError:
            return f"{number}"
