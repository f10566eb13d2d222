"""An agent's connection to the others: to all of them if it is the leader, else to the leader.

`poll` does all that is due: connections, heartbeats and, on the leader, decisions (see `coordinator`). An agent waits
nowhere else.
"""

from __future__ import annotations

import contextlib
import math
import select
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from launcher.agent.coordinator import Coordinator
from launcher.agent.failure_detection import Limits
from launcher.agent.signals import Signals
from launcher.failures.codes import FaultCode
from launcher.log_line import log_line
from launcher.rendezvous.channel import Channel, ChannelError, Hub, Message
from launcher.rendezvous.discovery import NO_ANSWER, ConnectBackoff, find_leader
from launcher.rendezvous.protocol import hello, not_reached, refusal
from launcher.rendezvous.rounds import LeaderLost, Member
from launcher.runs.events import Fault, Place

CLOSING = 10.0  # seconds to wait at the end until the other side has read everything
HEARTBEATS = 10  # heartbeats that are sent per launch.heartbeat

T = TypeVar("T")


class Link:
    """The connection of one agent to the others, for a whole attempt.

    own: this agent.
    status: the fields of this agent's heartbeat messages: see `coordinator`.
    coordinator: the leader's state of all agents; None on other agents.
    """

    def __init__(self, own: Member, *, limits: Limits, places: Sequence[Place], signals: Signals) -> None:
        """places: host and node of each agent of the job, by member index."""
        self.own, self._limits, self._places, self._signals = own, limits, places, signals
        self.status: dict[str, Any] = {}
        self.coordinator: Coordinator | None = None
        self._hub: Hub | None = None
        self._channel: Channel | None = None
        self._mine = own  # this agent, with the addresses of its connection
        self._inbox: list[Message] = []
        self._next_heartbeat = self._last_message = self._last_listen = 0.0

    @property
    def size(self) -> int:
        """Number of agents of the job, whether they take part in the round or not."""
        return len(self._places)

    @property
    def leads(self) -> bool:
        return self._hub is not None

    def descriptors(self) -> list[int]:
        """Returns the file descriptors of all connections and signals, which a forked rank has to close."""
        mine = self._hub.descriptors() if self._hub else [self._channel.fileno()] if self._channel else []
        return [number for number in [*mine, *self._signals.descriptors()] if number >= 0]

    # -- connections

    def _connect(self, host: str, ports: Sequence[int], secret: bytes, leader: int, timeout: float) -> None:
        self._disconnect()
        deadline, backoff, problem = time.monotonic() + timeout, ConnectBackoff(self.size), NO_ANSWER
        while True:
            found = find_leader(host, ports, secret, deadline, wake=self._signals.wake)
            self._signals.clear()
            if self._signals.ends() and problem != NO_ANSWER:  # the leader cannot know why
                log_line(f"{self.own.host} could not reach {host}: {problem}")
            self._signals.require_none()
            if isinstance(found, Channel):
                break
            problem = found or problem
            if time.monotonic() >= deadline:
                raise not_reached(self.own, self._places[leader], host, timeout, problem)
            _wait(backoff.pause(), self._signals.wake)
        self._channel, self._inbox = found, []  # drops the messages of an earlier leader
        self._last_message = self._last_listen = time.monotonic()
        first = hello(self.own, found)
        self._mine = Member.of(first["member"])
        self.send(first)

    def _disconnect(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _stop_leading(self) -> None:
        if self._hub is not None:
            self._hub.close()
            self._hub = self.coordinator = None
        self._disconnect()

    def close(self) -> None:
        """Closes all connections at the end of the attempt, once the other side has read everything (CLOSING seconds).

        The leader first tells agents that still wait for a round that the attempt is over.
        """
        if self._hub is not None and self.coordinator is not None:
            if number := self._signals.ends():  # agents that wait for a round, or for a preflight, have to know
                fault = Fault(code=FaultCode.STOPPED_EARLY, host=self.own.host, signal=number.name)
                self.coordinator.refuse_waiting(fault)
                self._deliver()
            waiting = self.coordinator.waiting
            self._hub.broadcast(waiting, {"type": "over", "final": True})
            # The connection of a lost member may be half-open: the other end would never close it.
            self._hub.drain([*self.coordinator.present(), *waiting], CLOSING)
            self._hub.close()
            self._hub = None
        elif self._channel is not None:
            self._finish(self._channel)
            self._disconnect()

    def _finish(self, channel: Channel) -> None:
        # Closing a connection with unread data would reset it, and the leader would lose what it has not read yet
        give_up = time.monotonic() + CLOSING
        with contextlib.suppress(ChannelError):
            while channel.unsent and (left := give_up - time.monotonic()) > 0:
                _wait(left, channel.fileno(), write=True)
                channel.receive()
                channel.flush()
            channel.finish()
            while (left := give_up - time.monotonic()) > 0:
                _wait(left, channel.fileno())
                channel.receive()

    # -- messages

    def send(self, message: Message) -> None:
        """Sends a message to the leader, which may be this agent. If that fails, `poll` returns `leader_lost`."""
        if self.coordinator is not None:
            self.coordinator.receive(self.own.index, message, time.monotonic())
            self._deliver()
        elif self._channel is not None:
            try:
                self._channel.send(message)
            except ChannelError as error:
                self._lose_leader(str(error))

    def heartbeat(self) -> None:
        """Makes the next `poll` send a heartbeat with the present `status` at once."""
        self._next_heartbeat = 0.0

    def poll(self, timeout: float) -> list[Message]:
        """Returns the messages to this agent; waits at most `timeout` seconds for one, or for a signal.

        A lost leader is returned once, as a message of type `leader_lost` with its `reason`.
        """
        now = time.monotonic()
        if now >= self._next_heartbeat:
            self._next_heartbeat = now + self._limits.heartbeat / HEARTBEATS
            self._heartbeat()
        timeout = 0.0 if self._inbox else max(0.0, min(timeout, self._next_heartbeat - now))
        if self._hub is not None:
            assert self.coordinator is not None
            for index, message in self._hub.poll(min(timeout, self.coordinator.next_look(now))):
                now = time.monotonic()
                if message is None:
                    self.coordinator.disconnected(index, now)
                else:
                    self.coordinator.receive(index, message, now)
            self.coordinator.tick(time.monotonic())
            self._deliver()
        elif self._channel is not None:
            self._listen(self._channel, timeout)
        else:
            _wait(timeout, self._signals.wake)
        self._signals.clear()
        inbox, self._inbox = self._inbox, []
        return inbox

    def keep_alive(self) -> None:
        """Sends and receives heartbeats without waiting, and keeps messages for `poll`. Call it during other work."""
        self._inbox = [*self.poll(0.0), *self._inbox]

    def _heartbeat(self) -> None:
        self.send({"type": "heartbeat", **self.status})
        self.status.pop("pace", None)
        if self._hub is not None and self.coordinator is not None:
            self._hub.broadcast(list(self._hub.channels), {"type": "heartbeat"})

    def _deliver(self) -> None:
        assert self.coordinator is not None
        while outbox := self.coordinator.take_outbox():
            for indices, message in outbox:
                if self.own.index in indices:
                    self._inbox.append(message)
                if self._hub is not None:
                    self._hub.broadcast([index for index in indices if index != self.own.index], message)

    def _listen(self, channel: Channel, timeout: float) -> None:
        ready = _wait(timeout, self._signals.wake, channel.fileno(), write=bool(channel.unsent))
        now = time.monotonic()
        if now - self._last_listen > self._limits.heartbeat / 2:  # this agent itself was suspended, or held up
            self._last_message = now
        self._last_listen = now
        try:
            if channel.fileno() in ready and channel.unsent:
                channel.flush()
            messages = channel.receive() if channel.fileno() in ready else []
        except ChannelError as error:
            self._lose_leader(str(error))
            return
        if messages:
            self._last_message = now
        elif now - self._last_message > self._limits.heartbeat:
            self._lose_leader(f"no heartbeat for {self._limits.heartbeat:g} s (launch.heartbeat)")
            return
        self._inbox += [message for message in messages if message.get("type") != "heartbeat"]

    def _lose_leader(self, reason: str) -> None:
        if self._channel is not None:
            with contextlib.suppress(ChannelError):  # messages that arrived before a send failed
                while messages := self._channel.receive():
                    self._inbox += [message for message in messages if message.get("type") != "heartbeat"]
        self._disconnect()
        self._inbox.append({"type": "leader_lost", "reason": reason})

    # -- values that all agents exchange while no ranks run

    def collect(self, key: str, value: Any, timeout: float) -> dict[int, Any]:
        """On the leader: returns the values that the members of the round have reported for a key, by member index.

        timeout: seconds after which it returns without the values that are missing.
        Raises StopRequested: a signal asks this agent to stop.
        """
        assert self.coordinator is not None
        self.send({"type": "report", "key": key, "value": value})
        give_up = time.monotonic() + timeout
        others: list[Message] = []
        enough, looked = (
            0,
            -math.inf,
        )  # agents are counted when this many have reported, or each second: some may be lost
        try:
            while True:
                found, now = self.coordinator.reports.get(key, {}), time.monotonic()
                if len(found) >= enough or now >= min(looked + 1.0, give_up):
                    awaited, looked = self.coordinator.present(), now
                    if awaited <= found.keys() or now >= give_up:
                        return dict(found)
                    enough = len(awaited | found.keys())
                others += self.poll(min(1.0, give_up - now))
                self._signals.require_none()
        finally:
            self._inbox = [*others, *self._inbox]

    def publish(self, key: str, value: Any) -> None:
        """On the leader: sends a value for a key to all other members of the round, which wait in `answer`."""
        assert self.coordinator is not None and self._hub is not None
        others = [index for index in self.coordinator.members if index != self.own.index]
        self._hub.broadcast(others, {"type": "answer", "key": key, "value": value})

    def answer(self, key: str, timeout: float) -> Any:
        """On other agents: waits at most `timeout` seconds for the leader's value for a key, and returns it.

        Raises LeaderLost: the leader is lost, or has published nothing in time.
        Raises RendezvousError: the leader has refused this agent.
        Raises StopRequested: a signal asks this agent to stop.
        """

        def handle(message: Message) -> tuple[Any] | None:
            if message["type"] == "leader_lost":
                raise LeaderLost(message["reason"])
            if message["type"] == "refused":
                raise refusal(message)
            return (message["value"],) if message["type"] == "answer" and message["key"] == key else None

        if (found := self._await(handle, timeout)) is None:
            raise LeaderLost(f"no answer for {timeout:g} s")
        return found[0]

    def _await(self, handle: Callable[[Message], T | None], timeout: float | None) -> T | None:
        # Keeps the messages after that one for `poll`
        give_up = time.monotonic() + (1.0 if timeout is None else timeout)
        while (left := give_up - time.monotonic()) > 0:
            messages = self.poll(min(1.0, left))
            for place, message in enumerate(messages):
                if (result := handle(message)) is not None:
                    self._inbox = [*messages[place + 1 :], *self._inbox]
                    return result
            self._signals.require_none()
        return None


def _wait(timeout: float, *descriptors: int, write: bool = False) -> set[int]:
    # Uses poll(2), since select(2) takes no descriptors above 1023
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    if write:
        poll.register(descriptors[-1], select.POLLIN | select.POLLOUT)
    return {descriptor for descriptor, _ in poll.poll(timeout * 1000)}
