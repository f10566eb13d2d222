"""The MoMs of the nodes: they run the processes of jobs, with their environment, node files, output files and signals.

The job script leads a session on the first node, and each pbsdsh task leads a session of its own. MoM knows only these
sessions: a process that called setsid is not signalled and outlives the job (there is no cgroups hook).
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import secrets
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.pbs.stand_in.jobs import Job
from tests.pbs.stand_in.resources import Chunk

NOT_STARTED = 254
SIGNALS = ("HUP", "INT", "QUIT", "ILL", "TRAP", "IOT", "ABRT", "FPE", "KILL", "BUS", "SEGV", "PIPE", "ALRM", "TERM",
           "URG", "STOP", "TSTP", "CONT", "CHLD", "CLD", "TTIN", "TTOU", "IO", "POLL", "XCPU", "XFSZ", "VTALRM",
           "PROF", "WINCH", "USR1", "USR2")  # fmt: skip


def signal_number(name: str) -> int | None:
    """Returns the number of a signal: SIGUSR1, USR1 or 10 (resmom/linux/mom_start.c, sig_tbl); None: it is unknown."""
    if name.isdecimal():
        return int(name)
    bare = name.removeprefix("SIG")
    return int(getattr(signal, f"SIG{bare}")) if bare in SIGNALS else 0 if bare == "NULL" else None


@dataclass
class Task:
    """A process that pbsdsh started, or the job script (task 0).

    Attributes:
        number: the task's number within the job.
        node: the index of its host among the job's hosts.
        process: the process; None: it could not be started.
        status: the exit status in PBS's form (256 + signal number if killed); None: the task still runs.
        ended: set when the task has ended.
    """

    number: int
    node: int
    process: subprocess.Popen[bytes] | None
    status: int | None = None
    ended: threading.Event = field(default_factory=threading.Event)

    @property
    def session(self) -> int | None:
        return self.process.pid if self.process else None


@dataclass
class Run:
    """One execution of a job; a requeued job has several.

    Attributes:
        job: the job.
        hosts: its hosts, each once.
        environment: the variables of its processes.
        output, error: the files that it writes to while it runs.
        folder: its TMPDIR.
        main: the task of the job script.
        tasks: the tasks that pbsdsh started.
        status_instead: Exit_status of a job that PBS ended itself (-29, -11, -4); None: that of the script counts.
        kill_at: when PBS sends SIGKILL, as time.monotonic(); None: it has not asked the job to end.
    """

    job: Job
    hosts: list[str]
    environment: dict[str, str]
    output: Path
    error: Path
    folder: Path
    main: Task
    tasks: list[Task] = field(default_factory=list)
    status_instead: int | None = None
    kill_at: float | None = None

    @property
    def ending(self) -> bool:
        """Whether PBS has asked the job to end (qdel, wall time, qrerun), or its script has ended."""
        return self.kill_at is not None or self.main.status is not None

    def signal(self, number: int) -> None:
        """Sends a signal to all processes of the sessions on the first node (resmom/linux/mom_mach.c, kill_job)."""
        for task in [self.main, *self.tasks]:
            if task.node == 0 and task.status is None and task.session:
                signal_session(task.session, number)

    def end_tasks(self) -> None:
        """Kills all remaining processes of the job's sessions on all nodes, as at the end of a job."""
        for task in [self.main, *self.tasks]:
            if task.session:
                signal_session(task.session, signal.SIGKILL)


