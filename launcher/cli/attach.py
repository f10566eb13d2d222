"""`attach`: a shell on the node of a rank, the stacks of all ranks, or the debugger of a rank at a breakpoint."""

from __future__ import annotations

import contextlib
import io
import json
import linecache
import os
import re
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import termios
import time
import tty
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

from launcher import attach
from launcher.attach import HELLO, SECRET, SERVED, data_message, data_of, exchange
from launcher.errors import NOT_ON_PATH, RunError
from launcher.failures.known_errors import main_thread
from launcher.files.folder_checks import require_own
from launcher.formatting import name_ranks, plural, ranges
from launcher.monitoring.run_status import JobMonitor, RunState, RunStatus, status_of
from launcher.paths import own_module
from launcher.plan.plan import JobPlan
from launcher.rendezvous.rounds import find_leader
from launcher.rendezvous.signed_channel import Channel, ChannelError
from launcher.runs.directory import Attempt
from launcher.runs.events import Breakpoint, Met, every
from launcher.runs.history import at_breakpoints
from launcher.runs.lookup import find
from launcher.schedulers import registry
from launcher.schedulers.base import Scheduler

REPLY_TIMEOUT = 15.0  # seconds for the agents' replies; the leading agent looks for requests every second
EXIT_TIMEOUT = 5.0  # seconds for srun to exit by itself, and once more after SIGTERM, which it only forwards
CONNECT_TIMEOUT = 10.0  # seconds for one address of a node


def run(arguments: Namespace) -> int:
    found = find(arguments.name, arguments.runs_dir)
    require_own(found.path, "attach to it")
    seen = status_of(found, JobMonitor())
    attempt = _running(seen)
    members = _members(attempt.latest_events())
    _require_rank(seen, members, arguments.rank)
    what = arguments.what or ("shell" if sys.stdin.isatty() else "stack")
    if what == "stack":
        return _stack(attempt, members, arguments.rank)
    if what == "debug":
        return _debug(seen, attempt, arguments.rank)
    return _shell(seen, attempt, arguments.rank or 0)


def _running(seen: RunStatus) -> Attempt:
    id, attempts = seen.run.id, seen.run.attempts()
    if seen.state.over:
        gone = f"{id} is {seen.state.value}, so there is no rank to attach to"
        raise RunError(f"{gone}: `logs {id}` shows what it has printed")
    if seen.state is RunState.QUEUED or not attempts or seen.history.ended is not None:
        raise RunError(f"{id} is {seen.state.value}: its ranks have not started yet")
    return attempts[-1]


def _members(events: Sequence[Mapping[str, Any]]) -> list[Met]:
    # Every `met` event has the number of agents
    met = every(events, Met)
    newest = max((event.round for event in met), default=0)
    return [event for event in met if event.round == newest]


def _require_rank(seen: RunStatus, members: Sequence[Met], rank: int | None) -> None:
    if not members or not attach.is_listening(seen.run.attempts()[-1]):
        raise RunError(f"{seen.run.id} has not finished its rendezvous yet: try again in a moment")
    ranks = members[0].ranks
    if rank is not None and rank >= ranks:
        raise RunError(f"{seen.run.id} has no rank {rank}: it has {plural(ranks, 'rank')}")


def _stack(attempt: Attempt, members: Sequence[Met], rank: int | None) -> int:
    count = members[0].members
    folder = attach.send(attempt, attach.STACKS, count)
    replies: dict[int, Any] = {}

    def complete() -> bool | None:
        # Of thousands of agents, a look reads only the first file that is empty yet
        while (reply := attach.read_reply(folder / f"member-{len(replies)}")) is not None:
            replies[len(replies)] = reply
        return len(replies) >= count or None

    if not wait_until(complete):
        for place in range(len(replies), count):  # those behind one that is silent
            if (reply := attach.read_reply(folder / f"member-{place}")) is not None:
                replies[place] = reply
    reports = [report for reply in replies.values() for report in reply if rank in (None, report["rank"])]
    for number, group in enumerate(group_stacks(reports)):
        print("\n".join(["", *stack_lines(group)] if number else stack_lines(group)))
    attach.write_reply(folder / "stacks.txt", "\n".join(f"rank {each['rank']}\n{each['stack']}" for each in reports))
    print(f"\nall threads of each: {folder}/stacks.txt")
    if len(replies) == count:
        return 0
    silent = sorted({event.host for event in members} - {each["host"] for reply in replies.values() for each in reply})
    late = f"{count - len(replies)} of {count} agents did not answer within {REPLY_TIMEOUT:g} s"
    print(f"launcher: {late}" + (f": {', '.join(silent)}" if silent else ""), file=sys.stderr)
    return 1


