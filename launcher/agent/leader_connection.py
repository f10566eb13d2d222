"""An agent's connection to the leader, or as the leader to all agents: joins rounds, sends and receives.

`poll` does all that is due: connections, heartbeats and, on the leader, decisions (see `leader`). An agent waits
nowhere else.
"""

from __future__ import annotations

import contextlib
import math
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from launcher.agent.leader import Coordinator
from launcher.agent.policy import History
from launcher.errors import is_transient
from launcher.failures import messages
from launcher.failures.codes import FaultCode
from launcher.files.retried_reads import Ok, backoff, exists
from launcher.formatting import log_line
from launcher.plan.plan import JobPlan
from launcher.rendezvous import rounds
from launcher.rendezvous.rounds import LeaderLost, Member, Rendezvous, RendezvousError
from launcher.rendezvous.signed_channel import Channel, ChannelError, Hub, Message, wait_for
from launcher.runs.directory import Attempt
from launcher.runs.events import Fault, Place

CLOSING = 10.0  # seconds to wait at the end until the other side has read everything
HEARTBEATS = 10  # heartbeats that are sent per launch.heartbeat
REJOIN = 5.0  # seconds for which an agent tries to connect to a round's leader before it reads the newest round again
FILE_DELAY = 90.0  # seconds, besides launch.heartbeat, until other nodes see the new mtime of a file
LOOK = 0.2  # seconds between two polls of the attempt's directory

ENDS = (signal.SIGTERM, signal.SIGINT)  # SIGKILL follows soon
WARNS = (signal.SIGUSR1, signal.SIGUSR2)  # Slurm's --signal, some time before the end

T = TypeVar("T")


class Overtaken(Exception):
    """This agent's round is over, and other agents have started the next one without it."""


class AttemptOver(Exception):
    """The attempt ended while this agent waited to take part."""


class NobodyLeads(Exception):
    """This agent waits to take part, and has seen no heartbeat of a leader for too long; the attempt may go on."""