def sessions_of_processes() -> dict[int, int]:
    """Returns the session id of each process on this host, by pid, without zombies."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                stat = (entry / "stat").read_text(errors="replace")
                state, _, _, session = stat[stat.rindex(")") + 2 :].split()[:4]
                if state != "Z":
                    found[int(entry.name)] = int(session)
    return found


def members(session: int | None) -> list[int]:
    """Returns the pids of the live processes of a session, its leader first."""
    found = [pid for pid, its in sessions_of_processes().items() if its == session]
    return sorted(found, key=lambda pid: pid != session)


def signal_session(session: int, number: int) -> None:
    """Sends a signal to every process of a session."""
    for pid in members(session):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


class Mom:
    """The MoMs of all nodes, which share their files.

    Attributes:
        folder: PBS_HOME: job scripts, node files, spool.
        home: the $HOME of jobs.
    """

    def __init__(self, folder: Path, exec_folder: Path, ended: Callable[[Run, int], None]) -> None:
        """
        Args:
            folder: PBS_HOME.
            exec_folder: PBS_EXEC, which contains `home` and pbs.conf.
            ended: called in a thread of its own when the script of a run has ended, with the run and the exit status.
        """
        self.folder = folder
        self.home = exec_folder / "home"
        self._ended = ended
        self._exec = exec_folder
        self._user = pwd.getpwuid(os.getuid()).pw_name
        self.reset()

    # -- a job

    def start(self, job: Job, hosts: Sequence[str]) -> Run:
        """Starts the script of a job; `hosts` has the host of each chunk."""
        asked = job.submission
        node_file = self.folder / "aux" / job.id
        chunks = asked.request.chunks
        lines = [host for chunk, host in zip(chunks, hosts, strict=True) for _ in range(chunk.lines)]
        node_file.write_text("".join(f"{line}\n" for line in lines or [""]))
        folder = self.folder / "scratch" / f"pbs.{job.id}"
        folder.mkdir(mode=0o700)
        output, error = self._output_files(job)
        run = Run(
            job, list(dict.fromkeys(hosts)), self._environment(job, node_file, folder, chunks[0]), output, error,
            folder, Task(0, 0, None),
        )  # fmt: skip
        if asked.executable is not None:
            run.main.process = self._launch(run, [asked.executable, *asked.arg_list], run.environment)
        else:
            run.main.process = self._launch_shell(run)
        threading.Thread(target=self._wait, args=(run,), daemon=True).start()
        return run

    def spawn(self, run: Run, line: int, command: Sequence[str]) -> Task:
        """Starts a task of pbsdsh on the node that a line of the node file names (from 0; it wraps around)."""
        lines = Path(run.environment["PBS_NODEFILE"]).read_text().splitlines()
        host = lines[line % len(lines)]
        node = run.hosts.index(host) if host in run.hosts else 0
        count = sum(task.node == node for task in run.tasks) + (2 if node == 0 else 1)
        names = ("USER", "LOGNAME", "SHELL")
        environment = {name: value for name, value in run.environment.items() if name not in names}
        environment |= {"PBS_NODENUM": str(node), "PBS_TASKNUM": f"{node * 0x20000000 + count:08X}"}
        task = Task(node * 0x40000000 + count, node, self._launch(run, list(command), environment))
        run.tasks.append(task)
        threading.Thread(target=self._wait_task, args=(task,), daemon=True).start()
        return task

    def clear(self, run: Run) -> None:
        """Removes the files of a run on its nodes, but not the job's script, which a requeued job needs again."""
        shutil.rmtree(run.folder, ignore_errors=True)
        (self.folder / "aux" / run.job.id).unlink(missing_ok=True)

    def reset(self) -> None:
        """Removes the files of all jobs."""
        for name in ("mom_priv/jobs", "aux", "spool", "scratch"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
            (self.folder / name).mkdir(parents=True)

    @staticmethod
    def lose(run: Run, host: str) -> None:
        """Kills all processes of a run on a node, even those in sessions that MoM does not know."""
        node = run.hosts.index(host) if host in run.hosts else None
        marks = {f"PBS_JOBCOOKIE={run.environment['PBS_JOBCOOKIE']}".encode(), f"PBS_NODENUM={node}".encode()}
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                with contextlib.suppress(OSError):
                    if marks <= set((entry / "environ").read_bytes().split(b"\0")):
                        os.kill(int(entry.name), signal.SIGKILL)

    def remove_script(self, job: Job) -> None:
        self._script(job).unlink(missing_ok=True)

    # -- how

    def _script(self, job: Job) -> Path:
        return self.folder / "mom_priv/jobs" / f"{job.id}.SC"

    def _environment(self, job: Job, node_file: Path, folder: Path, first: Chunk) -> dict[str, str]:
        """Returns a job's variables, in the order of resmom/start_exec.c.

        Of the submitter's shell they have only PBS_O_*, and the variables that qsub passed.
        """
        asked = job.submission
        made = {
            # On a real node the file pbs_environment has variables for all jobs; here they select the pbs.conf.
            "PATH": "/bin:/usr/bin", "PBS_CONF_FILE": str(self._exec / "pbs.conf"),
            **asked.variables, "HOME": str(self.home), "LOGNAME": self._user, "PBS_JOBNAME": asked.name,
            "PBS_JOBID": job.id, "PBS_QUEUE": asked.queue, "SHELL": "/bin/bash", "USER": self._user,
            "PBS_JOBCOOKIE": secrets.token_hex(16).upper(), "PBS_NODENUM": "0", "PBS_TASKNUM": "1",
            "PBS_MOMPORT": "15003", "OMP_NUM_THREADS": str(first.threads), "NCPUS": str(first.number("ncpus")),
            "PBS_NODEFILE": str(node_file), "PBS_JOBDIR": str(self.home), "TMPDIR": str(folder),
            "PBS_ENVIRONMENT": "PBS_BATCH", "ENVIRONMENT": "BATCH",
        }  # fmt: skip
        if asked.account:
            made["PBS_ACCOUNT"] = asked.account
        if job.parent is not None:
            made |= {"PBS_ARRAY_INDEX": str(job.index), "PBS_ARRAY_ID": job.parent.id}
        return made

    def _output_files(self, job: Job) -> tuple[Path, Path]:
        """Creates and returns the files that a job writes to while it runs: in the spool, or final ones with `-k d`."""
        asked = job.submission
        files = []
        for which, suffix in (("o", "OU"), ("e", "ER")):
            direct = "d" in asked.keep and which in asked.keep
            files.append(destination(job, which) if direct else self.folder / "spool" / f"{job.id}.{suffix}")
        output, error = files
        if asked.join == "oe":
            error = output
        if asked.join == "eo":
            output = error
        for path in {output, error}:
            with contextlib.suppress(OSError):
                path.touch()
                path.chmod(_mode(asked.umask))
        return output, error

    def _launch_shell(self, run: Run) -> subprocess.Popen[bytes] | None:
        """Starts a login shell that reads the path of the job script (brackets escaped) from a pipe, and runs it."""
        job = run.job
        script = self._script(job)
        script.write_bytes(job.submission.script or b"")
        script.chmod(0o700)
        shell = job.submission.shell or "/bin/bash"
        process = self._launch(
            run, [shell], run.environment, stdin=subprocess.PIPE, name=f"-{os.path.basename(shell)}"
        )  # fmt: skip
        if process is not None and process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(str(script).replace("[", "\\[").replace("]", "\\]").encode() + b"\n")
                process.stdin.close()
        return process

    def _launch(
        self, run: Run, command: list[str], environment: dict[str, str], *, stdin: int = subprocess.DEVNULL,
        name: str | None = None,
    ) -> subprocess.Popen[bytes] | None:  # fmt: skip
        """Starts a command in $HOME, as the leader of a session; None: it cannot be executed. PATH is not searched."""
        umask = _umask(run.job.submission.umask, 0o077)
        try:
            with open(run.output, "ab") as output, open(run.error, "ab") as error:
                return subprocess.Popen(
                    [name or command[0], *command[1:]], executable=os.path.join(self.home, command[0]),
                    env=environment, cwd=self.home, stdin=stdin, stdout=output, stderr=error, umask=umask,
                    start_new_session=True,
                )  # fmt: skip
        except (OSError, ValueError):
            return None

    def _wait(self, run: Run) -> None:
        self._wait_task(run.main)
        self._ended(run, run.main.status or 0)

    @staticmethod
    def _wait_task(task: Task) -> None:
        code = task.process.wait() if task.process else NOT_STARTED
        task.status = code if code >= 0 else 256 - code
        task.ended.set()


def destination(job: Job, which: str) -> Path:
    """Returns the path to which the output (`o`) or error file (`e`) is delivered; in a directory `76.pbs-srv.OU`."""
    index = str(job.index) if job.index is not None else ""
    path = job.path(which, index).partition(":")[2]
    if path.endswith("/"):
        path += f"{job.id}.{'OU' if which == 'o' else 'ER'}"
    return Path(path)


def deliver(run: Run, home: Path) -> None:
    """Moves the output of an ended job from the spool to its destination. A failure of this is not reported."""
    asked = run.job.submission
    for which, source in (("o", run.output), ("e", run.error)):
        if asked.join != "n" and asked.join[0] != which:
            continue
        if which in (asked.remove or "") and run.job.exit_status == 0:
            source.unlink(missing_ok=True)
        elif not ("d" in asked.keep and which in asked.keep):
            _copy(source, _target(run.job, which, home), _mode(asked.umask))


def _mode(umask: str | None) -> int:
    """Returns the mode of an output file: private, unless -W umask allows more."""
    return 0o666 & ~_umask(umask, 0o066)


def _umask(text: str | None, default: int) -> int:
    """Returns the value of -W umask, which is octal; `default` for None, and for digits that are not octal, as 9."""
    octal = re.match("[0-7]*", text or "")
    return int(octal[0], 8) if octal and octal[0] else default


def _target(job: Job, which: str, home: Path) -> Path:
    """Returns the final path of an output file: its destination, or with `-k oe` its default name in $HOME."""
    target = destination(job, which)
    if which in job.submission.keep and "d" not in job.submission.keep:
        dot = f".{job.index}" if job.index is not None else ""
        return home / f"{job.submission.name}.{which}{job.number}{dot}"
    return target


def _copy(source: Path, target: Path, mode: int) -> None:
    with contextlib.suppress(OSError):
        if target == Path("/dev/null"):
            source.unlink()
            return
        shutil.copyfile(source, target)
        target.chmod(mode)
        source.unlink()
