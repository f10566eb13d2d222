"""The server and its scheduler: submission of jobs, holds, dependencies, start, deletion, end and history.

Callers of the server hold its lock. MoM's threads that report the end of a run take the lock themselves.
"""

from __future__ import annotations

import contextlib
import re
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.pbs.stand_in import errors, jobs, mom, resources
from tests.pbs.stand_in.arguments import SERVER
from tests.pbs.stand_in.jobs import Job, Submission
from tests.pbs.stand_in.placement import Node, Refusal, needs, place

WALLTIME, RERUN, MOM_LOST = -29, -11, -4  # Exit_status of a job that PBS ended itself (job.h, JOB_EXEC_*)
DEPENDENCIES = {"after": "before", "afterok": "beforeok", "afternotok": "beforenotok", "afterany": "beforeany"}


@dataclass
class Queue:
    """A queue with its limits.

    Attributes:
        name: its name.
        enabled: whether it accepts jobs.
        most, least: resources_max and resources_min, in the form that qstat shows.
        jobs: how many jobs of one user may be queued or running in it (max_queued); None: no limit.
        routes: for a route queue, the queues to which it passes jobs: the first that accepts a job gets it.
        inner: whether it accepts jobs only from a route queue (from_route_only).
    """

    name: str
    enabled: bool = True
    most: dict[str, str] = field(default_factory=dict)
    least: dict[str, str] = field(default_factory=dict)
    jobs: int | None = None
    routes: list[str] = field(default_factory=list)
    inner: bool = False

    def refuses(self, request: resources.Request) -> bool:
        """Returns whether a job asks for more or less of a resource than the queue allows.

        Resources that the job does not ask for are not compared (server/svr_jobfunc.c, chk_resc_limits).
        """
        asked = {name: resources.amount(name, text) for name, text in request.values.items() if name in COMPARED}
        return any(
            name in asked and (asked[name] > limit if limits is self.most else asked[name] < limit)
            for limits in (self.most, self.least)
            for name, limit in ((name, resources.amount(name, text)) for name, text in limits.items())
        )


COMPARED = ("walltime", "nodect", "ncpus", "ngpus", "mem")


@dataclass
class Settings:
    """Settings that a test may change; reset() restores these defaults.

    Attributes:
        history: whether the server keeps a job history (job_history_enable). A real server's default is off.
        max_array_size: the maximum number of elements of an array.
        kill_delay: seconds between SIGTERM and SIGKILL. On a real server a queue's attribute with the default 10; 10 to
            22 s were observed.
        frozen: whether the scheduler starts no jobs.
        down: whether the server does not answer.
        hang: seconds by which qsub returns later than the server accepts the job.
        resources: the names of the resources that the site has defined.
        start_delay: seconds that a job is in substate 41, without session_id and resources_used.
        walltime_poll: seconds between two checks of the wall times of jobs.
        delivery_delay: seconds that a job is in state E before its output is delivered.
        default_queue: the queue of jobs that name none.
        node: the resources of each node; mem in kb.
        required: what the site's submission hook requires of every job: names of resources, project, Account_Name,
            group_list.
        totals: whether the hook converts the total `ncpus`, `ngpus` and `mem` of a job to a select statement of nodes.
        next_number: the number of the next job. reset() does not change it, so that ids stay unique.
    """

    history: bool = True
    max_array_size: int = 10000
    kill_delay: float = 3.0
    frozen: bool = False
    down: bool = False
    hang: float = 0.0
    resources: list[str] = field(default_factory=lambda: ["ngpus"])
    start_delay: float = 0.1
    walltime_poll: float = 1.0
    delivery_delay: float = 0.05
    default_queue: str = "workq"
    node: dict[str, int] = field(default_factory=lambda: {"ncpus": 16, "ngpus": 4, "mem": 64 << 20})
    required: list[str] = field(default_factory=list)
    totals: bool = False
    next_number: int = 0


