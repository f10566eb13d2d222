"""Starts tasks on the nodes of a PBS job, with pbsdsh or the site's mpiexec."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from launcher import errors, processes, redaction
from launcher.environment import secrets
from launcher.failures.codes import FaultCode
from launcher.fast_dataclasses import Struct
from launcher.files.retried_reads import IN_A_JOB, Ok, Outcome, Unavailable, read_text
from launcher.redaction import SECRETS
from launcher.runs.directory import current_attempt
from launcher.runs.events import Fault
from launcher.runs.job_file import exports as all_exports
from launcher.schedulers.base import QueryError
from launcher.schedulers.pbs.client import PBS
from launcher.schedulers.pbs.in_job import find
from launcher.schedulers.tasks import TaskRequest, attempt_is_over, environments, report, watch
from launcher.schedulers.topology import hosts_in_node_file, variable

# -- One task on a node of the current PBS job, started by pbsdsh: its script, and the process that watches it
# pbsdsh transfers no environment, output, exit status or signals, so files in the attempt's folder `tasks/` do:
# `environment.sh`; `N.exit` and `N.out` of task N (one writer each, since appends to shared files lose lines on NFS);
# `signal`, which all tasks poll, because PBS sends signals only to the first node, and starts no task in a job that it
# is deleting. On SIGTERM pbsdsh exits at once and reports no end of the task, so it runs in a session of its own.


SETTLE_TIME = 5.0  # maximum seconds between the end of pbsdsh and the appearance of its task's exit status
LOOK = 1.0  # seconds between two polls of the file `signal` by a task
SIGNAL, NO_SIGNAL = "signal", "NONE"  # as long as TERM and KILL, so that overwriting works on a full disk
UNREACHABLE = 10.0  # seconds after SIGKILL after which a task counts as ended, because its node does not answer

# Variables that PBS sets for each task with different values.
OF_PBS = re.compile(r"PBS_(?!(CONF_FILE|EXEC|SERVER|DEFAULT)$)\w+")

SCRIPT = """\
# pbsdsh runs this on every node: bash task.sh TASK NODE
umask 077
exec >>{folder}/"$1".out 2>&1 </dev/null
echo "$$" >{folder}/"$1".pid
read -r launcher_signal <{folder}/{signal}
case $launcher_signal in
  TERM | KILL)  # the run was stopped while this was on its way
    echo 143 >{folder}/"$1".exit
    exit
    ;;
esac
trap : TERM INT HUP  # the command gets them as well; how it ends is still to be recorded
launcher_watch() {{
  local idle name sent=
  trap '' TERM INT HUP
  exec {{idle}}<> <(:)  # nothing ever comes from there
  while kill -0 "$$" 2>/dev/null; do
    read -r name <{folder}/{signal}
    case $name in
      "$sent") ;;
      TERM | KILL)
        sent=$name
        kill -s "$name" -- "-$$"
        [ "$name" = TERM ] || [ -s {folder}/"$1".exit ] || echo 137 >{folder}/"$1".exit
        ;;
    esac
    read -r -t {look} -u "$idle"
  done
}}
set -m  # in a process group of its own, which the signal does not reach
launcher_watch "$1" &
launcher_watch=$!
disown
set +m
{environment}
export LAUNCHER_TASK="$1" LAUNCHER_NODE="$2" {guard}={folder}/"$1"
if cd {cwd} || {{ [ -n "${{LAUNCHER_RUN_DIR:-}}" ] && cd /; }}; then  # an agent says itself that it is not there
  {command}
else
  echo "launcher: the folder of the run is not there on $(hostname): start it in one that all nodes share" >&2
  (exit 93)
fi
echo "$?" >{folder}/"$1".exit
kill -KILL "$launcher_watch"
"""


def exports(environ: Mapping[str, str]) -> str:
    """Returns shell text that sets an environment in a task, except PBS's variables and those of the node."""
    return all_exports({name: value for name, value in environ.items() if not OF_PBS.fullmatch(name)})