def _shell(seen: RunStatus, attempt: Attempt, rank: int) -> int:
    folder = attach.send(attempt, attach.RANK, rank=rank)
    location = wait_until(lambda: attach.read_reply(folder / attach.ONLY_REPLY))
    if location is None:
        raise RunError(f"the agent of rank {rank} does not answer within {REPLY_TIMEOUT:g} s")
    host, job = location["host"], location["job"]
    way = access(seen.plan, host, job, socket.gethostname())
    if way is None:
        term = os.environ.get("TERM")
        return connect_terminal(over_network(seen.plan, attempt, host, rank, mode="shell", term=term))
    command = way.command("shell", str(folder / attach.ONLY_REPLY), terminal=sys.stdin.isatty())
    try:
        return subprocess.run(command, env=way.environment(os.environ), check=False).returncode
    except NOT_ON_PATH:
        raise not_on_path(command) from None


def _debug(seen: RunStatus, attempt: Attempt, rank: int | None) -> int:
    at = _choose(seen, at_breakpoints(attempt.latest_events()), rank)
    rank, host, job = at.rank, at.host, at.job
    way = access(seen.plan, host, job, socket.gethostname())
    if way is not None:
        command = way.command("relay", at.socket, terminal=False)
        debugger = over_process(command, way.environment(os.environ))
    else:
        debugger = over_channel(over_network(seen.plan, attempt, host, rank, mode="debug", socket=at.socket))
    try:
        code = run_prompt(debugger, rank)
    finally:
        debugger.close()
    if code and way is not None and way.scheduler is not None:
        print(f"launcher: that was {way.scheduler.step_requirement}, to {host}", file=sys.stderr)
    return code


def _choose(seen: RunStatus, at: Mapping[int, Breakpoint], rank: int | None) -> Breakpoint:
    id, waits = seen.run.id, "; ".join(f"rank {each} in {event.where}" for each, event in sorted(at.items()))
    if not seen.plan.debugs:
        raise RunError(f"{id} ignores breakpoint(): submit it with debug.rank=0 (or a list of ranks, or all)")
    if rank is not None and rank in at:
        return at[rank]
    if rank is None and len(at) == 1:
        return next(iter(at.values()))
    if at:
        which = "several ranks wait" if rank is None else f"rank {rank} does not wait at a breakpoint"
        raise RunError(f"{which}: choose with --rank ({waits})")
    ranks = ", ".join(map(str, seen.plan.debug.ranks[:8])) + (", ..." if len(seen.plan.debug.ranks) > 8 else "")
    raise RunError(
        f"no rank of {id} waits at a breakpoint now (debug.rank: {ranks}); `attach {id} --stack` shows where they are"
    )


# -- Groups equal stacks of many ranks, so that each is shown once, as a traceback. Pure, except that it reads sources


_FRAME = re.compile(r'\s*File "(?P<path>.*)", line (?P<line>\d+|\?\?\?) in (?P<name>.*)')
_WORKLOAD_CALLER = "_run_workload"  # function that calls a rank's workload; see launcher/worker/main.py
_PROGRAM_RUNNERS = ("/launcher/worker/user_script.py", "<frozen runpy>", "/runpy.py")  # files that run user's programs
STATES = {"D": "waits for a device or a file server (state D)", "T": "is stopped (state T)", "": "is gone"}


