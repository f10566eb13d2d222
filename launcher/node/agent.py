"""One agent per node: it meets the others, forks this node's ranks, watches them, and says how it ended.

It is torch's own elastic agent with three things added: the rendezvous is ours (verified, with the scheduler's node
rank), a fault on one node ends the others at once and tells them whose it was, and a rank that leaves without a word is
a failure and not a hang. torch is loaded once; ranks are forked from here before any GPU is touched.
With launch=tasks every rank has an agent of its own, started by the scheduler, and nothing else is different.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import os
import signal
import socket
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch.distributed import Store
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.api import LogsDest, LogsSpecs, SignalException
from torch.distributed.elastic.rendezvous.api import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

from launcher import errors, runs
from launcher.config import LaunchMode
from launcher.node import topology
from launcher.node.events import Events, current_attempt
from launcher.node.rank import run_rank
from launcher.node.rendezvous import Meeting, Member, RendezvousError, meet
from launcher.plan import JobPlan

FAULT_INTERVAL = 0.5  # seconds between two looks for a fault on another node
CLOSING = 10.0  # seconds that the master's agent waits for the others to have read the outcome


class AttemptFailed(Exception):
    """The attempt ended early; the text is the cause, as the user should read it."""

    def __init__(self, cause: str, exit_code: int = errors.FAILED) -> None:
        super().__init__(cause)
        self.exit_code = exit_code


def run(run_dir: str) -> dict[str, Any]:
    """Runs this node's part of the attempt: the payload of every job.

    Returns:
        The metrics of the first rank of this agent.

    Raises:
        AttemptFailed: with the cause and the exit code that the job script decides by.
    """
    attempt = current_attempt()
    if attempt is None:
        raise AttemptFailed(f"{run_dir}: not started by a job script of the launcher", errors.NO_RETRY)
    plan = attempt.run.plan()
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # we say the cause ourselves, once
    place = topology.derive(os.environ, socket.gethostname(), lambda path: Path(path).read_text().splitlines())
    events = Events(attempt, f"node-{place.rank}")
    try:
        return _run(plan, attempt, place, events)
    except (RendezvousError, topology.TopologyError) as error:
        events("fault", cause=str(error), host=socket.gethostname())
        raise AttemptFailed(str(error)) from None


def _run(plan: JobPlan, attempt: runs.Attempt, place: topology.Topology, events: Events) -> dict[str, Any]:
    per_task = plan.launch == LaunchMode.tasks.value
    me = Member(
        place.rank,
        place.node_rank,
        place.hosts[place.node_rank],
        ranks=1 if per_task else plan.procs_per_node,
        first_local_rank=place.local_rank,
    )
    _preload(plan.entry)
    meeting = meet(
        me,
        size=place.world_size,
        least=plan.min_nodes * plan.tasks_per_node,
        expected=_names(plan, place),
        master=place.hosts[0] + plan.host_suffix,
        key=f"{plan.run_id}/{attempt.number}/{place.job}",
        port_range=plan.port_range,
        timeout=plan.rendezvous_timeout,
    )
    index = [member.index for member in meeting.members].index(me.index)
    events("met", port=meeting.port, members=len(meeting.members), interface=meeting.interface, source=place.source)
    _set_network(plan, meeting)
    agent = _Agent(plan, attempt, meeting, index, events)
    previous = os.umask(plan.umask)
    try:
        result = agent.run()
    except SignalException as error:
        agent.tell_fault(f"{me.host} was told to stop ({error.sigval.name})", exit_code=128 + error.sigval)
        raise AttemptFailed(agent.fault()["cause"], agent.fault()["exit_code"]) from None
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)  # what is left takes moments, and must not be cut short
        os.umask(previous)
        agent.part()
    if result.is_failed():
        fault = agent.fault()
        raise AttemptFailed(fault["cause"], fault["exit_code"])
    events("finished")
    return dict(result.return_values[min(result.return_values)] or {})


def _names(plan: JobPlan, place: topology.Topology) -> list[str]:
    """What to call each member in an error."""
    if plan.launch == LaunchMode.tasks.value:
        return [f"rank {task} on {place.hosts[task // plan.procs_per_node]}" for task in range(place.world_size)]
    return [f"{host} (node {node})" for node, host in enumerate(place.hosts)]


def _preload(entry: str) -> None:
    """Imports the workload while the ranks can still share it.

    An import error is left to the ranks, whose traceback the user sees.
    """
    with contextlib.suppress(Exception):
        importlib.import_module(entry.partition(":")[0])


def _set_network(plan: JobPlan, meeting: Meeting) -> None:
    """Tells gloo and NCCL which interface to use: the profile's, else (gloo) the one that reached the master."""
    if plan.interface:
        for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(variable, plan.interface)
    elif meeting.interface:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", meeting.interface)


class _Rendezvous(RendezvousHandler):
    """Hands a meeting that has taken place to the elastic agent."""

    def __init__(self, meeting: Meeting, index: int, run_id: str) -> None:
        self._meeting, self._index, self._run_id = meeting, index, run_id

    use_agent_store = True

    def next_rendezvous(self) -> RendezvousInfo:
        meeting = self._meeting
        return RendezvousInfo(
            meeting.store, self._index, len(meeting.members), RendezvousStoreInfo(meeting.host, meeting.port)
        )

    def get_backend(self) -> str:
        return "launcher"

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return self._run_id

    def shutdown(self) -> bool:
        return True