class TaskEnvironment(Struct):
    """The files from which tasks read their environment. Whoever started the tasks removes them when all have ended."""

    shell: str  # shell text that sources the files
    shared: Path  # in the tasks' folder
    private: Path | None  # with the secrets, in a private folder; None: there are none

    def remove(self) -> None:
        self.shared.unlink(missing_ok=True)
        if self.private is not None:
            secrets.remove(self.private)


def write_environment(folder: Path, environ: Mapping[str, str]) -> TaskEnvironment:
    """Writes the tasks' environment to files: secrets in a private folder of the user, the rest in `folder`.

    If this node cannot write to the private folder, the tasks source the submission's file of secrets instead.
    """
    patterns = os.environ.get(secrets.PATTERNS, ",".join(SECRETS)).split(",")
    hidden = redaction.secrets_in(environ, patterns)
    shared, private = folder / "environment.sh", secrets.file_of(f"{folder}/tasks", str(secrets.folder()))
    shared.write_bytes(os.fsencode(exports(redaction.without_secrets(environ, patterns))))
    lines, written = [f". {shlex.quote(str(shared))}"], None
    if hidden:
        attempt = current_attempt()
        try:
            secrets.write(f"# {attempt.run.path if attempt else folder}\n{exports(hidden)}", private)
            written = private
            lines.append(f". {shlex.quote(str(private))}")
        except (OSError, errors.RunError) as error:
            print(f"launcher: {error}: tasks get the secrets of the submission only", file=sys.stderr)
            if given := environ.get(secrets.FILE):
                lines.append(f". {shlex.quote(given)}")
    return TaskEnvironment("\n".join(lines), shared, written)


def write_script(folder: Path, environment: TaskEnvironment, cwd: str, command: Sequence[str]) -> None:
    """Writes the script that all tasks of a folder run, and the file `signal`."""
    (folder / SIGNAL).write_text(f"{NO_SIGNAL}\n")
    text = SCRIPT.format(
        folder=shlex.quote(str(folder)), environment=environment.shell, guard=processes.GUARD,
        cwd=shlex.quote(cwd), command=shlex.join(command), signal=SIGNAL, look=LOOK,
    )  # fmt: skip
    (folder / "task.sh").write_bytes(os.fsencode(text))


