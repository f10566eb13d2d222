"""Tasks on the nodes of the PBS job that we are in, started by pbsdsh.

What pbsdsh does not do, files in the attempt's folder `tasks/` do:

- a task gets PBS's own variables and nothing exported: it reads ours from `environment.sh`
- pbsdsh exits 0 whatever the task did: the task writes its exit status to `N.exit`
- a task's output goes to the terminal or the job's file, past any pipe or file of ours: it writes to `N.out`, and we
  copy that to our own stdout. One writer per file, because over NFS appending to a common one loses lines.
- pbsdsh hands SIGTERM on, but leaves at once and sees no more of the task, so it is kept out of the way of signals:
  tasks are signalled by the process group in `N.pid`, through a pbsdsh of its own
- tasks outlive a pbsdsh that is killed: a guard process kills them when we are gone
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from launcher import errors, runs
from launcher.node import spawn
from launcher.node.events import current_attempt

PATIENCE = 5.0  # seconds that one of pbsdsh's end and the task's exit status may lag behind the other
UNREACHABLE = 30.0  # seconds after SIGKILL until a task is given up: its node does not answer

# What belongs to the node where a task runs rather than to the shell: there it comes from PBS (GPUs: its cgroups hook).
OF_NODE = re.compile(r"CUDA_DEVICE_ORDER|ZE_AFFINITY_MASK|\w+_VISIBLE_DEVICES")
OF_BASH = re.compile(r"_|BASHOPTS|SHELLOPTS|UID|EUID|PPID|PBS_\w+")
VARIABLE = re.compile(r"[A-Za-z_]\w*", re.ASCII)
FUNCTION = re.compile(r"BASH_FUNC_([\w:.+-]+)%%", re.ASCII)

TASK = """\
# pbsdsh runs this on every node: bash task.sh TASK NODE
umask 077
exec >>{folder}/"$1".out 2>&1 </dev/null
echo "$$" >{folder}/"$1".pid
[ ! -e {folder}/stop ] || exit 143  # the run was stopped while this was on its way
trap : TERM INT HUP  # the command is told as well; how it ends is still to be recorded
. {folder}/environment.sh
export LAUNCHER_TASK="$1" LAUNCHER_NODE="$2"
if cd {cwd}; then
  {command}
else
  echo "launcher: the folder of the run is not there on $(hostname): start it in one that all nodes share" >&2
  (exit 93)