@dataclass(frozen=True)
class Frame:
    path: str  # source file
    line: int  # line in the file; 0: unknown
    name: str  # name of the function


DEBUGGER = Frame("", 0, "the debugger, which waits for `attach --debug`")


@dataclass(frozen=True)
class Group:
    """Ranks whose main threads have the same stack."""

    ranks: tuple[Mapping[str, Any], ...]  # their reports: see `RequestHandler._stacks` in launcher/attach.py
    frames: tuple[Frame, ...]  # frames of the main thread, innermost call last; empty: the ranks wrote no stack


def parse_stacks(text: str) -> tuple[Frame, ...]:
    """Returns the main thread's frames in faulthandler's output, the innermost last; empty for an empty text.

    Without the launcher's frames that call the user's code, and with one DEBUGGER frame for those of pdb.
    """
    found = [match for line in main_thread(text) if (match := _FRAME.match(line))]
    frames = [Frame(m["path"], int(m["line"]) if m["line"].isdecimal() else 0, m["name"]) for m in found][::-1]
    ours = [
        place for place, frame in enumerate(frames[:-1])
        if frame.name == _WORKLOAD_CALLER or frame.path.endswith(_PROGRAM_RUNNERS)
    ]  # fmt: skip
    frames = frames[ours[-1] + 1 :] if ours else frames
    debugger = next((place for place, frame in enumerate(frames) if place and frame.path.endswith("/bdb.py")), None)
    return tuple(frames) if debugger is None else (*frames[:debugger], DEBUGGER)


def group_stacks(reports: Iterable[Mapping[str, Any]]) -> list[Group]:
    """Groups the stack reports of ranks by equal stacks. The smallest groups come first: they probably cause a hang."""
    ranks: dict[tuple[tuple[Frame, ...], str], list[Mapping[str, Any]]] = {}
    for report in sorted(reports, key=lambda each: int(each["rank"])):
        frames = parse_stacks(report["stack"])
        ranks.setdefault((frames, "" if frames else report["state"]), []).append(report)
    groups = [Group(tuple(found), frames) for (frames, _), found in ranks.items()]
    return sorted(groups, key=lambda each: (len(each.ranks), each.ranks[0]["rank"]))


def stack_lines(group: Group) -> list[str]:
    """Returns the text of a group for the user, as lines: ranks, host, process, step, then the stack."""
    ranks = group.ranks
    where = f"on {', '.join(dict.fromkeys(str(each['host']) for each in ranks))}"
    if len(ranks) == 1 and ranks[0]["pid"]:  # 0: the process has ended
        where += f", process {ranks[0]['pid']}"
    steps = sorted({int(each["step"]) for each in ranks if each["step"] >= 0})
    if steps:
        where += f", after step {ranges(steps)}"
    head = f"{name_ranks(int(each['rank']) for each in ranks)} {where}"
    if not group.frames:
        words = STATES.get(ranks[0]["state"], f"wrote none (state {ranks[0]['state']})")
        return [f"{head}: no stack; its process {words}"]
    text = [f"{head}:"]
    for frame in group.frames:
        if frame is DEBUGGER:
            text.append(f"  in {frame.name}")
            continue
        text.append(f'  File "{frame.path}", line {frame.line}, in {frame.name}')
        if source := linecache.getline(frame.path, frame.line).strip():
            text.append(f"    {source}")
    return text


# -- Connections to a rank's node: by a step of the job or a process here, or over the network


@dataclass(frozen=True)
class NodeAccess:
    plan: JobPlan
    host: str  # name of the rank's node
    job: str = ""  # id of the run's job, whose steps the scheduler starts
    scheduler: Scheduler | None = None  # None: the node is this machine

    def command(self, *arguments: str, terminal: bool) -> list[str]:
        python = sys.executable if self.scheduler is None else self.plan.python
        session = [python, *own_module("launcher.attach"), *arguments]
        if self.scheduler is None:
            return session
        return self.scheduler.step(session, self.job, self.host, self.plan.run_dir, terminal=terminal)

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        found = dict(self.scheduler.step_environment(environ) if self.scheduler else environ)
        if self.plan.code_root:
            found["PYTHONPATH"] = os.pathsep.join(filter(None, [self.plan.code_root, found.get("PYTHONPATH", "")]))
        return found


