"""One agent's side of the control connections: it leads, or is connected to the agent that does.

`poll` does all that is to be done about connections, heartbeats and, on the leader, about decisions (see
`coordinator`); whoever waits for anything in an agent waits there.
"""

from __future__ import annotations

import contextlib
import select
import socket
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from launcher.agent.coordinator import Coordinator, Limits
from launcher.agent.restart_policy import History
from launcher.agent.signals import Signals
from launcher.failures import text
from launcher.failures.codes import FaultCode
from launcher.files.shared_files import Ok, exists
from launcher.rendezvous import interfaces, protocol
from launcher.rendezvous.channel import Channel, ChannelError, Message
from launcher.rendezvous.hub import Hub
from launcher.rendezvous.membership import Round, Rounds
from launcher.rendezvous.protocol import ConnectBackoff, LeaderLost, Meeting, Member, RendezvousError
from launcher.worker.hangs import Blamed

CLOSING = 10.0  # seconds that the leader waits for the others to have read the outcome
REJOIN = 5.0  # seconds that an agent tries to reach the leader of a round before it looks again which that is
FILE_DELAY = 90.0  # seconds beyond a heartbeat in which a file's time reaches another node
BEATS = 10  # in a heartbeat
LOOK = 0.2  # seconds between two looks into the attempt's folder

T = TypeVar("T")


class Overtaken(Exception):
    """This agent's round is over, and others have begun the next one without it."""


class AttemptOver(Exception):
    """The attempt ended while this agent waited to take part."""


