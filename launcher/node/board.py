"""What the agents of a round tell each other, in the round's store.

| key | says |
|---|---|
| `news` | how often something was told; each agent looks at this alone, and at the others when it has changed |
| `fault` | the first fault, and what all do about it; the first to speak is believed |
| `stop`, `warning` | an agent was told to stop now, or in some time |
| `hang`, `stacks/I` | an agent's ranks are silent; the stacks of each agent's ranks |
| `regroup` | a node came back: save, and begin a new round |
| `asked` | what a command asks of all agents; see `asked` |
| `beat/I` | agent I lives |
| `pace/I` | how fast agent I's ranks are |
| `forked` | the first agent has forked its ranks |
| `ended`, `parted`, `leaving/I` | how many agents' ranks have ended; who has read the outcome; who was told to stop |
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from datetime import timedelta
from typing import Any, TypeVar

from torch.distributed import Store

from launcher.node.line import Line, LineDead
from launcher.node.rendezvous import Meeting

T = TypeVar("T")

LOOK = 0.02  # seconds between two looks at the news, at least
LOOKS = 2000  # looks a second of all agents together, at most
HEARSAY = 2.0  # seconds in which every agent that is told to stop has said so


class Board:
    """The words of all agents, as one of them sees them.

    Attributes:
        pause: seconds between two looks.
        heard: what was told by key, without the fault.
        fault: the first fault.
    """

    def __init__(self, meeting: Meeting, place: int, heartbeat: float) -> None:
        """
        Args:
            meeting: of the round.
            place: of this agent among its members; the one at 0 has the store.
            heartbeat: seconds of silence after which an agent is lost.
        """
        self._members, self._place, self._heartbeat = meeting.members, place, heartbeat
        meeting.store.set_timeout(timedelta(seconds=30))
        if place == 0:  # so that they can be read before all have told one
            for each in range(len(meeting.members)):
                meeting.store.set(f"beat/{each}", "0")
        self._line = Line(meeting.store, heartbeat)
        self.pause = max(LOOK, len(meeting.members) / LOOKS)
        self.heard: dict[str, str] = {}
        self.fault: dict[str, Any] | None = None
        self._look: Future[dict[str, Any]] | None = None
        self._next_look = self._next_beat = 0.0
        self._beats, self._news = 0, 0
        self._others: dict[int, tuple[bytes, float]] = {}
        self._looked = time.monotonic()

    def ask(self, call: Callable[[Store], T]) -> T:
        """The store's answer.

        Raises:
            LineDead: there is none.
        """
        return self._line.ask(call)

    def close(self) -> None:
        self._line.close()

    # -- telling

    def tell_fault(self, fault: Mapping[str, Any]) -> bool:
        """Whether this one is the first, and so is believed. Without the store this agent's word is all there is."""
        self.fault, text = dict(fault), json.dumps(fault)

        def tell(store: Store) -> bool:
            told = store.compare_set("fault", "", text).decode() == text
            store.add("news", 1)
            return told

        try:
            return self.ask(tell)
        except LineDead:
            return True

    def announce(self, key: str, text: str) -> None:
        """Tells something that needs no answer; the first one to say it is heard.

        Raises:
            LineDead: the store is gone.
        """

        def tell(store: Store) -> None:
            store.compare_set(key, "", text)
            store.add("news", 1)

        self.heard.setdefault(key, text)
        self.ask(tell)

    def hand_on(self, question: str) -> None:
        """Tells all agents what a command asks; the newest question counts.

        Raises:
            LineDead: the store is gone.
        """

        def tell(store: Store) -> None:
            store.set("asked", question)
            store.add("news", 1)

        self.heard["asked"] = question
        self.ask(tell)

    def tell_pace(self, text: str) -> None:
        """Tells how fast this agent's ranks are; never waits."""
        self._line.post(lambda store: store.set(f"pace/{self._place}", text))

    def paces(self, members: int) -> list[bytes]:
        """What each agent has told last of its ranks' pace.

        Raises:
            LineDead: the store is gone.
        """
        return list(self.ask(lambda store: store.multi_get([f"pace/{place}" for place in range(members)])))

    def count(self, key: str, more: int = 0) -> int:
        """How many agents have said so, this one included if `more` is 1.

        Raises:
            LineDead: the store is gone.
        """
        return int(self.ask(lambda store: store.add(key, more)))

    # -- hearing

    def look(self) -> None:
        """Takes the answer to the last question, and asks again when it is time. Never waits.

        Raises:
            LineDead: the store is gone.
        """
        self._line.require()
        now = time.monotonic()
        if now - self._looked > self._heartbeat / 2:  # this agent itself was away: stopped, or held up by a file server
            self._others = {place: (beat, now) for place, (beat, _) in self._others.items()}
        self._looked = now
        if self._look is not None and self._look.done():
            look, self._look = self._look, None
            found = self._line.answer(look)
            self._news = found["news"]
            self.heard.update(found["heard"])
            for place, beat in found["beats"].items():
                if beat != self._others.get(place, (b"", 0.0))[0]:
                    self._others[place] = beat, now
            if found["fault"] is not None and self.fault is None:
                self.fault = json.loads(found["fault"])
        if self._look is None and now >= self._next_look:
            self._next_look = now + self.pause
            beat = now >= self._next_beat
            if beat:
                self._next_beat = now + self._heartbeat / 10
                self._beats += 1
            self._look = self._line.post(self._question(beat))

    def lost(self) -> list[int]:
        """Places of agents without a beat for too long; only the one with the store looks."""
        now = time.monotonic()
        return [place for place, (_, since) in self._others.items() if now - since > self._heartbeat]

    def read_fault(self) -> None:
        """The first fault of the round, on whichever node."""
        with contextlib.suppress(LineDead):  # without the store, what this node knows
            text = self.ask(lambda store: store.get("fault") if store.check(["fault"]) else None)
            self.fault = json.loads(text) if text else self.fault

    def told_first(self) -> str | None:
        """The words of the first agent that was told to stop, if any was."""
        with contextlib.suppress(LineDead):
            return self.ask(lambda store: store.get("stop").decode() if store.check(["stop"]) else None)
        return None

    def leave(self) -> None:
        """Says that this agent was told to stop.

        Raises:
            LineDead: the store is gone.
        """
        self.ask(lambda store: store.set(f"leaving/{self._place}", "1"))

    def silent(self) -> list[str]:
        """Hosts of agents that do not say that they are told to stop as well."""
        keys, give_up = [f"leaving/{place}" for place in range(len(self._members))], time.monotonic() + HEARSAY
        try:
            self.leave()
            while not self.ask(lambda store: store.check(keys)) and time.monotonic() < give_up:
                time.sleep(0.05)
            said = self.ask(lambda store: [store.check([key]) for key in keys])
        except LineDead:
            return [f"{self._members[0].host}, which runs rank 0,"]
        return [member.host for member, told in zip(self._members, said, strict=True) if not told]

    def _question(self, beat: bool) -> Callable[[Store], dict[str, Any]]:
        place, size, beats, known = self._place, len(self._members), self._beats, self._news

        def ask(store: Store) -> dict[str, Any]:
            found: dict[str, Any] = {"heard": {}, "beats": {}, "fault": None}
            if beat:
                store.set(f"beat/{place}", str(beats))
                if place == 0 and size > 1:
                    found["beats"] = dict(enumerate(store.multi_get([f"beat/{each}" for each in range(size)])))
                    del found["beats"][0]
            found["news"] = store.add("news", 0)
            if found["news"] != known:
                for key in ("stop", "warning", "hang", "regroup", "asked"):
                    if store.check([key]):
                        found["heard"][key] = store.get(key).decode()
                if store.check(["fault"]):
                    found["fault"] = store.get("fault")
            return found

        return ask