def access(plan: JobPlan, host: str, job: str | None, here: str) -> NodeAccess | None:
    """Returns how to start processes on a rank's node; None: only its agent can, for a client on the network."""
    if host.partition(".")[0] == here.partition(".")[0]:
        return NodeAccess(plan, host)
    scheduler = registry.starting_steps(plan.starter) if job else None
    return NodeAccess(plan, host, job, scheduler) if scheduler and job else None


@dataclass
class DebuggerConnection:
    """A connection to a rank's debugger. Each message is one line of JSON."""

    reading: IO[bytes]
    writing: IO[bytes]
    close: Callable[[], None]

    def send(self, **message: Any) -> None:
        """Sends one message. Raises OSError: the connection is closed."""
        self.writing.write(json.dumps(message).encode() + b"\n")
        self.writing.flush()

    def receive(self) -> dict[str, Any] | None:
        """Waits for the next message; None: the end, or not JSON; RunError: lost on the network, or tampered with."""
        try:
            line = self.reading.readline()
            return dict(json.loads(line)) if line else None
        except ChannelError as error:
            raise connection_lost(error) from None
        except (OSError, ValueError):
            return None


def over_channel(channel: Channel) -> DebuggerConnection:
    file = _ChannelFile(channel)
    return DebuggerConnection(io.BufferedReader(file), file, channel.close)  # type: ignore[arg-type]


class _ChannelFile(io.RawIOBase):
    def __init__(self, channel: Channel) -> None:
        self._channel, self._read, self._ended = channel, b"", False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._read and not self._ended:
            for message in exchange(self._channel, {})[0]:
                self._read += data_of(message)
                self._ended = self._ended or "end" in message
        part, self._read = self._read[: len(buffer)], self._read[len(buffer) :]
        buffer[: len(part)] = part
        return len(part)

    def write(self, data: Any) -> int:
        self._channel.send(data_message(bytes(data)))
        while self._channel.unsent:
            exchange(self._channel, {}, reads=False)
        return len(data)


def connection_lost(error: ChannelError) -> RunError:
    return RunError(f"the connection to the rank's node was lost: {error}; the run goes on, attach again")


def over_process(command: Sequence[str], environment: Mapping[str, str]) -> DebuggerConnection:
    """Starts a command (srun), whose stderr is the terminal's, and connects to a debugger through it; RunError."""
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment,
            start_new_session=True,  # Ctrl-C is for the prompt
        )  # fmt: skip
    except NOT_ON_PATH:
        raise not_on_path(command) from None
    reading, writing = process.stdout, process.stdin
    assert reading is not None and writing is not None

    def close() -> None:
        with contextlib.suppress(OSError):
            writing.close()
        for number in (0, signal.SIGTERM, signal.SIGKILL):  # 0 sends no signal
            process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(EXIT_TIMEOUT)
                break
        reading.close()

    return DebuggerConnection(reading, writing, close)


def not_on_path(command: Sequence[str]) -> RunError:
    return RunError(f"{command[0]} is not on this machine's PATH: attach from a login node of the cluster")