class Control:
    """The control connection of one agent, for a whole attempt.

    Attributes:
        me: this agent.
        status: how its ranks are, for its heartbeats: see `beat` in `coordinator`.
        coordinator: on the leader.
    """

    def __init__(
        self, me: Member, *, attempt: Path, limits: Limits, names: Sequence[str], hosts: Sequence[str],
        secret: bytes, key: str, port_range: tuple[int, int], join_timeout: float, signals: Signals,
        blame: Callable[[Iterable[Mapping[str, Any]]], Blamed],
    ) -> None:  # fmt: skip
        """
        Args:
            me: this agent.
            attempt: the attempt's folder.
            limits: of the run.
            names: what to call each member of the job in an error.
            hosts: where each of them is reached, with the suffix of the fabric.
            secret: of the run.
            key: tells this attempt from every other.
            port_range: ports that a leader may use.
            join_timeout: seconds in which all must have come to the first round.
            signals: of this process.
            blame: see `Coordinator`.
        """
        self.me, self._limits, self._names, self._hosts, self._signals = me, limits, names, hosts, signals
        self._secret, self._key, self._port_range = protocol.secret_of(secret, key), key, port_range
        self._join_timeout, self._blame = join_timeout, blame
        self._rounds, self._exit_code = Rounds(attempt / "rounds"), attempt / "exit_code"
        self._loopback = len(set(hosts)) == 1
        self.status: dict[str, Any] = {}
        self.coordinator: Coordinator | None = None
        self._hub: Hub | None = None
        self._channel: Channel | None = None
        self._mine = me  # with the addresses of the connection
        self._inbox: list[Message] = []
        self._store_listener: socket.socket | None = None
        self._leader_lost = ""
        self._next_beat = self._heard = self._looked = 0.0
        self._round = 0

    @property
    def size(self) -> int:
        """Members of the job."""
        return len(self._names)

    @property
    def elastic(self) -> bool:
        """Whether fewer than all members can go on."""
        return self._limits.least < self.size

    @property
    def leads(self) -> bool:
        return self._hub is not None

    def names(self, indices: Iterable[int]) -> str:
        """Returns the names of these members, for messages."""
        return ", ".join(self._names[index] for index in indices)

    def begun(self, number: int) -> bool:
        """Whether some agents are in this round; a file server that does not answer is waited for.

        Raises:
            RendezvousError: it has not answered for too long.
            StopRequested: a signal says so.
        """
        return self._read(lambda: self._rounds.begun(number))

    def others_begin(self, number: int) -> bool:
        """Whether others begin this round without this agent, in the time that they need for it.

        Raises:
            RendezvousError: nobody can tell.
            StopRequested: a signal says so.
        """
        give_up = time.monotonic() + self._limits.heartbeat * 2 + protocol.EXCHANGE
        while not self.begun(number):
            if time.monotonic() >= give_up:
                return False
            self._look()
        return True

    def _look(self) -> None:
        """Waits for a moment; what has arrived meanwhile waits for `poll`."""
        others, self._inbox = self._inbox, []
        self._inbox = [*others, *self.poll(LOOK)]
        self._signals.require_none()

    def _read(self, read: Callable[[], T]) -> T:
        """Returns the result of a read of the rounds. Retries it for the join timeout while the file server fails."""
        give_up = time.monotonic() + self._join_timeout
        while True:
            try:
                return read()
            except OSError as error:
                if time.monotonic() >= give_up:
                    words = f"{self.me.host} cannot read the rounds of this attempt: {error}"
                    raise RendezvousError(words, final=True, code=FaultCode.UNREADABLE) from None
            self._look()

    def _attempt_over(self) -> bool:
        """Whether the attempt is known to have ended; whoever cannot tell now looks again later."""
        return exists(self._exit_code, retry_seconds=0) == Ok(True)

    def descriptors(self) -> list[int]:
        """What a forked rank must not keep."""
        mine = self._hub.descriptors() if self._hub else [self._channel.fileno()] if self._channel else []
        return [number for number in [*mine, *self._signals.descriptors()] if number >= 0]

    # -- messages

    def send(self, message: Message) -> None:
        """Sends to the leader, which may be this agent."""
        if self.coordinator is not None:
            self.coordinator.receive(self.me.index, message, time.monotonic())
            self._deliver()
        elif self._channel is not None:
            try:
                self._channel.send(message)
            except ChannelError as error:
                self._lose_leader(str(error))

    def beat(self) -> None:
        """Sends the status with a heartbeat at the next `poll`, without waiting for its interval."""
        self._next_beat = 0.0

    def poll(self, timeout: float) -> list[Message]:
        """Waits at most `timeout` seconds, or until a signal or a message arrives; the messages to this agent.

        A leader that is lost is told once, as a message of type `leader_lost` with its `reason`.
        """
        now = time.monotonic()
        if now >= self._next_beat:
            self._next_beat = now + self._limits.heartbeat / BEATS
            self._beat(now)
        timeout = 0.0 if self._inbox else max(0.0, min(timeout, self._next_beat - now))
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
            self._listen(timeout)
        else:
            _wait(timeout, self._signals.wake)
        self._signals.clear()
        inbox, self._inbox = self._inbox, []
        return inbox

    def keep_alive(self) -> None:
        """Sends and receives heartbeats while the agent waits for something else. Messages are kept for `poll`."""
        self._inbox = [*self.poll(0.0), *self._inbox]

    def _beat(self, now: float) -> None:
        self.send({"type": "beat", **self.status})
        self.status.pop("pace", None)
        if self._hub is not None and self.coordinator is not None:
            self._hub.broadcast(list(self._hub.channels), {"type": "beat"})
            if self.elastic:  # somebody may wait to join
                self._rounds.show_life(self._round)

    def _deliver(self) -> None:
        assert self.coordinator is not None
        while outbox := self.coordinator.take_outbox():
            for indices, message in outbox:
                if self.me.index in indices:
                    self._inbox.append(message)
                if self._hub is not None:
                    self._hub.broadcast([index for index in indices if index != self.me.index], message)

    def _listen(self, timeout: float) -> None:
        channel = self._channel
        assert channel is not None
        ready = _wait(timeout, self._signals.wake, channel.fileno(), write=bool(channel.unsent))
        now = time.monotonic()
        if now - self._looked > self._limits.heartbeat / 2:  # this agent itself was away
            self._heard = now
        self._looked = now
        try:
            if channel.fileno() in ready and channel.unsent:
                channel.flush()
            messages = channel.receive() if channel.fileno() in ready else []
        except ChannelError as error:
            self._lose_leader(str(error))
            return
        if messages:
            self._heard = now
        elif now - self._heard > self._limits.heartbeat:
            self._lose_leader(f"no heartbeat for {self._limits.heartbeat:g} s (launch.heartbeat)")
            return
        self._inbox += [message for message in messages if message.get("type") != "beat"]

    def _lose_leader(self, reason: str) -> None:
        if self._channel is not None:
            with contextlib.suppress(ChannelError):  # its last words, if something of ours could not be sent
                while messages := self._channel.receive():
                    self._inbox += [message for message in messages if message.get("type") != "beat"]
        self._disconnect()
        self._inbox.append({"type": "leader_lost", "reason": reason})

    def _disconnect(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def close(self) -> None:
        """Ends the connections; the leader stays until the others have got everything that it has sent."""
        if self._hub is not None and self.coordinator is not None:
            if (
                number := self._signals.ends()
            ):  # those that wait for a round, or for a preflight, hear why there is none
                self.coordinator.stop_gathering(text.asked_to_stop(self.me.host, number.name))
                self._deliver()
            waiting = self.coordinator.waiting
            self._hub.broadcast(waiting, {"type": "over", "final": True})
            # The connection of a member that is lost may be half-open: it would never be closed by the other end.
            self._hub.drain([*self.coordinator.present(), *waiting], CLOSING)
            self._hub.close()
            self._hub = None
        elif self._channel is not None:
            self._finish(self._channel)
            self._disconnect()

    def _finish(self, channel: Channel) -> None:
        """Waits until the leader has read everything. (To close a connection on which something is still to be read
        resets it, and what the leader has not read by then is lost.)"""
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

    # -- values that all agents exchange while no ranks run

    def collect(self, key: str, value: Any, timeout: float) -> dict[int, Any]:
        """On the leader: what each member of the round has reported; who has not in time is missing.

        Raises:
            StopRequested: a signal says so.
        """
        assert self.coordinator is not None
        self.send({"type": "report", "key": key, "value": value})
        give_up = time.monotonic() + timeout
        others: list[Message] = []
        try:
            while True:
                found = self.coordinator.reports.get(key, {})
                awaited = self.coordinator.present()
                if awaited <= found.keys() or time.monotonic() >= give_up:
                    return dict(found)
                others += self.poll(give_up - time.monotonic())
                self._signals.require_none()
        finally:
            self._inbox = [*others, *self._inbox]

    def publish(self, key: str, value: Any) -> None:
        """On the leader: sends a value to all other members of the round."""
        assert self.coordinator is not None and self._hub is not None
        others = [index for index in self.coordinator.members if index != self.me.index]
        self._hub.broadcast(others, {"type": "answer", "key": key, "value": value})

    def answer(self, key: str, timeout: float) -> Any:
        """On the others: what the leader has published.

        Raises:
            LeaderLost: it is gone, or says nothing in time.
            RendezvousError: it ends the attempt.
            StopRequested: a signal says so.
        """
        give_up = time.monotonic() + timeout
        while (left := give_up - time.monotonic()) > 0:
            messages = self.poll(left)
            for place, message in enumerate(messages):
                if message["type"] == "leader_lost":
                    raise LeaderLost(message["reason"])
                if message["type"] == "refused":
                    raise protocol.refusal(message)
                if message["type"] == "answer" and message["key"] == key:
                    self._inbox = [*messages[place + 1 :], *self._inbox]
                    return message["value"]
            self._signals.require_none()
        raise LeaderLost(f"no answer for {timeout:g} s")

    # -- rounds

    def first(self) -> tuple[History, Meeting]:
        """Round 0; or whichever comes next, if that has begun.

        Raises:
            RendezvousError: not all came in time.
            AttemptOver: the attempt ended before this agent could take part.
            StopRequested: a signal says so.
        """
        if self._read(self._rounds.latest) is not None:
            if self.elastic:
                return self.join()
            raise RendezvousError(f"{self._names[self.me.index]} came too late: the attempt has begun", final=True)
        return self._round_of(History(), 0, range(self.size), self._join_timeout)

    def next(self, history: History, before: Meeting, lost: Collection[int]) -> tuple[History, Meeting]:
        """The next round, of those that were in the one before, and of those that wait.

        Args:
            history: with the number of the round.
            before: the meeting of the round that is over.
            lost: indices of members that are gone.

        Raises:
            RendezvousError: too few came.
            Overtaken: the others have begun without this agent.
            StopRequested: a signal says so.
        """
        left = sorted(member.index for member in before.members if member.index not in lost)
        leader = before.members[0].index
        heartbeat = self._limits.heartbeat
        if (self.leads or self._channel is not None) and leader in left:
            try:
                if self.leads:
                    return self._lead(history, left, heartbeat)
                self.send({"type": "ready", "round": history.round})
                return self._await_begin(heartbeat * 2 + protocol.EXCHANGE)
            except RendezvousError as error:
                if self.begun(history.round):
                    raise Overtaken(str(error)) from None
                if error.final:
                    raise
        self._disconnect()
        left = [index for index in left if index != leader or self.me.index == leader]
        problem = RendezvousError("nobody is left", final=True)
        for place, leader in enumerate(left):
            try:
                return self._round_of(history, leader, left[place:], heartbeat)
            except RendezvousError as error:
                problem = error
                if self.begun(history.round):
                    raise Overtaken(str(error)) from None
                if error.final:
                    break
        raise problem

    def join(self) -> tuple[History, Meeting]:
        """Waits until the attempt begins a round, and takes part in it.

        Raises:
            AttemptOver: the attempt ended first.
            StopRequested: a signal says so.
        """
        self._stop_leading()
        seen, since = "", time.monotonic()
        latest: Round | None = None
        while not self._attempt_over():
            with contextlib.suppress(OSError):  # a file server that does not answer is no sign of an end
                latest = self._rounds.latest()
                if latest is None:
                    raise AttemptOver("its rounds are gone")
            alive = seen if latest is None else self._rounds.sign_of_life(latest.number)
            if alive != seen:
                seen, since = alive, time.monotonic()
            elif time.monotonic() - since > self._limits.heartbeat + FILE_DELAY:
                raise AttemptOver("it has shown no sign of life for so long")
            if latest is not None:
                with contextlib.suppress(RendezvousError):  # not yet
                    self._connect(self._hosts[latest.leader], [latest.port], latest.leader, REJOIN)
                    history, meeting = self._await_begin(None)
                    return replace(history, listened=True), meeting
            self.poll(LOOK)
            self._signals.require_none()
        raise AttemptOver("it has ended")

    def _round_of(
        self, history: History, leader: int, wanted: Collection[int], timeout: float
    ) -> tuple[History, Meeting]:
        """A round of which this agent is the leader, or is not yet connected to it."""
        ports = protocol.candidate_ports(protocol.secret_of(self._secret, f"{history.round}"), self._port_range)
        if leader == self.me.index:
            if self._hub is None:
                address = protocol.LOOPBACK if self._loopback else interfaces.address_of(self._hosts[leader])
                listener = protocol.listen(ports, address)
                others = [index for index in range(self.size) if index != leader]
                self._hub = Hub(listener, self._secret, members=others, wake=self._signals.wake)
                self._inbox = []
                self.coordinator = Coordinator(
                    self._limits, self._names, self.me, claim=self._claim, listen=self._listen_for_ranks,
                    blame=self._blame,
                )  # fmt: skip
            return self._lead(history, wanted, timeout)
        deadline = time.monotonic() + timeout
        # A little earlier than the leader gives up: who could not reach it knows why, and the leader does not.
        self._connect(self._hosts[leader], ports, leader, timeout - min(3.0, timeout / 5))
        return self._await_begin(deadline - time.monotonic() + 15)

    def _lead(self, history: History, wanted: Collection[int], timeout: float) -> tuple[History, Meeting]:
        assert self._hub is not None and self.coordinator is not None
        self._store_listener = None
        try:
            self.coordinator.gather(history, wanted, timeout, time.monotonic())
            self._deliver()
            history, meeting = self._await_begin(None)
        except BaseException:
            if self._store_listener is not None:
                self._store_listener.close()
            raise
        return history, replace(meeting, listener=self._store_listener)

    def _listen_for_ranks(self, members: Sequence[Member]) -> int:
        """The port of the round's store, which listens where the members have reached this agent.

        Raises:
            RendezvousError: none is free.
        """
        ports = protocol.free_ports(self._port_range)
        self._store_listener = protocol.listen(ports, protocol.where_reached(members))
        return int(self._store_listener.getsockname()[1])

    def _claim(self, number: int, members: Sequence[Member]) -> str | None:
        assert self._hub is not None
        try:
            return self._rounds.claim(number, self.me, self._hub.port, members, self._names[self.me.index])
        except OSError as error:  # a full disk, or a file server that does not answer
            if number and self.elastic:  # the other side of a partition may have claimed it
                return f"{self.me.host} cannot make round {number} known: {error}"
            print(f"launcher: cannot make round {number} known: {error}", file=sys.stderr, flush=True)
            return None

    def _connect(self, host: str, ports: Sequence[int], leader: int, timeout: float) -> None:
        """Finds the leader, and says who this is.

        Raises:
            RendezvousError: it was not found in time.
        """
        self._disconnect()
        deadline, backoff, problem = time.monotonic() + timeout, ConnectBackoff(self.size), protocol.NO_ANSWER
        host = protocol.LOOPBACK if self._loopback else host
        while True:
            found = protocol.find_leader(host, ports, self._secret, deadline, wake=self._signals.wake)
            self._signals.clear()
            self._signals.require_none()
            if isinstance(found, Channel):
                break
            problem = found or problem
            if time.monotonic() >= deadline:
                called = f"{self._hosts[leader]} ({f'member {leader}' if leader else 'rank 0'})"
                raise RendezvousError(
                    f"{self.me.host} could not reach {called} within {timeout:g} s: {problem}", accused=[leader]
                )
            _wait(backoff.pause(), self._signals.wake)
        self._channel, self._inbox = found, []  # what a leader before this one has said does not count any more
        self._heard = self._looked = time.monotonic()
        first = protocol.hello(self.me, found)
        self._mine = Member.of(first["member"])
        self.send(first)

    def _await_begin(self, timeout: float | None) -> tuple[History, Meeting]:
        """The round that the leader begins.

        Raises:
            RendezvousError: it does not begin one with this agent.
        """
        give_up = None if timeout is None else time.monotonic() + timeout
        while True:
            left = 1.0 if give_up is None else min(1.0, give_up - time.monotonic())
            if left <= 0:
                raise RendezvousError(f"{self.me.host} waited for the others, and heard nothing of its leader in time")
            messages = self.poll(left)
            for place, message in enumerate(messages):
                if message["type"] == "begin":
                    self._inbox = [*messages[place + 1 :], *self._inbox]
                    return self._begin(message)
                if message["type"] == "refused":
                    raise protocol.refusal(message, from_leader=not self.leads)
                if message["type"] == "leader_lost":
                    raise RendezvousError(f"{self.me.host} lost its leader while it waited: {message['reason']}")
                if message["type"] == "over" and message["final"]:
                    raise AttemptOver("it has ended")
            self._signals.require_none()
            if give_up is None and not self.leads and self._attempt_over():
                raise AttemptOver("it has ended")

    def _begin(self, message: Message) -> tuple[History, Meeting]:
        history = History(**message["history"])
        self._round = history.round
        self.status = {}
        if self.leads:
            return history, protocol.meeting_of_leader(message["port"], [*map(Member.of, message["members"])])
        meeting = protocol.meeting_of(dict(message), self._mine)
        if meeting.place_of(self.me.index) is None:
            raise RendezvousError(f"{self._names[self.me.index]} came too late: the others have begun without it")
        return history, meeting

    def _stop_leading(self) -> None:
        """An agent that the others have overtaken leads nobody."""
        if self._hub is not None:
            self._hub.close()
            self._hub = self.coordinator = None
        self._disconnect()


def _wait(timeout: float, *descriptors: int, write: bool = False) -> set[int]:
    """Waits until one of the descriptors is ready; those that are. (select() takes none above 1023.)

    Args:
        timeout: seconds.
        descriptors: to be read.
        write: the last of them is to be written as well.
    """
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    if write:
        poll.register(descriptors[-1], select.POLLIN | select.POLLOUT)
    return {descriptor for descriptor, _ in poll.poll(timeout * 1000)}