@dataclass(frozen=True)
class Outage:
    """A server that cannot be reached.

    Attributes:
        words: the error text of PBS's library.
        server: the name of the server.
        code: the error code.
    """

    words: str
    server: str
    code: int

    def text(self, command: str) -> str:
        return f"{self.words}\n{command}: cannot connect to server {self.server} (errno={self.code})"


def standard_queues() -> dict[str, Queue]:
    queues = (
        Queue("workq"), Queue("debug", most={"walltime": "00:10:00"}), Queue("small", most={"nodect": "1"}),
        Queue("off", enabled=False),
    )  # fmt: skip
    return {queue.name: queue for queue in queues}


class Server:
    """The server and its scheduler.

    Attributes:
        lock: guards everything; a caller of any method holds it.
        changed: notified at each change of a job.
        settings: the settings, which tests change.
        queues: the queues by name.
        jobs: the jobs and arrays by number, with those in the history.
        runs: the runs of running jobs, by job id.
        user: the user who runs the daemon, and owns all jobs.
        mom: the MoMs.
        lost: the hosts that a test has taken down.
    """

    def __init__(self, folder: Path, exec_folder: Path, hosts: Sequence[str], user: str) -> None:
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.settings = Settings()
        self.queues = standard_queues()
        self._stale = False
        self.jobs: dict[int, Job] = {}
        self.runs: dict[str, mom.Run] = {}
        self.user = user
        self.mom = mom.Mom(folder, exec_folder, self._ended)
        self._hosts = tuple(hosts)
        self.lost: set[str] = set()
        self._taken: dict[str, list[tuple[str, resources.Chunk]]] = {}
        self._slots: dict[str, list[tuple[str, int]]] = {}
        threading.Thread(target=self._schedule_forever, daemon=True).start()

    def outage(self, environ: Mapping[str, str]) -> Outage | None:
        """Returns why a command with this environment cannot reach the server; None: it can."""
        named = environ.get("PBS_DEFAULT") or SERVER
        if named != SERVER:
            return Outage("Unknown Host.", named, errors.BAD_HOST)
        return Outage("Connection refused", SERVER, errors.NO_CONNECTION) if self.settings.down else None

    # -- finding

    def live(self, *, history: bool) -> list[Job]:
        """Returns all jobs in the order of their numbers, with finished ones if `history`; no elements of arrays."""
        return [job for job in self.jobs.values() if history or job.state != "F"]

    def find(self, job_id: str) -> list[Job]:
        """Returns the job, the array, or the elements (`12[3]`, `12[3-7:2]`) with this id.

        Raises:
            PbsError: no such job is known.
        """
        match = re.match(r"(\d+)(\[([\d:-]*)\])?", job_id)
        job = self.jobs.get(int(match[1])) if match else None
        if match is None or job is None or job.is_array != bool(match[2]):
            raise errors.unknown_job()
        if not match[3]:
            return [job]
        found = [job.subjobs[index] for index in indices(match[3]) if index in job.subjobs]
        if not found:
            raise errors.unknown_job()
        return found

    # -- qsub

    def take_number(self) -> int:
        """Returns the number for a new job. A submission that is refused later has used its number up."""
        number = self.settings.next_number
        self.settings.next_number += 1
        return number

    def known_resources(self) -> frozenset[str]:
        return frozenset(resources.TYPES) - {"ngpus"} | set(self.settings.resources)

    def admit(self, queue_name: str | None, asked: dict[str, str], *, array: Sequence[int] | None) -> tuple[
        str, resources.Request
    ]:  # fmt: skip
        """Returns the queue that accepts a job, and the job's resources with the queue's defaults.

        Args:
            queue_name: the queue that the job names; None: the default queue.
            asked: the resources that the job asks for.
            array: the indices of an array; None: the job is none.

        Raises:
            PbsError: the job is refused.
        """
        queue = self.queues.get(queue_name or self.settings.default_queue)
        if queue is None:
            raise errors.unknown_queue()
        if array is not None and len(array) > self.settings.max_array_size:
            raise errors.array_too_large()
        request = resources.request(self._hook(asked), self.known_resources())
        limit = queue.most.get("walltime")
        if limit and request.walltime is None:
            request = resources.Request(request.chunks, dict(sorted({**request.values, "walltime": limit}.items())))
        if queue.inner:
            raise errors.no_access()
        if not queue.enabled:
            raise errors.queue_disabled()
        if queue.refuses(request):
            raise errors.exceeds_queue()
        if queue.routes:
            return self._route(queue, request), request
        self._count(queue, array)
        return queue.name, request

    def _hook(self, asked: dict[str, str]) -> dict[str, str]:
        """Runs the site's submission hook on the resources of a job, and returns them as changed by the hook.

        Raises:
            PbsError: a required resource is missing.
        """
        for name in self.settings.required:
            if name not in ("project", "Account_Name", "group_list") and name not in asked:
                raise errors.required(f"Resource: {name}")
        if not self.settings.totals or "select" in asked:
            return asked
        node = self.settings.node
        cpus, gpus = int(asked.get("ncpus", 1)), int(asked.get("ngpus", 0))
        nodes = max(-(-cpus // node["ncpus"]), -(-gpus // node["ngpus"]), 1)
        mem = resources.size_in_bytes(asked.get("mem", "500mb")) // nodes // 1024
        chunk = f"ncpus={cpus // nodes}:ngpus={gpus // nodes}:mem={mem}kb:mpiprocs={cpus // nodes}"
        rest = {name: text for name, text in asked.items() if name not in ("ncpus", "ngpus", "mem")}
        return {**rest, "select": f"{nodes}:{chunk}", "place": "scatter" if nodes > 1 else "free"}

    def require(self, wishes: Mapping[str, str], attributes: Mapping[str, str]) -> None:
        """Runs the site's submission hook on the options of a job.

        Args:
            wishes: the values of options, by letter.
            attributes: the values of -W, by name.

        Raises:
            PbsError: a required option is missing.
        """
        for name, letter in (("project", "P"), ("Account_Name", "A")):
            if name in self.settings.required and not wishes.get(letter):
                raise errors.required(name)
        if "group_list" in self.settings.required and "group_list" not in attributes:
            raise errors.required("group_list")

    def _route(self, queue: Queue, request: resources.Request) -> str:
        for name in queue.routes:
            if not self.queues[name].refuses(request):
                return name
        raise errors.no_route()

    def _count(self, queue: Queue, array: Sequence[int] | None) -> None:
        live = [job for job in self.live(history=False) if job.submission.queue == queue.name]
        jobs = sum(len(job.subjobs) or 1 for job in live) + (len(array) if array is not None else 1)
        if queue.jobs is not None and jobs > queue.jobs:
            raise errors.too_many_jobs(queue.name)

    def submit(self, number: int, submission: Submission, depend: str | None) -> Job:
        """Adds a job and returns it. If its dependency can no longer be met, the job ends at once.

        Args:
            number: the job's number.
            submission: what qsub asked for.
            depend: its dependencies, in the form that `qsub.dependencies` returns; None: it has none.
        """
        job = Job(number, submission)
        if submission.indices is not None:
            job.subjobs = {index: Job(number, submission, parent=job, index=index) for index in submission.indices}
        self.jobs[number] = job
        if submission.held:
            job.hold = "u"
        if depend:
            self._depend(job, depend)
        self._settle(job)
        self.tell()
        return job

    def _settle(self, job: Job) -> None:
        """Sets the state of a job that is not running: held, waiting for its start time, or queued."""
        if job.over or job.state in ("R", "E", "B"):
            return
        if job.hold != "n":
            job.say("H", jobs.HELD_BY_DEPENDENCY if "s" in job.hold else jobs.HELD)
        elif (job.submission.start_after or 0) > time.time():
            job.say("W", jobs.WAITING)
        else:
            job.say("Q", jobs.QUEUED)
            job.eligible = job.eligible or time.time()

    # -- dependencies

    def _depend(self, job: Job, text: str) -> None:
        for part in text.split(","):
            kind, *ids = part.split(":")
            for one in ids:
                other = self.jobs.get(int(re.match(r"\d+", one)[0]))  # type: ignore[index]
                job.depend.setdefault(kind, []).append(f"{one}@{SERVER}")
                if other is None or kind not in DEPENDENCIES or not one.startswith(other.id):
                    job.hold = "s"
                    self._finish(job, jobs.FINISHED)
                    return
                other.depend.setdefault(DEPENDENCIES[kind], []).append(f"{job.id}@{SERVER}")
                job.hold = "su" if job.submission.held else "s"
                self._judge(job, kind, other)

    def _judge(self, job: Job, kind: str, other: Job) -> None:
        """Releases or ends a job if its dependency (of this kind, on `other`) is now met or can no longer be met."""
        if job.over or f"{other.id}@{SERVER}" not in job.depend.get(kind, ()):
            return
        met = _is_met(kind, other)
        if met:
            job.depend[kind].remove(f"{other.id}@{SERVER}")
            job.depend = {name: ids for name, ids in job.depend.items() if ids}
            if not any(name in DEPENDENCIES for name in job.depend):
                job.hold = "u" if "u" in job.hold else "n"
                self._settle(job)
        elif met is False:
            self._finish(job, jobs.FINISHED)

    def _tell_dependents(self, other: Job) -> None:
        for job in list(self.jobs.values()):
            for kind in DEPENDENCIES:
                self._judge(job, kind, other)

    # -- running

    def tell(self) -> None:
        """Notifies the scheduler and blocked commands of a change."""
        self._stale = True
        self.changed.notify_all()

    def _schedule_forever(self) -> None:
        checked = time.monotonic()
        while True:
            with self.lock:
                self.changed.wait(0.1)
                for job in self.jobs.values():
                    if job.state == "W":
                        self._settle(job)
                        self._stale = True
                self._confirm_starts()
                if time.monotonic() - checked >= self.settings.walltime_poll:
                    checked = time.monotonic()
                    self._check_walltimes()
                self._kill_the_late()
                if self._stale and not self.settings.frozen:
                    self._stale = False
                    self._schedule()

    def _schedule(self) -> None:
        """Starts jobs in the order of their numbers; a job that does not fit now does not block later ones."""
        nodes = self.nodes()
        for job in list(self.jobs.values()):
            waiting: list[Job] = []
            if job.state in ("Q", "B"):
                waiting = [one for one in job.subjobs.values() if one.state == "Q"] if job.is_array else [job]
            for one in waiting:
                if not self._may_start(one):
                    break
                hosts = place(one.submission.request, nodes)
                if isinstance(hosts, Refusal):
                    if job.state == "Q":
                        job.comment = hosts.comment
                    break
                self._start(one, hosts)
                nodes = self.nodes()

    @staticmethod
    def _may_start(job: Job) -> bool:
        most = job.submission.max_run_subjobs
        if job.parent is None or most is None:
            return True
        return sum(one.state in ("R", "E") for one in job.parent.subjobs.values()) < most

    def nodes(self) -> list[Node]:
        nodes = []
        for host, total in ((host, self.settings.node) for host in self._hosts):
            free = dict(total)
            for taken in self._taken.values():
                for its, chunk in taken:
                    if its == host:
                        for name, amount in needs(chunk).items():
                            free[name] -= amount
            if host in self.lost:
                free = dict.fromkeys(total, 0)
            nodes.append(Node(host, total, free, whole=not any(its == host for its, _ in self._all_taken())))
        return nodes

    def _all_taken(self) -> Iterator[tuple[str, resources.Chunk]]:
        for taken in self._taken.values():
            yield from taken

    def _start(self, job: Job, hosts: Sequence[str]) -> None:
        now, chunks = time.time(), job.submission.request.chunks
        stamp = time.strftime("%a %b %d at %H:%M", time.localtime(now))
        if job.parent is not None and job.parent.state != "B":
            job.parent.say("B", jobs.BEGUN)
            job.parent.started, job.parent.comment = now, f"Job Array Began at {stamp}"
        placed = self._taken[job.id] = list(zip(hosts, chunks, strict=True))
        job.exec_host = "+".join(self._slot(job, host, chunk.number("ncpus")) for host, chunk in placed)
        job.exec_vnode = "+".join(f"({host}:{_consumed(chunk)})" for host, chunk in placed)
        job.comment = f"Job run at {stamp} on {job.exec_vnode}"
        job.started, job.run_count, job.eligible = now, (job.run_count or 0) + 1, job.eligible or now
        job.say("R", jobs.STARTING)
        self.runs[job.id] = self.mom.start(job, hosts)
        self._tell_dependents(job.parent or job)

    def _confirm_starts(self) -> None:
        """Sets the attributes that MoM reports `start_delay` after a start: substate 42, session, used wall time.

        A job that has ended before has no session id.
        """
        for run in self.runs.values():
            job = run.job
            if job.substate == jobs.STARTING and time.time() - (job.started or 0) >= self.settings.start_delay:
                job.say("R", jobs.RUNNING)
                job.session, job.used_s, job.jobdir = run.main.session, 0, str(self.mom.home)

    def _slot(self, job: Job, host: str, cpus: int) -> str:
        """Returns a chunk's entry in exec_host, `host/2*4`: the lowest free slot of the host, and the CPUs if not 1."""
        slots = self._slots.setdefault(host, [])
        number = next(number for number in range(len(slots) + 1) if number not in [its for _, its in slots])
        slots.append((job.id, number))
        return f"{host}/{number}" + (f"*{cpus}" if cpus != 1 else "")

    def _check_walltimes(self) -> None:
        for run in self.runs.values():
            job, limit = run.job, run.job.submission.request.walltime
            if job.state == "R" and job.started:
                job.used_s = int(time.time() - job.started)
                late = limit is not None and time.time() - job.started > limit
                if late and run.kill_at is None and run.hosts[0] not in self.lost:
                    with contextlib.suppress(OSError), open(run.error, "a") as error:
                        error.write(f"=>> PBS: job killed: walltime {job.used_s} exceeded limit {limit}\n")
                    run.status_instead = WALLTIME
                    self._terminate(run)

    def _kill_the_late(self) -> None:
        for run in self.runs.values():
            if run.kill_at is not None and time.monotonic() >= run.kill_at and run.main.status is None:
                run.signal(signal.SIGKILL)

    def _terminate(self, run: mom.Run) -> None:
        """Sends SIGTERM to the sessions on the first node, and schedules SIGKILL after the setting kill_delay."""
        run.kill_at = time.monotonic() + self.settings.kill_delay
        run.signal(signal.SIGTERM)

    # -- the end of a run

    def _ended(self, run: mom.Run, status: int) -> None:
        """Ends a run, in a thread of MoM, after its script has ended with `status`.

        If PBS asked the job to end, other processes of the session may run until SIGKILL is due.
        """
        while run.hosts[0] in self.lost:  # a lost MoM does not report the end to the server
            time.sleep(0.05)
        while run.kill_at is not None and time.monotonic() < run.kill_at and mom.members(run.main.session):
            time.sleep(0.05)
        job = run.job
        with self.lock:
            if self.runs.get(job.id) is not run:
                return
            run.end_tasks()
            job.exit_status = status if run.status_instead is None else run.status_instead
            again = (RERUN, MOM_LOST) if job.submission.rerunable else (RERUN,)
            requeued = job.exit_status in again and job.deleted_by is None
            job.say("E", jobs.RERUNNING if requeued else jobs.DELIVERING)
            self.tell()
        time.sleep(self.settings.delivery_delay)
        with self.lock:
            if self.runs.pop(job.id, None) is not run:
                return
            if not requeued:
                mom.deliver(run, self.mom.home)
            self._release(run)
            if requeued:
                job.exec_host = job.exec_vnode = None
                job.say("Q", jobs.QUEUED)
            else:
                job.ended, job.stage_out, job.jobdir = time.time(), True, str(self.mom.home)
                job.used_s = int(job.ended - (job.started or job.ended))
                self._finish(job, self._how(job))
            self.tell()

    def _release(self, run: mom.Run) -> None:
        self.mom.clear(run)
        del self._taken[run.job.id]
        for host, slots in self._slots.items():
            self._slots[host] = [slot for slot in slots if slot[0] != run.job.id]

    @staticmethod
    def _how(job: Job) -> int:
        """Returns the final substate of a job that ran, and completes its comment."""
        if job.deleted_by is not None:
            return jobs.DELETED
        word = {0: "finished", WALLTIME: "exceeded resource walltime"}.get(job.exit_status or 0, "failed")
        job.comment = f"{job.comment} and {word}"
        return jobs.FAILED if job.exit_status else jobs.FINISHED

    def _finish(self, job: Job, substate: int) -> None:
        """Sets a job to its final state, judges dependent jobs, and removes its record if no history is kept."""
        waited = job.state == "H" and any(kind in DEPENDENCIES for kind in job.depend)
        for subjob in list(job.subjobs.values()):
            if not subjob.over:
                self._forget(subjob)
            job.subjobs[subjob.index or 0].state = "F"
        job.say("F" if job.parent is None else "X", substate)
        job.history_since = time.time()
        self.mom.remove_script(job)
        if job.parent is not None:
            if job.exit_status is not None:
                job.parent.exit_status = int(bool(job.parent.exit_status or job.exit_status))
            if not self.settings.history:
                self._forget(job)
            self._finish_array(job.parent)
            return
        self._tell_dependents(job)
        if waited:  # depend_on_term in server/req_register.c: with it go all jobs that wait for it, even after a qalter
            for one in (one for kind in DEPENDENCIES.values() for one in job.depend.get(kind, ())):
                dependent = self.jobs.get(int(re.match(r"\d+", one)[0]))  # type: ignore[index]
                if dependent is not None and not dependent.over:
                    self._finish(dependent, jobs.FINISHED)
        if job.purge or not self.settings.history:
            self.jobs.pop(job.number, None)

    def _finish_array(self, array: Job) -> None:
        """Finishes an array if all its elements are over."""
        if array.over or not all(job.over for job in array.subjobs.values()):
            return
        if any(job.run_count for job in array.subjobs.values()):
            array.ended, array.stage_out = time.time(), True
        deleted = array.deleted_by is not None or any(job.substate == jobs.DELETED for job in array.subjobs.values())
        if array.comment:
            word = "terminated" if array.deleted_by else "failed" if array.exit_status else "finished"
            array.comment += f" and {word}"
        self._finish(array, jobs.DELETED if deleted else jobs.FAILED if array.exit_status else jobs.FINISHED)

    @staticmethod
    def _forget(job: Job) -> None:
        """Reduces an element's record to the fact that it is over; qstat then shows attributes of its array."""
        assert job.parent is not None
        assert job.index is not None
        job.parent.subjobs[job.index] = Job(
            job.number, job.submission, "X", parent=job.parent, index=job.index, forgotten=True
        )

    # -- qdel

    def delete(self, job_id: str, who: str, *, force: bool, with_history: bool) -> None:
        """Deletes jobs. A running job gets SIGTERM, and SIGKILL after the setting kill_delay.

        Args:
            job_id: a job, an array or elements.
            who: the user, for the comment.
            force: whether running jobs get SIGKILL at once (-W force).
            with_history: whether to remove records of finished jobs, too (-x).

        Raises:
            PbsError: no such job is known, or it is over.
        """
        found = self.find(job_id)
        for job in found:
            if job.state == "F" and not with_history:
                raise errors.finished()
            if job.state == "X" and len(found) == 1:
                raise errors.finished_subjob()
            array = job.parent or job
            array.purge = array.purge or (with_history and job.parent is None)
            if job.state == "F":
                self.jobs.pop(array.number, None)
            elif job.is_array:
                job.deleted_by = who
                for subjob in list(job.subjobs.values()):
                    self._delete(subjob, who, force=force)
                    if subjob.state == "X":
                        self._forget(subjob)
                self._finish_array(job)
            else:
                self._delete(job, who, force=force)
        self.tell()

    def _delete(self, job: Job, who: str, *, force: bool) -> None:
        run = self.runs.get(job.id)
        if run is not None:
            if job.deleted_by is None:
                job.deleted_by = who
                job.comment = f"{job.comment} and terminated by {who}"
                if not force:
                    self._terminate(run)
            if force:
                run.kill_at = time.monotonic()
                run.signal(signal.SIGKILL)
        elif job.parent is not None:
            if job.state == "Q":
                self._forget(job)
                self._finish_array(job.parent)
        else:
            # Dependent jobs are not judged: they stay held forever.
            job.deleted_by, job.history_since = who, time.time()
            job.comment = f"{job.comment} and terminated" if job.comment else None
            job.say("F", jobs.DELETED)
            if job.purge or not self.settings.history:
                self.jobs.pop(job.number, None)

    # -- qsig, qrerun, qhold, qrls, qalter

    def signal(self, job_id: str, name: str) -> None:
        """Sends a signal to a job's sessions on its first node; for an array, to those of all running elements.

        Raises:
            PbsError: the job is not running, or the signal is unknown.
        """
        targets = self.find(job_id)
        if any(job.state == "F" for job in targets):
            raise errors.finished()
        if name in ("suspend", "resume", "admin-suspend", "admin-resume"):
            raise errors.permission()
        elements = [one for job in targets for one in (job.subjobs.values() if job.is_array else [job])]
        running = [self.runs[job.id] for job in elements if job.state == "R"]
        if not running:
            raise errors.bad_state()
        number = mom.signal_number(name)
        if number is None:
            raise errors.unknown_signal()
        for run in running:
            run.signal(number)

    def rerun(self, job_id: str) -> None:
        """Requeues a running job, as a manager's qrerun does: its run is ended with SIGTERM and SIGKILL.

        Raises:
            PbsError: the job is not running, or not rerunnable.
        """
        for job in self.find(job_id):
            run = self.runs.get(job.id)
            if run is None or job.state != "R":
                raise errors.bad_state()
            if not job.submission.rerunable:
                raise errors.not_rerunnable()
            run.status_instead = RERUN
            job.say("R", jobs.RERUNNING)
            self._terminate(run)

    def lose(self, host: str) -> None:
        """Simulates the loss of a node: all processes of jobs on it are killed.

        Jobs with this node as their first one stay in state R until `restore`.
        """
        self.lost.add(host)
        for run in self.runs.values():
            if run.hosts[0] == host:
                run.status_instead = MOM_LOST
            self.mom.lose(run, host)

    def restore(self, host: str) -> None:
        """Ends `lose`. Jobs with this node as their first one are queued again if they are rerunnable, else failed."""
        self.lost.discard(host)

    def hold(self, job_id: str, *, release: bool = False) -> None:
        """Sets or releases the user hold of jobs. Running jobs are not affected.

        Raises:
            PbsError: no such job is known, or it is over.
        """
        for job in self.find(job_id):
            if job.over:
                raise errors.finished()
            kept = job.hold.replace("u", "").replace("n", "")
            job.hold = (kept if release else f"{kept}u") or "n"
            self._settle(job)
        self.tell()

    def alter(
        self, job_id: str, *, name: str | None, asked: dict[str, str], max_run_subjobs: int | None, depend: str | None
    ) -> None:
        """Changes attributes of jobs, as qalter does.

        Args:
            job_id: a job, an array or elements.
            name: the new name; None: unchanged.
            asked: new values of resources.
            max_run_subjobs: how many elements of the array may run at once; None: unchanged.
            depend: the new dependencies, which replace all old ones; None: unchanged.

        Raises:
            PbsError: the job is over, or an attribute can no longer be changed.
        """
        for job in self.find(job_id):
            old = job.submission
            if job.state == "F":
                raise errors.finished()
            if max_run_subjobs is not None and not job.is_array:
                raise errors.only_for_arrays()
            old.name = name or old.name
            old.max_run_subjobs = old.max_run_subjobs if max_run_subjobs is None else max_run_subjobs
            if depend and job.state in ("Q", "H"):
                job.depend = {kind: ids for kind, ids in job.depend.items() if kind not in DEPENDENCIES}
                self._depend(job, depend)
            if not asked:
                continue
            if job.state == "R":
                limit, wanted = old.request.walltime, resources.seconds(asked.get("walltime", "0"))
                if set(asked) != {"walltime"} or (limit is not None and wanted > limit):
                    raise errors.permission()
            values = {key: value for key, value in old.request.values.items() if key not in resources.OF_CHUNK}
            if not {"select", "nodes"} & set(asked) and resources.OF_CHUNK & set(asked):
                values = {key: value for key, value in values.items() if key not in ("select", "place")}
            values.pop("nodect")
            old.request = resources.request({**values, **asked}, self.known_resources())
        self.tell()

    # -- for tests

    def purge(self) -> None:
        """Removes the job history; records of ended elements are reduced to the fact that they are over."""
        self.jobs = {number: job for number, job in self.jobs.items() if job.state != "F"}
        for job in self.jobs.values():
            for subjob in list(job.subjobs.values()):
                if subjob.state == "X":
                    self._forget(subjob)

    def reset(self) -> None:
        """Ends and removes all jobs, and restores the default settings and queues."""
        for run in self.runs.values():
            run.end_tasks()
        for job in self.jobs.values():
            job.say("F", jobs.DELETED)  # for threads that wait for its end
        self.mom.reset()
        self.jobs, self.runs, self._taken, self._slots = {}, {}, {}, {}
        self.lost = set()
        self.settings = Settings(next_number=self.settings.next_number)
        self.queues = standard_queues()
        self.tell()


def indices(text: str) -> list[int]:
    """Returns the indices of a text `3`, `0-3` or `1-7:2`.

    Raises:
        PbsError: the text has another form.
    """
    match = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", text)
    if match is None or match[3] == "0":
        raise errors.unknown_job()
    return list(range(int(match[1]), int(match[2] or match[1]) + 1, int(match[3] or 1)))


def _is_met(kind: str, other: Job) -> bool | None:
    """Returns whether a dependency on another job is met; None: still open.

    It stays open forever if the other job was deleted before it ran.

    | kind | not started | running | over, exit status 0 | over, other exit status |
    |---|---|---|---|---|
    | after | open | met | met | met |
    | afterany | open | open | met | met |
    | afterok | open | open | met | not met |
    | afternotok | open | open | not met | met |
    """
    if kind == "after":
        return True if other.started else None
    if not other.over or other.exit_status is None:
        return None
    return kind == "afterany" or (kind == "afterok") == (other.exit_status == 0)


def _consumed(chunk: resources.Chunk) -> str:
    """Returns the resources that a chunk takes from its node, in the form of exec_vnode: `ncpus=2:mem=1024kb`."""
    taken = needs(chunk)
    return ":".join(
        f"{name}={f'{taken[name]}kb' if name == 'mem' else taken[name]}" for name in chunk.items if name in taken
    )