def over_network(plan: JobPlan, attempt: Attempt, host: str, rank: int, **details: Any) -> Channel:
    """Has the rank's agent start `launcher.attach serve`; returns an authenticated connection to it; raises RunError.

    details: `mode=shell` with `term` (the terminal's type), or `mode=debug` with `socket` (path of the debugger's
    socket).
    """
    secret = secrets.token_hex(32)
    request = {**details, "ports": list(plan.cluster.port_range)}
    files = {SECRET: secret, SERVED: "", "question": json.dumps(request)}
    folder = attach.send(attempt, attach.SERVE, files=files, rank=rank)
    served = wait_until(lambda: attach.read_reply(folder / SERVED))
    if served is None:
        raise RunError(f"the agent of rank {rank} on {host} does not answer within {REPLY_TIMEOUT:g} s")
    names, problems = list(dict.fromkeys([host + plan.cluster.host_suffix, host, served["host"]])), []
    for name in names:
        found = find_leader(name, [served["port"]], secret.encode(), time.monotonic() + CONNECT_TIMEOUT)
        if isinstance(found, Channel):
            found.send(HELLO)
            return found
        problems.append(f"{name}: {found or f'no answer within {CONNECT_TIMEOUT:g} s'}")
    raise RunError(
        f"port {served['port']} of {host} cannot be reached from here ({'; '.join(problems)}): where you may log in to "
        f"the node (ssh {host}), give the same command there"
    )


def wait_until(poll: Callable[[], Any]) -> Any:
    """Calls `poll` until it returns something, and returns that; None after REPLY_TIMEOUT seconds."""
    deadline = time.monotonic() + REPLY_TIMEOUT
    while (found := poll()) is None and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


RESIZE_INTERVAL = 0.2  # seconds between two looks at the size of the window


def connect_terminal(channel: Channel) -> int:
    """Is the terminal of the shell until it ends; returns 0; RunError: the connection was lost, or tampered with."""
    keyboard, screen = sys.stdin.fileno(), sys.stdout.fileno()
    events, window = {keyboard: select.POLLIN}, None
    try:
        with contextlib.closing(channel), _raw(keyboard):
            while True:
                size = shutil.get_terminal_size()
                if size != window:
                    channel.send({"window": [size.lines, size.columns]})
                    window = size
                messages, ready = exchange(channel, {} if channel.unsent else events, timeout=RESIZE_INTERVAL)
                for message in messages:
                    if message.get("end"):
                        return 0
                    data = data_of(message)
                    while data:
                        data = data[os.write(screen, data) :]
                if keyboard in ready:
                    typed = os.read(keyboard, 1 << 12)
                    if not typed:  # a pipe that has ended: the shell gets Ctrl-D, and may still print something
                        events = {}
                    channel.send(data_message(typed or b"\x04"))
    except ChannelError as error:
        raise connection_lost(error) from None


@contextlib.contextmanager
def _raw(keyboard: int) -> Iterator[None]:
    # Switches a terminal to raw mode, so that every key, also Ctrl-C, is sent to the shell
    if not os.isatty(keyboard):
        yield
        return
    before = termios.tcgetattr(keyboard)
    tty.setraw(keyboard)
    try:
        yield
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


# -- The prompt for a rank's debugger


LEFT = "the rank stays at its breakpoint; the same command attaches again"


def run_prompt(debugger: DebuggerConnection, rank: int) -> int:
    """Runs the prompt until the rank ends or the user detaches (Ctrl-D, or Ctrl-C while it runs); 1: no answer."""
    reached = runs = False
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  # input() edits lines by it
    try:
        while (message := debugger.receive()) is not None:
            reached = True
            if "text" in message:
                print(message["text"], end="", flush=True)
            elif "prompt" in message:
                runs, typed = False, _ask(str(message["prompt"]))
                if typed is None:
                    print(f"launcher: {LEFT}")
                    return 0
                debugger.send(line=typed)
            elif "runs" in message:
                print(f"launcher: rank {rank} continues; its next breakpoint shows up here, Ctrl-C detaches")
                runs = True
            elif "bye" in message:
                print(f"launcher: {message['bye']}")
                return 0
    except KeyboardInterrupt:
        print("" if runs else f"\nlauncher: {LEFT}")
        return 0
    except OSError:
        pass
    if not reached:
        print(f"launcher: the debugger of rank {rank} cannot be reached", file=sys.stderr)
        return 1
    print(f"launcher: rank {rank} has ended")
    return 0


def _ask(prompt: str) -> str | None:
    while True:
        try:
            return input(prompt)
        except EOFError:
            print()
            return None
        except KeyboardInterrupt:
            print("\n--KeyboardInterrupt--")
