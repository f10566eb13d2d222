"""torch's elastic agent for the ranks of one member, and a word between the agents of all of them.

Three things are added to torch's: the rendezvous is a meeting that has taken place already, a fault on one node ends
the others at once and tells them whose it was, and a rank that leaves without a word is a failure and not a hang.
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch.distributed import PrefixStore, Store
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.api import LogsDest, LogsSpecs, SignalException
from torch.distributed.elastic.rendezvous.api import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

from launcher import errors, runs
from launcher.config import Backend
from launcher.node.events import Events
from launcher.node.rank import run_rank
from launcher.node.rendezvous import Meeting
from launcher.plan import JobPlan

FAULT_INTERVAL = 0.5  # seconds between two looks for a fault on another node
HEARSAY = 2.0  # seconds in which every agent that is told to stop has said so
CLOSING = 10.0  # seconds that the master's agent waits for the others to have read the outcome


class AttemptFailed(Exception):
    """The attempt ended early; the text is the cause, as the user should read it.

    Attributes:
        exit_code: what the job script decides by.
        ours: whether this agent was the first to know, and so is the one to print it.
        decides: whether it speaks for the attempt. One that never met the others does not: they may go on.
    """

    def __init__(self, cause: str, exit_code: int = errors.FAILED, *, ours: bool = True, decides: bool = False) -> None:
        super().__init__(cause)
        self.exit_code = exit_code
        self.ours = ours
        self.decides = decides


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


class Agent(LocalElasticAgent):
    """The agent of one member of a meeting."""

    def __init__(self, plan: JobPlan, attempt: runs.Attempt, meeting: Meeting, index: int, events: Events) -> None:
        self._meeting, self._index, self._events = meeting, index, events
        self._words: Store = meeting.store
        self._words.set_timeout(timedelta(seconds=30))
        self._next_look = 0.0
        self._join_timeout = plan.rendezvous_timeout
        # MPI's ranks do not meet in our store.
        self._join_by: float | None = float("inf") if plan.backend == Backend.mpi.value else None
        self._fault: dict[str, Any] | None = None
        self._first = False
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

    def failure(self) -> AttemptFailed:
        """The first fault of the attempt, on whichever node."""
        with contextlib.suppress(Exception):  # without the store, what this node knows
            self._fault = json.loads(self._words.get("fault")) if self._words.check(["fault"]) else self._fault
        fault = self._fault or {"cause": "the ranks failed", "exit_code": errors.FAILED}
        return AttemptFailed(fault["cause"], fault["exit_code"], ours=self._first, decides=self._first)

    def tell_fault(self, cause: str, exit_code: int = errors.FAILED, **details: Any) -> None:
        """Tells all agents; the first one to speak is believed."""
        me = self._meeting.members[self._index]
        self._fault = {"cause": cause, "exit_code": exit_code, "host": me.host, "node": me.node_rank, **details}
        text = json.dumps(self._fault)
        try:
            self._first = self._words.compare_set("fault", "", text).decode() == text
        except Exception:  # the master is gone; then this node's word is all there is
            self._first = True
        if self._first:
            self._events("fault", **self._fault)

    def tell_stop(self, number: signal.Signals) -> None:
        """Tells that this agent was told to stop, unless that came of another agent's sudden end."""
        me, master = self._meeting.members[self._index], self._meeting.members[0]
        give_up = time.monotonic() + HEARSAY
        try:
            keys = [f"leaving/{index}" for index in range(len(self._meeting.members))]
            while not self._words.check(keys) and time.monotonic() < give_up:
                time.sleep(0.05)
            silent = [
                member.host
                for member, key in zip(self._meeting.members, keys, strict=True)
                if not self._words.check([key])
            ]
        except Exception:
            silent = [f"{master.host}, which runs rank 0,"]
        cause = f"{self._told_first() or me.host} was told to stop ({number.name})"
        if silent:
            cause = f"{', '.join(silent)} ended without a word (killed, or lost); then {cause}"
        self.tell_fault(cause, 128 + number)

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)  # it is ending already, and must not be cut short
        with contextlib.suppress(Exception):  # before the ranks are given their time to end
            if isinstance(sys.exc_info()[1], SignalException):  # torch calls this while it handles one
                self._words.compare_set("stop", "", self._host())  # PBS tells the first node only
            self._words.set(f"leaving/{self._index}", "1")
        super()._shutdown(death_sig, self._shutdown_timeout)  # torch itself passes its own 30 s in one place

    def _exit_barrier(self) -> None:
        """Stays until the ranks of all agents have ended, or one has failed; the store is gone with the first agent."""
        give_up = time.monotonic() + self._exit_barrier_timeout
        with contextlib.suppress(Exception):  # the first agent is gone
            self._words.add("ended", 1)
            while self._words.add("ended", 0) < len(self._meeting.members) and time.monotonic() < give_up:
                if self._words.check(["fault"]):
                    break
                time.sleep(0.1)

    def faulty(self) -> bool:
        """Whether any agent has told of a fault."""
        with contextlib.suppress(Exception):
            return bool(self._words.check(["fault"]))
        return False

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
                cause = f"rank {silent} on {self._host()} exited with code 0 before its work was done"
                self.tell_fault(cause, rank=silent)
                return RunResult(state=WorkerState.FAILED)
            if time.monotonic() > self._next_look:
                self._next_look = time.monotonic() + FAULT_INTERVAL
                if self._fault_elsewhere() or (self._index == 0 and self._not_joined()):
                    return RunResult(state=WorkerState.FAILED)
                if self._told_first():
                    raise SignalException("another agent was told to stop", signal.SIGTERM)
        return result

    def _tell_first_failure(self, result: RunResult) -> None:
        if not result.failures:
            return
        rank, failure = min(result.failures.items(), key=lambda item: item[1].timestamp)
        data = failure.error_file_data.get("message")
        trace = data.get("extraInfo", {}).get("py_callstack", "") if isinstance(data, dict) else ""
        if isinstance(data, dict) and trace:
            trace = users_frames(trace)
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
        try:
            return bool(self._words.check(["fault"]))
        except Exception:
            master = self._meeting.members[0].host
            self.tell_fault(f"{self._host()} lost contact with {master}, which runs rank 0")
            return True

    def _told_first(self) -> str | None:
        """The host of the agent that was told to stop, if any was."""
        with contextlib.suppress(Exception):
            return self._words.get("stop").decode() if self._words.check(["stop"]) else None
        return None

    def _not_joined(self) -> bool:
        """Whether time is up for ranks that hang before they join the others; the ranks themselves may all do."""
        if self._join_by is None:
            self._join_by = time.monotonic() + self._join_timeout
        ranks = PrefixStore("ranks/0", self._words)
        if self._join_by == float("inf") or ranks.check(["all joined"]):
            self._join_by = float("inf")
            return False
        if time.monotonic() < self._join_by:
            return False
        owners = [member for member in self._meeting.members for _ in range(member.ranks)]
        missing = [rank for rank in range(len(owners)) if not ranks.check([f"joined/{rank}"])]
        hosts = ", ".join(dict.fromkeys(owners[rank].host for rank in missing))
        self.tell_fault(
            f"rank {', '.join(map(str, missing))} on {hosts} did not join the others within {self._join_timeout} s: "
            "does an import hang?"
        )
        return True

    def _host(self) -> str:
        return self._meeting.members[self._index].host


def users_frames(trace: str) -> str:
    """A traceback without our frames and torch's above the workload. Pure."""
    _, found, tail = trace.rpartition("in _run_workload\n")
    frames = tail.find('  File "')
    if not found:
        return trace
    if frames < 0:  # it was raised by our own line, about the workload: the last words are all that matters
        return "\n".join(line for line in tail.splitlines() if line[:1].strip())
    return f"Traceback (most recent call last):\n{tail[frames:]}"