class AskedToStop(Exception):
    """A signal asked this agent to stop while it waited for other agents. number: the signal."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number.name)
        self.number = number


class Signals:
    """Records the signals of this process after `install`; `wake` is readable when one arrives, SIGCHLD included."""

    def __init__(self) -> None:
        self._numbers: list[signal.Signals] = []
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self.wake = self._reader.fileno()

    def install(self) -> None:
        for number in (*ENDS, *WARNS):
            signal.signal(number, self._take)
        signal.signal(signal.SIGCONT, signal.SIG_IGN)  # Slurm sends it before SIGTERM
        signal.signal(signal.SIGCHLD, lambda *_: None)  # without a handler it would not wake a select
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)

    def clear(self) -> None:
        """Empties `wake`. Call it after each wait, before handling events."""
        with contextlib.suppress(BlockingIOError):
            while self._reader.recv(4096):
                pass

    def ends(self) -> signal.Signals | None:
        """Returns the first stop request that arrived; None: none did."""
        return next((number for number in self._numbers if number in ENDS), None)

    def warns(self) -> signal.Signals | None:
        """Returns the first announcement of the end that arrived; None: none did."""
        return next((number for number in self._numbers if number in WARNS), None)

    def require_none(self) -> None:
        if (number := self.ends()) is not None:
            raise AskedToStop(number)

    def ignore(self) -> None:
        for number in (*ENDS, *WARNS):
            signal.signal(number, signal.SIG_IGN)

    def descriptors(self) -> list[int]:
        return [self._reader.fileno(), self._writer.fileno()]

    def _take(self, number: int, _: object) -> None:
        self._numbers.append(signal.Signals(number))


def in_turn(left: Sequence[int], lost: int, places: Sequence[Place]) -> list[int]:
    """Returns the agents that may lead next, by index, in the order in which all try them, after the leader is lost.

    A node is lost with all of its agents (launch=tasks), and each that is tried in vain takes launch.heartbeat: so one
    of each node comes first, and those of the lost leader's node last.
    """
    turn: Counter[int] = Counter()
    order = []  # by index: also of those that only some agents know to be lost, since all have to agree
    for place in places:
        order.append((place.node == places[lost].node, turn[place.node]))
        turn[place.node] += 1
    return sorted(left, key=lambda index: (order[index], index))


class LeaderConnection:
    """One agent's connection to the others for a whole attempt, and its way into each round: start, join, rejoin."""

    def __init__(
        self, own: Member, *, plan: JobPlan, attempt: Attempt, places: Sequence[Place], hosts: Sequence[str],
        secret: bytes, key: str, signals: Signals,
    ) -> None:  # fmt: skip
        # places, hosts (to connect to, with cluster.host_suffix): by member index. key: id of this attempt, from which
        # its secret is derived
        self.own, self._plan, self._places, self._signals = own, plan, places, signals
        self._heartbeat = plan.launch.heartbeat
        self.status: dict[str, Any] = {}  # the fields of this agent's heartbeats
        self.coordinator: Coordinator | None = None  # on the leader
        self._hub: Hub | None = None
        self._channel: Channel | None = None
        self._mine = own  # this agent, with the addresses of its connection
        self._inbox: list[Message] = []
        self._next_heartbeat = self._last_message = self._last_listen = 0.0
        self._hosts, self._secret, self._attempt = hosts, rounds.secret_of(secret, key), attempt
        self._rounds = rounds.Rounds(attempt.path / "rounds")
        self._loopback = len(set(hosts)) == 1
        self._store_listener: socket.socket | None = None
        self._round = 0
        self.left_out = False  # whether a preflight has left this agent out: the others go on without it
        self._spare = False  # whether this agent waits until another one is lost

    @property
    def size(self) -> int:
        """Number of agents of the job, whether they take part in the round or not."""
        return len(self._places)

    @property
    def leads(self) -> bool:
        return self._hub is not None

    @property
    def follows(self) -> bool:
        """Whether this agent is connected to another one, which leads."""
        return self._channel is not None

    def descriptors(self) -> list[int]:
        """Returns the file descriptors of all connections and signals, which a forked rank has to close."""
        mine = self._hub.descriptors() if self._hub else [self._channel.fileno()] if self._channel else []
        return [number for number in [*mine, *self._signals.descriptors()] if number >= 0]

    # -- connections

    def _connect(self, host: str, ports: Sequence[int], secret: bytes, leader: int, timeout: float) -> None:
        def look_at_signals(problem: str) -> None:
            self._signals.clear()
            if self._signals.ends() and problem != rounds.NO_ANSWER:  # the leader cannot know why
                log_line(f"{self.own.host} could not reach {host}: {problem}")
            self._signals.require_none()

        self._disconnect()
        self._channel, self._mine = rounds.connect(
            self.own, self._places[leader], host, ports, secret, timeout, self.size, wake=self._signals.wake,
            failed=look_at_signals,
        )  # fmt: skip
        self._inbox = []  # drops the messages of an earlier leader
        self._last_message = self._last_listen = time.monotonic()

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
        """Closes all connections once the other side has read everything; tells agents that still wait of the end."""
        if self._hub is not None and self.coordinator is not None:
            if number := self._signals.ends():  # agents that wait for a round, or for a preflight, have to know
                fault = Fault(code=FaultCode.STOPPED_EARLY, host=self.own.host, signal=number.name)
                self.coordinator.refuse_waiting(fault)
                self._deliver()
            verdict, waiting = self.coordinator.verdict, self.coordinator.waiting
            if self.left_out or (verdict is not None and verdict.restarts):  # the others may need the spare nodes
                waiting = []
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
                wait_for(left, channel.fileno(), write=True)
                channel.receive()
                channel.flush()
            channel.finish()
            while (left := give_up - time.monotonic()) > 0:
                wait_for(left, channel.fileno())
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
            self._next_heartbeat = now + self._heartbeat / HEARTBEATS
            self.send({"type": "heartbeat", **self.status})
            if self._hub is not None:
                self._hub.broadcast(list(self._hub.channels), {"type": "heartbeat"})
                if self.elastic:  # an agent may wait to join
                    self._rounds.heartbeat(self._round)
        timeout = 0.0 if self._inbox else max(0.0, min(timeout, self._next_heartbeat - now))
        if self._hub is not None:
            assert self.coordinator is not None
            self.coordinator.receive(self.own.index, {"type": "heartbeat", **self.status}, now)  # its step
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
            wait_for(timeout, self._signals.wake)
        self._signals.clear()
        inbox, self._inbox = self._inbox, []
        return inbox

    def keep_alive(self, seconds: float) -> None:
        """Sends and receives for that time, and keeps messages for `poll`. Raises AskedToStop."""
        others, self._inbox = self._inbox, []
        self._inbox = [*others, *self.poll(seconds)]
        self._signals.require_none()

    def _deliver(self) -> None:
        assert self.coordinator is not None
        while outbox := self.coordinator.take_outbox():
            for indices, message in outbox:
                if self.own.index in indices:
                    self._inbox.append(message)
                if self._hub is not None:
                    self._hub.broadcast([index for index in indices if index != self.own.index], message)

    def _listen(self, channel: Channel, timeout: float) -> None:
        ready = wait_for(timeout, self._signals.wake, channel.fileno(), write=bool(channel.unsent))
        now = time.monotonic()
        if now - self._last_listen > self._heartbeat / 2:  # this agent itself was suspended, or held up
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
        elif now - self._last_message > self._heartbeat:
            self._lose_leader(f"no heartbeat for {self._heartbeat:g} s (launch.heartbeat)")
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
        """On the leader: returns the members' values for a key, by index, that came in time; raises AskedToStop."""
        assert self.coordinator is not None
        self.send({"type": "report", "key": key, "value": value})
        give_up = time.monotonic() + timeout
        others: list[Message] = []
        enough, looked = 0, -math.inf  # agents are counted when so many have reported, or each second: some may be lost
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
        """On other agents: returns the leader's value for a key; raises LeaderLost, RendezvousError or AskedToStop."""

        def handle(message: Message) -> tuple[Any] | None:
            if message["type"] == "leader_lost":
                raise LeaderLost(message["reason"])
            if message["type"] == "refused":
                raise rounds.refusal(message)
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

    @property
    def elastic(self) -> bool:
        """Whether the run can continue with fewer than all members."""
        return self._plan.least_agents < self.size

    # -- which rounds have started

    def begun(self, number: int) -> bool:
        """Returns whether agents have started this round; raises RendezvousError (it cannot be read) or AskedToStop."""
        return self._read(lambda: self._rounds.begun(number))

    def others_begin(self, number: int) -> bool:
        """Waits as long as others may need to start this round without this agent; returns and raises as `begun`."""
        give_up = time.monotonic() + self._heartbeat * 2 + rounds.EXCHANGE
        while not self.begun(number):
            if time.monotonic() >= give_up:
                return False
            self.keep_alive(LOOK)
        return True

    def _read(self, read: Callable[[], T]) -> T:
        # Retries it on OSError, for the join timeout
        give_up = time.monotonic() + self._plan.launch.rendezvous_timeout
        while True:
            try:
                return read()
            except OSError as error:
                if time.monotonic() >= give_up:
                    problem = f"cannot read the rounds of this attempt: {error}"
                    fault = Fault(code=FaultCode.UNREADABLE, host=self.own.host, error=problem)
                    raise RendezvousError(fault, final=True) from None
            self.keep_alive(LOOK)

    def _attempt_over(self) -> bool:
        return exists(self._attempt.path / "exit_code", retry_seconds=0) == Ok(True)

    # -- taking part in a round

    def first(self, *, preflight: bool = False) -> tuple[History, Rendezvous]:
        """Joins round 0 or, if it has begun and the run is elastic, the next round; returns its history and rendezvous.

        Raises RendezvousError (not all agents arrived in time, or this one is late), AttemptOver or AskedToStop.
        """
        if self._read(self._rounds.latest) is not None:
            if self.elastic:
                return self.join()
            raise RendezvousError(self._late(), final=True)
        try:
            timeout = self._plan.launch.rendezvous_timeout
            return self._round_of(History(preflight=preflight), 0, range(self.size), timeout)
        except RendezvousError:
            if not self._spare:
                raise
        except AskedToStop as request:
            if self._spare:  # the others say why the attempt ends
                raise AttemptOver(str(request)) from None
            raise
        return self.join()

    def next(self, history: History, before: Rendezvous, lost: Collection[int]) -> tuple[History, Rendezvous]:
        """Joins the round `history.round`; if the leader is lost, the other members are tried as leaders, `in_turn`.

        Raises RendezvousError (too few members arrived), Overtaken or AskedToStop.
        """
        self.status = {}  # what the last round's ranks did is no sign of life of the next one's
        left = sorted(member.index for member in before.members if member.index not in lost)
        seats = [member.index for member in before.members]
        leader = before.members[0].index
        heartbeat = self._heartbeat
        if (self.leads or self._channel is not None) and leader in left:
            try:
                if self.leads:
                    return self._lead(history, left, heartbeat, seats)
                self.send({"type": "ready", "round": history.round, "step": history.best})
                return self._await_begin(leader, heartbeat * 2 + rounds.EXCHANGE)
            except RendezvousError as error:
                history = self._unless_overtaken(history, leader, error, before.spares)
                if error.final:
                    raise
        self._disconnect()
        left = in_turn([index for index in left if index != leader or self.own.index == leader], leader, self._places)
        message = messages.too_few(len(left), self._plan.least_agents)
        problem = RendezvousError(Fault(code=FaultCode.TOO_FEW, host=self.own.host, message=message), final=True)
        for place, leader in enumerate(left):
            try:
                return self._round_of(history, leader, [*left[place:], *before.spares], heartbeat, seats)
            except RendezvousError as error:
                problem = error
                history = self._unless_overtaken(history, leader, error, before.spares)
                if error.final:
                    break
        raise problem

    def _unless_overtaken(
        self, history: History, leader: int, error: RendezvousError, spares: Collection[int]
    ) -> History:  # fmt: skip
        # Returns the history of the round to be tried with another leader: the one after that which this leader had
        # recorded, with this agent, when it was lost. Others in it may have been told, and have lost it as well;
        # they end the attempt if they are too few without it
        if not self.begun(history.round):
            return history
        begun = self._read(lambda: self._rounds.of_number(history.round))
        members = () if error.final or begun is None or begun.leader != leader else begun.members
        if self.own.index not in members or len({*members, *spares}) <= self._plan.least_agents:
            raise Overtaken(str(error)) from None
        return replace(history, round=history.round + 1)

    def join(self) -> tuple[History, Rendezvous]:
        """Joins the round after the running one, once it starts. Raises AttemptOver or NobodyLeads."""
        try:
            return self._join()
        except AskedToStop as request:  # the others say why the attempt ends, if it does
            raise AttemptOver(str(request)) from None

    def _join(self) -> tuple[History, Rendezvous]:
        self._stop_leading()
        seen, since, turn = (-1, 0), time.monotonic(), -1
        latest: rounds.Round | None = None
        while not self._attempt_over():
            turn += 1
            try:
                latest = self._rounds.latest()
                if latest is None:
                    raise NobodyLeads("the attempt's rounds are gone")
                alive = latest.number, self._rounds.time_of(latest.number)
                if alive != seen:
                    seen, since = alive, time.monotonic()
            except OSError:  # the leader may be alive: a file server that does not answer is no sign
                since = time.monotonic()
            limit = self._heartbeat + FILE_DELAY
            if time.monotonic() - since > limit:
                raise NobodyLeads(f"no heartbeat of a leading agent for {limit:.0f} s")
            for leader, ports, timeout in () if latest is None else self._leaders(latest, turn):
                try:
                    self._connect(self._address(leader), ports, self._secret, leader, timeout)
                except RendezvousError:  # not yet
                    continue
                with contextlib.suppress(RendezvousError):  # the leader is lost
                    history, rendezvous = self._await_begin(leader, None)
                    return replace(history, listened=True), rendezvous
                break
            self.poll(LOOK)
            self._signals.require_none()
        raise AttemptOver("it has ended")

    def _leaders(self, latest: rounds.Round, turn: int) -> Iterator[tuple[int, Sequence[int], float]]:
        # Yields who may lead the next round, its ports, and how long to try. A new leader waits for the spare nodes
        # before it records its round, so they guess it: it is nearly always the one with the lowest index
        if not self._spare:
            yield latest.leader, [latest.port], REJOIN
            return
        others = sorted(index for index in latest.members if index != latest.leader)
        yield latest.leader, [latest.port], LOOK
        for index in dict.fromkeys([*others[:2], others[turn % len(others)]] if others else []):
            yield index, self._ports_of(latest.number + 1), LOOK

    def _ports_of(self, number: int) -> list[int]:
        return rounds.candidate_ports(rounds.secret_of(self._secret, f"{number}"), self._plan.cluster.port_range)

    def _round_of(
        self, history: History, leader: int, wanted: Collection[int], timeout: float, before: Sequence[int] = ()
    ) -> tuple[History, Rendezvous]:
        # Returns the history and the rendezvous of the round
        ports = self._ports_of(history.round)
        if leader == self.own.index:
            if self._hub is None:
                address = rounds.LOOPBACK if self._loopback else rounds.address_of(self._hosts[leader])
                others = [index for index in range(self.size) if index != leader]
                self._hub = Hub(rounds.listen(ports, address), self._secret, members=others, wake=self._signals.wake)
                self._inbox = []
                self.coordinator = Coordinator(
                    self._plan, self._attempt.logs, self._places, self.own, claim=self._claim,
                    listen=self._listen_for_ranks,
                )  # fmt: skip
            return self._lead(history, wanted, timeout, before)
        deadline = time.monotonic() + timeout
        self._connect(self._address(leader), ports, self._secret, leader, timeout)
        return self._await_begin(leader, deadline - time.monotonic() + 15)

    def _address(self, leader: int) -> str:
        return rounds.LOOPBACK if self._loopback else self._hosts[leader]

    def _lead(
        self, history: History, wanted: Collection[int], timeout: float, before: Sequence[int]
    ) -> tuple[History, Rendezvous]:
        assert self._hub is not None and self.coordinator is not None
        self._store_listener = None
        try:
            self.coordinator.gather(history, wanted, timeout, time.monotonic(), before)
            self._deliver()
            history, rendezvous = self._await_begin(self.own.index, None)
        except BaseException:
            if self._store_listener is not None:
                self._store_listener.close()
            raise
        return history, replace(rendezvous, listener=self._store_listener)

    def _listen_for_ranks(self, members: Sequence[Member]) -> int:
        ports = rounds.free_ports(self._plan.cluster.port_range)
        self._store_listener = rounds.listen(ports, rounds.address_reached(members))
        return int(self._store_listener.getsockname()[1])

    def _claim(self, number: int, members: Sequence[Member]) -> Fault | None:
        assert self._hub is not None and self.coordinator is not None
        self.coordinator.began = None
        limit = self._heartbeat / 3  # meanwhile the others hear nothing
        for waited in backoff(limit):
            try:
                claimed = self._rounds.claim(number, self.own, self._hub.port, members)
                break
            except OSError as error:  # a full disk, or a file server that does not answer
                if waited < limit and is_transient(error):
                    continue
                problem = f"round {number} cannot be recorded: {error}"
                if number and self.elastic:  # the other side of a partition may have recorded it
                    return Fault(code=FaultCode.AGENT, host=self.own.host, error=problem)
                log_line(problem)
                return None
        with contextlib.suppress(OSError):  # the round is ours, also if its time cannot be read now
            self.coordinator.began = self._rounds.time_of(number)
        return None if claimed else self._late()

    def _late(self) -> Fault:
        return Fault(code=FaultCode.LATE, host=self.own.host, node=self.own.node_rank)

    def _await_begin(self, leader: int, timeout: float | None) -> tuple[History, Rendezvous]:
        def handle(message: Message) -> tuple[History, Rendezvous] | None:
            nonlocal timeout
            if message["type"] == "spare":
                self._spare, timeout = True, None
                log_line(f"{self.own.host} is a spare node: it waits to replace a lost one")
            if message["type"] == "refused":
                raise rounds.refusal(message, from_leader=not self.leads)
            if message["type"] == "leader_lost":
                raise rounds.leader_lost(self.own, self._places[leader], message["reason"])
            if message["type"] == "over" and message["final"]:
                raise AttemptOver("it has ended")
            return self._begin(message) if message["type"] == "begin" else None

        while True:
            if (begun := self._await(handle, timeout)) is not None:
                return begun
            if timeout is not None:
                raise rounds.leader_lost(self.own, self._places[leader], "no message in time")
            if not self.leads and self._attempt_over():
                raise AttemptOver("it has ended")

    def _begin(self, message: Message) -> tuple[History, Rendezvous]:
        history = History(**message["history"])
        self._round, self._spare = history.round, False
        self.status = {}
        if self.leads:
            return history, rounds.leaders_rendezvous(
                message["port"], [Member(*row) for row in message["members"]], spares=message["spares"]
            )
        rendezvous = rounds.rendezvous_of(dict(message), self._mine)
        if rendezvous.place_of(self.own.index) is None:
            raise RendezvousError(self._late())
        return history, rendezvous