class _Logs(LogsSpecs):
    """One file per rank and stream under the attempt, and everything on this agent's own output, prefixed."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder))
        self._folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    @property
    def root_log_dir(self) -> str:
        return str(self._folder)

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        files: dict[str, dict[int, str]] = {"out": {}, "err": {}, "error.json": {}}
        for local, env in envs.items():
            for kind, paths in files.items():
                path = self._folder / f"rank-{env['RANK']}.{kind}"
                if kind != "error.json":
                    path.touch(mode=0o600)
                paths[local] = str(path)
            env["TORCHELASTIC_ERROR_FILE"] = files["error.json"][local]
        out, err = files["out"], files["err"]
        return LogsDest(out, err, dict(out), dict(err), files["error.json"])


class _Agent(LocalElasticAgent):
    """torch's agent for this node's ranks, and a word between the agents of all nodes."""

    def __init__(self, plan: JobPlan, attempt: runs.Attempt, meeting: Meeting, index: int, events: Events) -> None:
        self._meeting, self._index, self._events = meeting, index, events
        self._words: Store = meeting.store
        self._words.set_timeout(timedelta(seconds=30))
        self._next_look = 0.0
        self._fault: dict[str, Any] | None = None
        me = meeting.members[index]
        spec = WorkerSpec(
            role="rank",
            local_world_size=me.ranks,
            rdzv_handler=_Rendezvous(meeting, index, plan.run_id),
            max_restarts=0,
            monitor_interval=0.05,
            entrypoint=run_rank,
            args=(plan, meeting.members, index),
        )
        super().__init__(
            spec,
            _Logs(attempt.logs),
            start_method="fork",
            exit_barrier_timeout=plan.timeout,
            log_line_prefix_template="[${rank}] ",
            shutdown_timeout=plan.grace,
        )

    def fault(self) -> dict[str, Any]:
        """The first fault of the attempt, on whichever node: cause, exit_code, host, and rank if it was one's."""
        with contextlib.suppress(Exception):  # without the store, what this node knows
            self._fault = json.loads(self._words.get("fault")) if self._words.check(["fault"]) else self._fault
        return self._fault or {"cause": "the ranks failed", "exit_code": errors.FAILED}

    def tell_fault(self, cause: str, exit_code: int = errors.FAILED, **details: Any) -> None:
        """Tells all agents; the first one to speak is believed."""
        me = self._meeting.members[self._index]
        self._fault = {"cause": cause, "exit_code": exit_code, "host": me.host, "node": me.node_rank, **details}
        text = json.dumps(self._fault)
        try:
            first = self._words.compare_set("fault", "", text).decode() == text
        except Exception:  # the master is gone; then this node's word is all there is
            first = True
        if first:
            self._events("fault", **self._fault)

    def part(self) -> None:
        """The store lives in the first agent's process, so that one leaves last."""
        with contextlib.suppress(Exception):
            self._words.add("parted", 1)
            give_up = time.monotonic() + CLOSING
            while self._index == 0 and self._words.add("parted", 0) < len(self._meeting.members):
                if time.monotonic() > give_up:
                    break
                time.sleep(0.02)

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        result = super()._monitor_workers(worker_group)
        if result.state in (WorkerState.FAILED, WorkerState.UNHEALTHY):
            self._tell_first_failure(result)
        elif result.state == WorkerState.HEALTHY:
            silent = self._left_silently()
            if silent is not None:
                self.tell_fault(f"rank {silent} on {self._host()} exited with code 0 before its work was done", rank=silent)
                return RunResult(state=WorkerState.FAILED)
            if self._fault_elsewhere():
                return RunResult(state=WorkerState.FAILED)
        return result

    def _tell_first_failure(self, result: RunResult) -> None:
        if not result.failures:
            return
        rank, failure = min(result.failures.items(), key=lambda item: item[1].timestamp)
        data = failure.error_file_data.get("message")
        trace = data.get("extraInfo", {}).get("py_callstack", "") if isinstance(data, dict) else ""
        if trace:
            how = data["message"].split("\n")[0]
        elif failure.exitcode < 0:
            how = f"killed by {signal.Signals(-failure.exitcode).name}"
        else:
            how = f"exited with code {failure.exitcode}"
        code = failure.exitcode if failure.exitcode in (errors.RESUME, errors.NO_RETRY) else errors.FAILED
        self.tell_fault(f"rank {rank} on {self._host()}: {how}", code, rank=rank, traceback=trace)

    def _left_silently(self) -> int | None:
        """A rank that ended with code 0 but without returning (os._exit(0)); torch would wait for it for ever."""
        context = self._pcontext
        for local, process in enumerate(context._pc.processes):  # type: ignore[union-attr]
            if process.exitcode == 0 and local not in context._return_values:  # type: ignore[union-attr]
                return self._worker_group.workers[local].global_rank
        return None

    def _fault_elsewhere(self) -> bool:
        """Whether another node has failed, or the master cannot be reached any more."""
        if time.monotonic() < self._next_look:
            return False
        self._next_look = time.monotonic() + FAULT_INTERVAL
        try:
            return bool(self._words.check(["fault"]))
        except Exception:
            master = self._meeting.members[0].host
            self.tell_fault(f"{self._host()} lost contact with {master}, which runs rank 0")
            return True

    def _host(self) -> str:
        return self._meeting.members[self._index].host


