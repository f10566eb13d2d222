"""The daemon that executes all commands: `daemon.py FOLDER HOST...` serves FOLDER/socket until a test stops it.

A command sends its arguments, its environment, and its stdin as a file descriptor; see wire.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
import grp
import os
import pwd
import shutil
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.pbs.stand_in import commands, errors, mom, qsub, wire
from tests.pbs.stand_in.arguments import SERVER, job_id
from tests.pbs.stand_in.errors import PbsError
from tests.pbs.stand_in.jobs import Job
from tests.pbs.stand_in.qstat import VERSION, Answer
from tests.pbs.stand_in.server import Queue, Server

Message = dict[str, Any]


class Daemon:
    """Executes the requests of commands and tests, each in a thread of its own.

    Attributes:
        folder: the folder of the socket and of all files.
        calls: the commands that were called since the last reset, as [name, arguments...].
        server: the simulated PBS server.
        stopped: set when a test has stopped the daemon.
    """

    def __init__(self, folder: Path, hosts: list[str]) -> None:
        self.folder = folder
        self.calls: list[list[str]] = []
        user = pwd.getpwuid(os.getuid()).pw_name
        self.server = Server(folder / "spool", folder, hosts, user)
        self.stopped = threading.Event()

    def serve(self) -> None:
        """Accepts connections until the daemon is stopped."""
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(str(self.folder / "socket.new"))
        listening.listen(256)
        os.rename(self.folder / "socket.new", self.folder / "socket")  # a client that finds the file can connect
        while not self.stopped.is_set():
            connection, _ = listening.accept()
            threading.Thread(target=self._serve_one, args=(connection,), daemon=True).start()

    def _serve_one(self, connection: socket.socket) -> None:
        with connection, contextlib.ExitStack() as descriptors, contextlib.suppress(OSError):
            head, given, _, _ = socket.recv_fds(connection, 4, 1)
            for descriptor in given:
                descriptors.callback(os.close, descriptor)
            message = wire.receive(connection, head)
            if message is None:
                return
            if message["command"] == "control":
                connection.sendall(wire.pack(self._control(message["what"], message["value"])))
            elif message["command"] == "pbsdsh":
                self._tasks(message, connection)
            else:
                answer = self._command(message, given)
                connection.sendall(wire.pack(dataclasses.asdict(answer)))
        if self.stopped.is_set():  # wake accept() up
            socket.socket(socket.AF_UNIX).connect(str(self.folder / "socket"))

    # -- commands

    def _command(self, message: Message, descriptors: list[int]) -> Answer:
        """Executes a command other than pbsdsh; `descriptors` has its stdin."""
        name, argv = message["command"], message["argv"]
        with self.server.lock:
            self.calls.append([name, *argv])
        if name == "qsub":
            return self._qsub(message, descriptors)
        with self.server.lock:
            return commands.run(name, self.server, argv, message["environ"])

    def _qsub(self, message: Message, descriptors: list[int]) -> Answer:
        if message["argv"] == ["--version"]:
            return Answer(f"pbs_version = {VERSION}\n")
        try:
            draft = qsub.read(
                message["argv"], message["environ"], message["cwd"], lambda: _read_all(descriptors[0])
            )  # fmt: skip
            job = self._submit(draft)
        except qsub.Failed as failed:
            return Answer(err=failed.text, status=failed.status)
        except PbsError as error:
            return Answer(err=f"qsub: {error.text}\n", status=error.exit_status)
        answer = Answer("" if draft.silent else f"{job.id}\n")
        if draft.block:
            answer.status = self._block(job)
        time.sleep(self.server.settings.hang)
        return answer

    def _submit(self, draft: qsub.Draft) -> Job:
        server, wishes = self.server, draft.wishes
        with server.lock:
            queue, at, host = wishes.values.get("q", "").partition("@")
            if at and host != SERVER:
                raise qsub.Failed(160, "Unknown Host.", f"qsub: cannot connect to server {host[:7]} (errno=15008)")
            # PBS_DEFAULT is ignored: the real qsub leaves a process that submits for other qsubs of the next minute.
            if outage := server.outage({}):
                raise qsub.Failed(outage.code % 256, outage.text("qsub"))
            if server.user not in wishes.values.get("u", server.user).split(","):
                raise errors.bad_user()
            number = server.take_number()
            if not _is_group(wishes.attributes.get("group_list")):
                raise errors.bad_group()
            array = qsub.indices_of(wishes.values["J"]) if "J" in wishes.values else None
            if "max_run_subjobs" in wishes.attributes and array is None:
                raise errors.only_for_arrays()
            server.require(wishes.values, wishes.attributes)
            queue, request = server.admit(queue or None, wishes.resources, array=array)
            made = qsub.submission(draft, queue, request, server.user)
            return server.submit(number, made, qsub.dependencies(wishes.attributes.get("depend", "")))

    def _block(self, job: Job) -> int:
        """Waits for the end of a job (before its output is delivered), and returns its exit status modulo 256."""
        with self.server.lock:
            while not (job.state in ("E", "F") and (job.exit_status is not None or job.state == "F")):
                self.server.changed.wait()
            return (job.exit_status or 0) % 256

    # -- pbsdsh

    def _tasks(self, message: Message, connection: socket.socket) -> None:
        """Serves a pbsdsh until it disconnects: starts, signals and waits for tasks of its job, as a MoM does."""
        with self.server.lock:
            run = self.server.runs.get(message["job"])
        lines = len(Path(run.environment["PBS_NODEFILE"]).read_text().splitlines()) if run else 0
        connection.sendall(wire.pack({"lines": lines}))
        while run is not None and (request := wire.receive(connection)) is not None:
            connection.sendall(wire.pack(self._task(run, request)))

    def _task(self, run: mom.Run, request: Message) -> Message:
        """Executes one request of a pbsdsh: to start a task, to wait for it, or to signal it.

        While PBS is ending the job, starting and waiting block until the job is over.
        """
        if "spawn" in request:
            with self.server.lock:
                if not run.ending:
                    return {"task": self.server.mom.spawn(run, request["line"], request["spawn"]).number}
            self._wait_for_end(run)
            return {}
        wanted = request.get("wait", request.get("kill"))
        task = next((task for task in run.tasks if task.number == wanted), None)
        if task is None:
            return {}
        if "wait" in request:
            task.ended.wait()
            if run.ending:
                self._wait_for_end(run)
        elif task.status is None and task.session:
            mom.signal_session(task.session, request["signal"])
        return {"status": task.status or 0}

    def _wait_for_end(self, run: mom.Run) -> None:
        with self.server.lock:
            while self.server.runs.get(run.job.id) is run:
                self.server.changed.wait()

    # -- requests of tests

    def _control(self, what: str, value: Any) -> Message:
        """Executes a request of a test; see the methods of tests.pbs.pbs_cluster.PbsCluster.

        Returns a message with a `value`, or with an `error` as text.
        """
        server = self.server
        with server.lock:
            if what == "calls":
                return {"value": [call for call in self.calls if value in (None, call[0])]}
            if what == "set":
                known = {field.name for field in dataclasses.fields(server.settings)}
                if unknown := set(value) - known:
                    return {"error": f"no setting {', '.join(unknown)}: there are {', '.join(sorted(known))}"}
                for name, its in value.items():
                    setattr(server.settings, name, its)
                if not server.settings.history:
                    server.purge()
            elif what == "queues":
                server.queues = {queue["name"]: Queue(**queue) for queue in value}
            elif what == "rerun":
                try:
                    server.rerun(job_id(value) or value)
                except PbsError as error:
                    return {"error": error.text}
            elif what == "lose":
                server.lose(value)
            elif what == "restore":
                server.restore(value)
            elif what == "reset":
                self.calls.clear()
                server.reset()
            elif what == "stop":
                server.reset()
                self.stopped.set()
            server.tell()
        return {}


def _leave_with(parent: int, daemon: Daemon) -> None:
    """Ends all jobs, removes the folder and exits when the parent process, a test run, has ended."""
    while os.getppid() == parent:
        time.sleep(1)
    with daemon.server.lock:
        daemon.server.reset()
        shutil.rmtree(daemon.folder, ignore_errors=True)
        os._exit(1)


def _is_group(name: str | None) -> bool:
    return name is None or name.partition("@")[0] in {group.gr_name for group in grp.getgrall()}


def _read_all(descriptor: int) -> bytes:
    with open(descriptor, "rb", closefd=False) as file:
        return file.read()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    site = Daemon(Path(sys.argv[1]), sys.argv[2:])
    threading.Thread(target=_leave_with, args=(os.getppid(), site), daemon=True).start()
    site.serve()