fi
echo "$?" >{folder}/"$1".exit
"""


def hosts_of(node_file: str) -> dict[str, int]:
    """The distinct hosts of a PBS node file in its order, each with its first line (pbsdsh's -n). Pure."""
    lines: dict[str, int] = {}
    for number, line in enumerate(node_file.splitlines()):
        if host := line.strip():  # a chunk without CPUs leaves an empty line
            lines.setdefault(host, number)
    return lines


def exports(environ: Mapping[str, str]) -> str:
    """Shell text that makes a task's environment this one, except for what is its node's own. Pure."""
    lines = []
    for name, value in environ.items():
        if VARIABLE.fullmatch(name) and not OF_BASH.fullmatch(name):
            unless_set = f"[ -v {name} ] || " if OF_NODE.fullmatch(name) else ""
            lines.append(f"{unless_set}export {name}={shlex.quote(value)}\n")
    for name, value in environ.items():  # last, for one that does not parse would hide the rest
        if (match := FUNCTION.fullmatch(name)) and value.startswith("() {"):
            lines.append(f"{match[1]} {value}\nexport -f {match[1]}\n")
    return "".join(lines)


class PbsTask:
    """One task. Its files are opened anew at each look, which is what makes NFS show the newest."""

    def __init__(self, pbsdsh: str, line: int, host: str, folder: Path, number: int, node: int) -> None:
        self._start = [pbsdsh, "-n", str(line), "--", "/bin/bash"]
        self._host, self._folder, self._number = host, folder, number
        self._copied, self._sent = 0, dict.fromkeys((signal.SIGTERM, signal.SIGKILL), 0.0)
        self._wanted: signal.Signals | None = None
        self._half_over: float | None = None
        self._code: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._task = [str(folder / "task.sh"), str(number), str(node)]

    def start(self) -> None:
        with open(self._file("pbsdsh"), "wb") as words:
            self._process = subprocess.Popen(
                [*self._start, *self._task],
                stdin=subprocess.DEVNULL, stdout=words, stderr=words, start_new_session=True,
            )  # fmt: skip

    def poll(self) -> int | None:
        if self._code is None and self._process is not None:
            self._signal()
            written, gone = self._read("exit"), self._process.poll() is not None
            self._copy_output()
            self._code = self._judge(written, gone)
            if self._code is not None:
                self._process.kill()
                self._process.wait()
        return self._code

    def terminate(self) -> None:
        self._wanted = self._wanted or signal.SIGTERM
        self._signal()

    def kill(self) -> None:
        """At once; what is only about to start will not."""
        self._wanted = signal.SIGKILL
        self._signal()

    def _judge(self, written: str, gone: bool) -> int | None:
        """How it ended, or None when that is still open."""
        if not (written or gone):
            killed = self._sent[signal.SIGKILL]
            if not killed or time.monotonic() < killed + UNREACHABLE:
                return None
            self._blame("was killed and nobody says that it is gone")
            return -signal.SIGKILL
        self._half_over = self._half_over or time.monotonic()
        over = (written and gone) or self._wanted is signal.SIGKILL
        if not over and time.monotonic() < self._half_over + PATIENCE:
            return None
        if written:
            return int(written)
        if self._wanted is not None:
            return -self._wanted
        self._blame("could not be started, or was ended by PBS")
        return errors.FAILED

    def _blame(self, what: str) -> None:
        words = " ".join(self._read("pbsdsh", whole=False).split())
        cause = f"task {self._number} on {self._host} {what}: pbsdsh says {words or 'nothing'!r}"
        print(f"launcher: {cause}", file=sys.stderr, flush=True)
        if attempt := current_attempt():
            runs.append(attempt.events_file("pbsdsh"), "fault", cause=cause, host=self._host)

    def _signal(self) -> None:
        """Sends what is wanted, once, as soon as the task has told its process group."""
        wanted = None if self._read("exit") else self._wanted
        if wanted is None or self._sent[wanted]:
            return
        (self._folder / "stop").touch()
        if pid := self._read("pid"):
            self._sent[wanted] = time.monotonic()
            script = 'kill -s "$0" -- "-$1" 2>/dev/null'
            subprocess.Popen(
                [*self._start, "-c", script, wanted.name.removeprefix("SIG"), pid], stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        elif wanted is signal.SIGKILL:  # not started in all that time, and now it will not be
            self._sent[wanted] = time.monotonic()
            if self._process is not None:
                self._process.kill()

    def _copy_output(self) -> None:
        with contextlib.suppress(OSError), open(self._file("out"), "rb") as file:
            file.seek(self._copied)
            text = file.read()
            self._copied += len(text)
            sys.stdout.buffer.write(text)
            sys.stdout.buffer.flush()

    def _read(self, suffix: str, *, whole: bool = True) -> str:
        """The first line of a file of the task once it is whole (or all of the file), else an empty text."""
        try:
            text = self._file(suffix).read_text(errors="replace")
        except OSError:  # not there yet, or a file server's moment of weakness: there is a next look
            return ""
        if not whole:
            return text
        line, end, _ = text.partition("\n")
        return line if end else ""

    def _file(self, suffix: str) -> Path:
        return self._folder / f"{self._number}.{suffix}"


@contextlib.contextmanager
def _guarded(tasks: Sequence[PbsTask]) -> Iterator[None]:
    """A process that kills the tasks when this one dies without a word (Ctrl-C twice; an `rm -rf` of its job)."""
    reading, writing = os.pipe()
    guard = os.fork()
    if guard == 0:
        os.setsid()
        os.close(writing)
        if not os.read(reading, 1):
            for task in tasks:
                task.kill()
            time.sleep(1)
        os._exit(0)
    os.close(reading)
    try:
        yield
    finally:
        os.write(writing, b"x")
        os.close(writing)
        os.waitpid(guard, 0)


def find() -> str | None:
    """The command: on PATH, else where PBS says that it is installed (a job's PATH may be without it)."""
    with contextlib.suppress(OSError):
        text = Path(os.environ.get("PBS_CONF_FILE", "/etc/pbs.conf")).read_text()
        if match := re.search(r"^PBS_EXEC=(.*)", text, re.MULTILINE):
            return shutil.which("pbsdsh") or shutil.which("pbsdsh", path=f"{match[1].strip()}/bin")
    return shutil.which("pbsdsh")


def run(nodes: int, tasks_per_node: int, grace: float, command: Sequence[str]) -> int:
    """Runs the command on the first `nodes` hosts and stays until it has ended on all of them."""
    os.umask(0o077)
    attempt, pbsdsh = current_attempt(), find()
    if attempt is None or pbsdsh is None:
        print("launcher: pbsdsh is not on PATH: add the folder of the PBS commands to it", file=sys.stderr)
        return errors.NO_RETRY
    lines = dict(list(hosts_of(Path(os.environ["PBS_NODEFILE"]).read_text()).items())[:nodes])
    if len(lines) < nodes:
        print(f"launcher: the PBS job has {len(lines)} hosts and the run needs {nodes}", file=sys.stderr)
        return errors.NO_RETRY
    hosts = list(lines)
    places = spawn.environments(hosts, tasks_per_node)
    folder = attempt.path / "tasks"
    folder.mkdir()
    environment = folder / "environment.sh"
    environment.write_bytes(os.fsencode(exports({**os.environ, **places[0]})))
    (folder / "task.sh").write_text(
        TASK.format(
            folder=shlex.quote(str(folder)), cwd=shlex.quote(os.getcwd()), command=" ".join(map(shlex.quote, command))
        )
    )
    tasks = [
        PbsTask(pbsdsh, lines[hosts[node]], hosts[node], folder, number, node)
        for node in range(nodes)
        for number in range(node * tasks_per_node, (node + 1) * tasks_per_node)
    ]
    try:
        with _guarded(tasks):
            for task in tasks:
                task.start()
            return spawn.watch(tasks, grace, pause=max(0.1, 0.01 * len(tasks)))
    finally:
        environment.unlink()  # it may hold secrets, and nobody needs it any more