class PbsTask:
    """A task on any node, as the first node sees it through its files, opened anew (NFS) for each read."""

    def __init__(self, pbsdsh: str, line: int, host: str, folder: Path, number: int, node: int) -> None:
        self._start = [pbsdsh, "-n", str(line), "--", "/bin/bash"]
        self._host, self._folder, self._number = host, folder, number
        self._copied = 0
        self._wanted: signal.Signals | None = None
        self._sent: signal.Signals | None = None
        self._killed: float | None = None
        self._half_over: float | None = None
        self._unread_since: float | None = None
        self._code: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._task = [str(folder / "task.sh"), str(number), str(node)]

    def start(self) -> None:
        for suffix in ("pid", "out", "exit"):  # NFS may hide a new file for half a minute from who has found it missing
            self._file(suffix).touch()
        with open(self._file("pbsdsh"), "wb") as output:
            self._process = subprocess.Popen(
                [*self._start, *self._task],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip

    def poll(self) -> int | None:
        if self._code is None and self._process is not None:
            self._signal()
            found, left = read_text(self._file("exit"), retry_seconds=0), self._process.poll()
            # pbsdsh that has failed itself, as when its MoM is restarted, knows nothing of the task, which goes on
            alone = bool(left and self._read("pid"))
            self._copy_output()
            if isinstance(found, Unavailable) and self._wanted is not signal.SIGKILL:
                self._code = self._unread(found)
            else:
                self._code = self._judge(_line(found), left is not None, alone)
            if self._code is not None:
                self._process.kill()  # pbsdsh may wait for a lost node
                self._process.wait()
        return self._code

    def terminate(self) -> None:
        """Sends SIGTERM to all tasks of the folder (as `kill`); those that have not started yet will not start."""
        self._wanted = self._wanted or signal.SIGTERM
        self._signal()

    def kill(self) -> None:
        self._wanted, self._killed = signal.SIGKILL, self._killed or time.monotonic()
        self._signal()
        if self._process is not None and not self._read("pid"):  # the task has not started
            self._process.kill()

    def _unread(self, found: Unavailable) -> int | None:
        self._unread_since = self._unread_since or time.monotonic()
        self._half_over = None  # the exit status may exist, so its absence is no evidence
        if time.monotonic() < self._unread_since + IN_A_JOB:
            return None
        self._blame(FaultCode.TASK_UNKNOWN, why=found.reason)
        return errors.RESUME

    def _judge(self, written: str, gone: bool, alone: bool) -> int | None:
        self._unread_since = None
        if not (written or (gone and not alone)):
            if self._killed is None or time.monotonic() < self._killed + UNREACHABLE:
                return None
            self._blame(FaultCode.NODE_ENDED)
            return -signal.SIGKILL
        self._half_over = self._half_over or time.monotonic()
        # SCRIPT records the command's exit status itself, so SCRIPT fails only if it is killed
        match = re.search(r"exit status (\d+)$", self._read("pbsdsh", whole=False).strip())
        status = int(match[1]) if match else 0
        over = (gone and (written or status)) or self._wanted is signal.SIGKILL
        # In a job that is being deleted PBS starts no task, and pbsdsh is not notified of the end of one.
        over = over or (self._wanted is not None and bool(written or not self._read("pid")))
        if not over and time.monotonic() < self._half_over + SETTLE_TIME:
            return None
        if written:
            return int(written)
        if self._wanted is not None:
            return -self._wanted
        if status > 256:
            self._blame(FaultCode.SIGNALLED, signal.Signals(status - 256).name)
            return 256 - status
        self._blame(FaultCode.SIGNALLED if self._read("pid") else FaultCode.TASK_NOT_STARTED)
        return errors.FAILED

    def _blame(self, code: FaultCode, signal_name: str | None = None, why: str = "") -> None:
        if attempt_is_over():  # then no task's end is a failure of the run
            return
        printed = " ".join(self._read("pbsdsh", whole=False).split())
        hint = f"; is {self._folder} on a file system that all nodes share?" if printed.endswith(" 127") else ""
        error = f"{why + '; ' if why else ''}pbsdsh says {printed or 'nothing'!r}{hint}"
        report(Fault(code=code, host=self._host, signal=signal_name, error=error), "pbsdsh")

    def _signal(self) -> None:
        if self._wanted is None or self._wanted is self._sent:
            return
        with contextlib.suppress(OSError), open(self._folder / SIGNAL, "r+") as file:  # else at the next poll
            file.write(f"{self._wanted.name.removeprefix('SIG')}\n")
            file.flush()
            self._sent = self._wanted

    def _copy_output(self) -> None:
        with contextlib.suppress(OSError), open(self._file("out"), "rb") as file:
            file.seek(self._copied)
            while text := file.read(1 << 20):
                self._copied += len(text)
                sys.stdout.buffer.write(text)
            sys.stdout.buffer.flush()

    def _read(self, suffix: str, *, whole: bool = True) -> str:
        # whole: only a complete first line. A file that cannot be read counts as empty until the next poll
        try:
            text = self._file(suffix).read_text(errors="replace")
        except OSError:
            return ""
        return _line(Ok(text)) if whole else text

    def _file(self, suffix: str) -> Path:
        return self._folder / f"{self._number}.{suffix}"


def _line(found: Outcome[str | None]) -> str:
    line, end, _ = ((found.value if isinstance(found, Ok) else None) or "").partition("\n")
    return line if end else ""


# -- Starts tasks on the nodes of the current PBS job, each with its own pbsdsh


@contextlib.contextmanager
def _guarded(tasks: Sequence[PbsTask], environment: TaskEnvironment) -> Iterator[None]:
    # Tasks survive their pbsdsh, so a guard process kills them if this process is killed
    reading, writing = os.pipe()
    guard = os.fork()
    if guard == 0:
        os.setsid()
        os.close(writing)
        if not os.read(reading, 1):
            for task in tasks:
                task.kill()
            environment.remove()
        os._exit(0)
    os.close(reading)
    try:
        yield
        os.write(writing, b"x")
    finally:
        os.close(writing)
        os.waitpid(guard, 0)
        environment.remove()  # it may have secrets


def run_pbsdsh(request: TaskRequest) -> int:
    """Starts the tasks on the job's first hosts; returns the first failed status, NO_RETRY if it cannot, else 0."""
    folder, nodes, tasks_per_node = request.folder, request.nodes, request.tasks_per_node
    os.umask(0o077)
    pbsdsh = find("pbsdsh")
    if pbsdsh is None:
        print("launcher: pbsdsh is not on PATH: add the folder of the PBS commands to it", file=sys.stderr)
        return errors.NO_RETRY
    lines = dict(list(hosts_in_node_file(Path(os.environ["PBS_NODEFILE"]).read_text()).items())[:nodes])
    if len(lines) < nodes:
        there = f"the PBS job is on {', '.join(lines)}, and {nodes} different hosts are needed"
        print(f"launcher: {there}", file=sys.stderr)
        return errors.NO_RETRY
    folder.mkdir()
    environment = write_environment(folder, {**os.environ, **environments(list(lines), tasks_per_node)[0]})
    write_script(folder, environment, os.getcwd(), request.command)
    hosts = [host for host in lines for _ in range(tasks_per_node)]  # of each task
    tasks = [
        PbsTask(pbsdsh, lines[host], host, folder, number, number // tasks_per_node)
        for number, host in enumerate(hosts)
    ]
    with _guarded(tasks, environment):
        for task in tasks:
            task.start()
        return watch(
            tasks, request.signals, request.grace, pause=max(0.1, 0.01 * len(tasks)), keep_going=request.keep_going,
            lost=lambda: _on_lost_nodes(hosts),
        )  # fmt: skip


def _on_lost_nodes(hosts: Sequence[str]) -> list[int]:
    try:
        nodes = PBS().nodes()
    except QueryError:
        return []
    down = {name for node in nodes if "down" in node.state for name in (node.name, node.others.get("host"))}
    return [number for number, host in enumerate(hosts) if host in down or host.partition(".")[0] in down]


# -- Starts tasks on the nodes of the current job with the site's mpiexec, which sets their ranks, and may pass no
# environment, so they read it from a file


MPIEXEC_SCRIPT = """\
# mpiexec runs this for every task.
umask 077
{environment}
export {guard}={folder}/"$(hostname).$$"
cd {cwd} || {{ [ -n "${{LAUNCHER_RUN_DIR:-}}" ] && cd /; }} || exit 93  # an agent says itself that it is not there
exec {command}
"""


def run_mpiexec(request: TaskRequest) -> int:
    """Runs `MPIEXEC bash SCRIPT`; returns its exit status (128 + N after signal N), NO_RETRY if it cannot start."""
    folder, words = request.folder, request.mpiexec
    os.umask(0o077)
    folder.mkdir()
    environ = dict(os.environ)
    try:
        if path := environ.get("PBS_NODEFILE"):  # which may be on this node only
            environ |= variable(list(hosts_in_node_file(Path(path).read_text())))
    except (OSError, errors.RunError) as error:
        print(f"launcher: the nodes of this job are not known: {error}", file=sys.stderr)
        return errors.RESUME if errors.is_transient(error) else errors.NO_RETRY
    environment, script = write_environment(folder, environ), folder / "task.sh"
    text = MPIEXEC_SCRIPT.format(
        folder=shlex.quote(str(folder)), environment=environment.shell, guard=processes.GUARD,
        cwd=shlex.quote(os.getcwd()), command=shlex.join(request.command),
    )  # fmt: skip
    script.write_bytes(os.fsencode(text))
    try:
        process = subprocess.Popen([*words, "/bin/bash", str(script)], stdin=subprocess.DEVNULL)
    except OSError as error:
        print(f"launcher: {words[0]} (cluster.mpiexec) cannot be started: {error.strerror}", file=sys.stderr)
        return errors.NO_RETRY
    try:
        return watch([process], request.signals, request.grace, pause=0.1)
    finally:
        environment.remove()  # it may have secrets
