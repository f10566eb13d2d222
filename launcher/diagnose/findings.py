"""Collects everything that `post-mortem` shows about an attempt: the verdict, the advice, and parts of ranks' logs."""

from __future__ import annotations

import pwd
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from launcher.checkpoint import format as checkpoints
from launcher.config.schema import LaunchMode
from launcher.diagnose import verdict as known
from launcher.failures import error_patterns, messages, tracebacks
from launcher.failures.codes import EndKind, FaultCode
from launcher.formatting import format_hours, rough_size
from launcher.monitoring.run_status import RunState, RunStatus, rerun
from launcher.plan.plan import JobPlan, keys_of
from launcher.runs import user_checkpoints
from launcher.runs.directory import Attempt
from launcher.runs.events import Ended, Fault, Restart, Restored, Started, Stop, as_kind, first, last
from launcher.runs.output import rank_files, rank_logs, start_of, tail
from launcher.schedulers import registry

LAST_LINES = 10  # last lines of the failed rank's log that are shown
LOOK = 3.0  # seconds in which files that a program has saved are looked for
MOST_RANKS = 256  # at most so many ranks' logs are searched for errors


@dataclass(frozen=True)
class EndedAttempt:
    attempt: Attempt
    verdict: known.Verdict
    codes: Mapping[str, str | None]  # of its end
    events: Sequence[Mapping[str, Any]]  # its latest ones


def ended(seen: RunStatus) -> list[tuple[Attempt, Attempt | None]]:
    """Returns the attempts of a run that have ended, each with the attempt after it (None: it is the last one)."""
    attempts = seen.run.attempts()
    following: list[Attempt | None] = [*attempts[1:], None]
    last = seen.state.over or seen.state is RunState.QUEUED  # queued: the job of the next attempt is pending
    return [pair for pair in zip(attempts, following, strict=False) if last or pair[1] is not None]


def verdicts(seen: RunStatus) -> list[EndedAttempt]:
    """Returns each attempt of a run that has ended, with its verdict, without a query to the scheduler."""
    found = []
    for attempt, after in ended(seen):
        events = seen.history.events_of(attempt)
        evidence = known.evidence_of_attempt(seen, attempt, after, None, events)
        found.append(EndedAttempt(attempt, known.classify(evidence), evidence.codes, events))
    return found


def find(
    seen: RunStatus, attempt: Attempt | None, following: Attempt | None, *, name: str, program: str
) -> dict[str, Any]:
    """Returns what `post-mortem --json` prints of an attempt (None: the run had none).

    name, program: the run and the launcher's command, as they were typed.
    """
    events = seen.history.events_of(attempt) if attempt else []
    started = first(events, Started)
    pasts = known.job_executions(seen, (started.job if started else None) if attempt else seen.history.job_id)
    if attempt is None:
        evidence = replace(known.evidence_of(seen), memory={})
    else:
        past = known.execution_of(pasts, attempt, last=following is None and seen.state.over)
        pasts = [past] if past else []
        evidence = known.evidence_of_attempt(seen, attempt, following, past, events)
    verdict, event = known.classify(evidence), evidence.fault
    fault = event if isinstance(event, Fault) else Fault(host=event.host if event else "")
    rank, trace = fault.rank, (fault.traceback or "").strip()
    host = fault.accused[0].host if fault.accused else fault.host
    same, followed, others, log = list[int](), list[int](), dict[int, str](), list[str]()
    stacks: list[dict[str, Any]] = []
    if attempt is not None and rank is not None:
        errors = _errors(attempt, rank)
        if not trace and fault.code in known.LEFT:  # a program of the user
            trace = tracebacks.last_traceback(errors)
        first_error = trace.splitlines()[-1].strip() if trace else fault.error or ""
        same, followed, others = _others(attempt, rank, first_error)
        log = _log(attempt, rank, trace)
        frames = tracebacks.crash_lines(errors)
        stacks = [{"ranks": [rank], "frames": frames}] if frames else []
    if attempt is not None and (fault.code is FaultCode.HANG or fault.limit):
        stacks = _stacks(attempt)
    files = _files(seen, attempt, rank)
    case = Case(
        name, program, seen.plan, verdict, evidence.memory, host,
        saved=attempt is not None and has_saved(seen.plan, start_of(seen.run.attempts()[0])),
        fault=fault, log=files.get("its errors", ""), signal=evidence.job.signal, rerun=rerun(seen.run),
    )  # fmt: skip
    return {
        "attempt": attempt and attempt.number, "kind": verdict.kind.value, "cause": verdict.cause,
        "sure": verdict.sure, "sign": verdict.sign or None, **evidence.codes,
        "exit_code": fault.exit_code, "signal": fault.signal, "exception": fault.exception, "limit": fault.limit,
        "step": fault.step, "accused": [{"host": each.host, "rank": each.rank} for each in fault.accused],
        # when the first failure was reported, or the attempt ended; since the epoch
        "time": ((event.time if event else 0) or _ended(evidence, events)) if attempt else None,
        "rank": rank,  # that failed first
        "host": host or None, "cancelled_by": _user([each.by for each in pasts]) or None,
        "same": same,  # other ranks with the same error, or one of the same kind
        "followed": followed,  # ranks that ended because others had ended
        "others": others,  # the error line of each rank with a different error
        "restarts": restarts(events),  # their causes, within the attempt
        "traceback": tracebacks.own_frames(trace) or None,  # of `rank`, without most frames of libraries
        "log": log,  # its last lines, without the traceback
        "memory": dict(evidence.memory),
        "stacks": stacks,  # for a hang, of all ranks; for a crash, of `rank`. Equal ones once; the newest frame first
        "files": files,  # to look at, by a description (`its errors`)
        "todo": [{"words": each.words, "command": each.command or None} for each in advice(case)],
    }  # fmt: skip


def has_saved(plan: JobPlan, started: Started | None) -> bool:
    """Returns whether a run has a checkpoint, one that is unreadable now, or files of its own code since `started`."""
    try:
        if checkpoints.newest_step(Path(plan.checkpoint.dir)) is not None:
            return True
        if not plan.own_code or started is None:
            return False
        since = started.time * 1e9
        return user_checkpoints.newest(plan, since, LOOK) >= since
    except (checkpoints.CannotRead, OSError):
        return True


def restarts(events: Sequence[Mapping[str, Any]]) -> list[str]:
    lines: list[str] = []
    for entry in events:
        if (restart := as_kind(entry, Restart)) is not None:
            lines.append(messages.of_fault(restart))
        elif lines and (restored := as_kind(entry, Restored)) is not None:
            lines[-1] += f"; {messages.of_restored(restored)}"
    return lines


def _ended(evidence: known.Evidence, events: Sequence[Mapping[str, Any]]) -> float | None:
    # When an attempt without a fault ended: by its own events, else by the scheduler's notices
    times = [each.time for each in (last(events, Stop), last(events, Ended)) if each]
    if times:
        return max(times)
    return next((notice.time for notice in evidence.notices if notice.time is not None), None)


def _user(ids: Sequence[str]) -> str:
    by = next((each for each in reversed(ids) if each), "")
    try:
        return pwd.getpwuid(int(by)).pw_name if by.isdecimal() else by
    except KeyError:
        return by


def _others(attempt: Attempt, rank: int, first: str) -> tuple[list[int], list[int], dict[int, str]]:
    # first: the error line of this rank
    ranks = sorted({each for each, _, kind, _ in rank_files(attempt) if kind == "err"})[:MOST_RANKS]
    same, followed, others = list[int](), list[int](), dict[int, str]()
    for each in ranks:
        if each == rank:
            continue
        lines = [line for line in _errors(attempt, each) if line.strip()]
        # Without a traceback: errors that the launcher explains, and what a program prints before it exits
        printed = next((line for line in lines[-1:] if line == first or error_patterns.exception_of(line)), "")
        error = tracebacks.last_error("\n".join(lines)) or printed
        if not error or error_patterns.lost_peer(error):
            followed.append(each)
        elif error == first or error_patterns.alike(error, first):
            same.append(each)
        else:
            others[each] = error
    return same, followed, others


def _log(attempt: Attempt, rank: int, trace: str) -> list[str]:
    shown: list[str] = []
    for path in rank_logs(attempt, rank):
        lines = tracebacks.before_crash(tail(path))
        lines = tracebacks.before_traceback(lines) if trace else lines
        shown += [line for line in lines if line.strip()][-LAST_LINES:]
    return shown[-LAST_LINES:]


def _errors(attempt: Attempt, rank: int) -> list[str]:
    return [line for path in rank_logs(attempt, rank, ("err",)) for line in tail(path)]


def _stacks(attempt: Attempt) -> list[dict[str, Any]]:
    found = [each for each in rank_files(attempt) if each[2] == "stacks"]
    last = max((number for _, number, _, _ in found), default=0)
    groups: dict[tuple[str, ...], list[int]] = {}
    for rank, number, _, path in found:
        if number == last:
            groups.setdefault(tracebacks.main_frames("\n".join(tail(path))), []).append(rank)
    return [{"ranks": ranks, "frames": frames} for frames, ranks in groups.items()]


def _files(seen: RunStatus, attempt: Attempt | None, rank: int | None) -> dict[str, str]:
    found = {"run": str(seen.run.path)}
    if outputs := seen.run.outputs():
        found["output"] = str(outputs[-1])
    if attempt is not None and attempt.logs.is_dir():
        found["logs"] = str(attempt.logs)
        logs = rank_logs(attempt, rank) if rank is not None else []
        for path in (each for each in logs if each.stat().st_size):
            found["its errors" if path.suffix == ".err" else "its output"] = str(path)
        if any(attempt.logs.glob("*.stacks")):
            found["stacks"] = str(attempt.logs / "rank-*.stacks")
    return found


# -- The advice of `post-mortem`: steps to take for each kind of end, with commands to copy


GIB = 1024**3


@dataclass(frozen=True)
class Case:
    """Everything about an ended attempt that the advice depends on."""

    name: str  # the run, as the user named it on the command line
    program: str  # the command of the launcher, as the user typed it
    plan: JobPlan
    verdict: known.Verdict
    memory: Mapping[str, int] = field(default_factory=dict)  # as in `Evidence`
    host: str = ""  # of the first failure; empty: not known
    saved: bool = False  # whether the run has a checkpoint
    fault: Fault = Fault()  # noqa: RUF009  frozen: the first failure that agents reported
    log: str = ""  # path of the failed rank's standard error; empty: there is none
    signal: int | None = None  # that ended the job, if the scheduler reports it
    rerun: str = ""  # of a point in a pilot, the sub-command that starts it again

    def resume(self, *overrides: str) -> str:
        """Returns the command that continues the run, with changes; empty for a point in a pilot that needs some."""
        if self.rerun:  # the config of a point in a pilot is set by its sweep
            return "" if overrides else f"{self.program} {self.rerun}"
        return " ".join([f"{self.program} resume {self.name}", *overrides])


@dataclass(frozen=True)
class Step:
    words: str
    command: str = ""  # the command that does it, to copy; empty: no single command does


Steps = list["str | Step"]


def advice(case: Case) -> list[Step]:
    return [each if isinstance(each, Step) else Step(each) for each in _ADVICE[case.verdict.kind](case)]


def _memory(case: Case) -> Steps:
    used, limit = max(case.memory.get(key, 0) for key in ("used", "peak", "largest")), case.memory.get("limit", 0)
    amounts = f" (it used {rough_size(used)} of {rough_size(limit)})" if used and limit else ""
    if not amounts and used:
        amounts = f" (its largest process had {rough_size(used)})"
    lines: list[str | Step] = []
    if case.plan.queued:
        base = max(limit, case.plan.mem or 0, used)
        wanted = _twice(base) if base else "MORE"
        default = "" if base else " (it asked for none, so it had the site's default)"
        lines.append(Step(f"ask for more memory{amounts or default}", case.resume(f"mem={wanted}")))
    elif amounts:
        lines.append(f"it needed more memory than this machine has{amounts}")
    return [*lines, *_smaller(case), "DataLoader workers count as well: each holds a copy of what it reads"]


def _twice(size: int) -> str:
    return f"{max(1, -(-2 * size // GIB))}G"


def _smaller(case: Case) -> Steps:
    params = case.plan.workload.params
    if isinstance(batch := params.get("micro_batch_size") or params.get("batch_size"), int) and batch > 1:
        key = "micro_batch_size" if "micro_batch_size" in params else "batch_size"
        return [Step("use less at a time", case.resume(f"workload.{key}={max(1, batch // 2)}"))]
    return ["have each rank use less at a time (a smaller batch), or use fewer ranks on a node (procs_per_node)"]


def _wall_time(case: Case) -> Steps:
    more = case.resume(f"time={format_hours(2 * case.plan.time)}")
    if case.saved:
        return [Step("continue from the last checkpoint", case.resume()), Step("or with more time", more)]
    return [
        Step("ask for more time", more),
        "it saved nothing, so it would start from the beginning; a training that uses launcher.should_stop() saves "
        "before the time limit and continues by itself (docs/training-and-resuming.md)",
    ]


def _resume(*before: str) -> Callable[[Case], Steps]:
    def lines(case: Case) -> Steps:
        where = "from the last checkpoint" if case.saved else "from the beginning"
        return [*before, Step(f"continue {where}", case.resume())]

    return lines


def _node(case: Case) -> Steps:
    more: Steps = []
    cluster = case.plan.cluster
    if case.host and (override := registry.scheduler(cluster.scheduler).without(case.host, cluster.settings)):
        more = [Step("or without that node", case.resume(override))]
    working = case.plan.nodes - case.plan.spares
    if working > 1:
        more.append(Step("let it continue with one node less next time", case.resume(f"min_nodes={working - 1}")))
    return [Step("continue, on the nodes that the scheduler gives it", case.resume()), *more]


def _gpu_error(case: Case) -> Steps:
    if re.search(r"Xid|ECC|fallen off|is lost|NVML", case.verdict.sign or case.fault.error or ""):
        return [f"this GPU is broken{_on(case)}: report it to the site", *_node(case)]
    return [
        "run it once with CUDA_LAUNCH_BLOCKING=1 (cluster.environment): then the traceback shows the failing call",
        "an assert or an illegal access is usually an index out of range, in the code or the data",
        "if it works on other nodes, this one may be faulty: preflight=true checks it",
    ]


def _no_gpu(case: Case) -> Steps:
    asked = case.plan.gpus_per_node
    there = f"are there GPUs? nvidia-smi (rocm-smi, xpu-smi){_on(case)}"
    what = "import torch; print(torch.__version__, torch.cuda.device_count())"
    return [
        there if asked else Step("ask for GPUs: it asked for none", case.resume("gpus_per_node=1")),
        f"is its torch built for them? {case.plan.node_python} -c '{what}'{_on(case)}; +cpu is a build for CPUs only",
        _then(case),
        "or let it compute on the CPU (the program's own device and backend: cpu and gloo)",
    ]


def _damaged_checkpoint(case: Case) -> Steps:
    file = case.fault.reading or "the file that the traceback shows"
    return [
        f"{file} is incomplete: the job that wrote it was killed meanwhile, or the disk was full. Remove it, so that "
        "the program loads an older one, or begins again",
        _then(case),
        "a file that is written under another name and renamed (os.replace) when it is complete is never half there; "
        "launcher.Resumable saves in that way",
    ]


def _hang(case: Case) -> Steps:
    limit = case.fault.limit or "launch.hang_timeout"
    return [
        "look at the stacks below: a rank that is in no collective holds up the others",
        Step("if a step may take that long", case.resume(f"{limit}={2 * keys_of(case.plan)[limit]}")),
        *_node(case)[1:2],
    ]


def _rendezvous(case: Case) -> Steps:
    longer = case.resume(f"launch.rendezvous_timeout={2 * case.plan.launch.rendezvous_timeout}")
    suffix, checks = case.plan.cluster.host_suffix, case.resume("preflight=true")
    named = f"do the nodes have names with cluster.host_suffix={suffix}? `getent hosts NODE{suffix}` there shows it"
    return [
        *([named] if suffix else []),
        Step("is a node slow to start, or an import slow? Then wait longer", longer),
        Step("is it the network? Name the interface (cluster.interface), or check all nodes", checks),
        *_node(case)[1:2],
    ]


def _killed(case: Case) -> Steps:
    name = case.fault.signal or ""
    log = [f"its last lines: {case.log}"] if case.log else []
    causes = {
        "SIGKILL": ["it is not known who sent it: probably the kernel, for lack of memory, or a user with kill -9"],
        "SIGSEGV": ["native code failed (an extension, a library, a mix of versions): its stack shows where"],
        "SIGABRT": ["a library aborted (NCCL, CUDA, glibc); its message is at the end of the log"],
        "SIGILL": ["a library was built for another kind of CPU than this node has"],
        "SIGFPE": ["native code divided by zero"],
    }.get(name, ["the launcher did not send this signal"])  # fmt: skip
    limit = case.memory.get("limit") or case.plan.mem
    memory: Steps = []
    if name == "SIGKILL" and limit and case.plan.queued:
        memory = [Step(f"if it was memory (its limit is {rough_size(limit)})", case.resume(f"mem={_twice(limit)}"))]
    return [*causes, *memory, *log, Step("try again", case.resume())]


def _exited(case: Case) -> Steps:
    hint = "it exited without an exception (os._exit, sys.exit, or a library's exit)"
    if (code := case.fault.exit_code) is not None and code > 128:
        hint += f"; a shell returns {code} for a program that signal {code - 128} has killed"
    return [hint, *([f"its last lines: {case.log}"] if case.log else []), _then(case)]


def _installed(case: Case) -> str:
    plan = case.plan
    if plan.env.container is not None:
        return f"is it installed in {plan.env.container} (env.container)? {plan.env.python} -c 'import ...' inside"
    if plan.env.archive is not None:
        made = f" (a copy of {plan.archive.of})" if plan.archive.of else ""
        return f"is it installed in the environment that {plan.env.archive} (env.archive) contains{made}?"
    return f"is it installed for the job's Python? {plan.node_python} -c 'import ...'{_on(case)}"


def _arguments(case: Case) -> Steps:
    refused = case.fault.code is FaultCode.USAGE and case.plan.workload.kind == "Program"
    return [Step("correct its arguments", case.resume("--", "ARGUMENT", "..."))] if refused else []


def _file(case: Case) -> Steps:
    data: Steps = [Step("which data sets are here, and how to get one", f"{case.program} data"), _then(case)]
    there = f"does it exist on the compute nodes, and may you read it? ls -l ...{_on(case)}"
    return [there, *(_arguments(case) or data)]


def _never(case: Case) -> Steps:
    again: Steps = [Step("try again", case.resume())]
    if case.signal is None or case.signal != registry.scheduler(case.plan.cluster.scheduler).output_signal:
        return again
    return [f"its output could not be opened: is {case.plan.run_dir} on a file system that all nodes share?", *again]


def _unknown(case: Case) -> Steps:
    per = "task" if case.plan.launch.mode == LaunchMode.tasks.value else "node"
    return [Step("see what it printed last", f"{case.program} logs {case.name}"),
            f"a {per} that is killed as a whole reports nothing; accounting (sacct) or job history may show more",
            *_resume()(case)]  # fmt: skip


_ADVICE: dict[EndKind, Callable[[Case], Steps]] = {
    EndKind.DONE: lambda _: [],
    EndKind.OUT_OF_MEMORY: _memory,
    EndKind.OUT_OF_GPU_MEMORY: lambda case: [
        *_smaller(case),
        "or save memory: bfloat16, recomputed activations, weights divided over ranks (workload=fsdp_lm shows how)",
        "if much memory is reserved but unused: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    ],
    EndKind.SHARED_MEMORY: lambda case: [
        "use fewer DataLoader workers, or torch.multiprocessing.set_sharing_strategy('file_system')",
        f"see how full it is: df -h /dev/shm{_on(case)}",
    ],
    EndKind.DISK_FULL: lambda case: [
        f"see what is full: df -h {case.plan.run_dir} (and the site's quota command, and TMPDIR{_on(case)})",
        Step("free some space, or keep fewer checkpoints", case.resume("checkpoint.keep=1")),
    ],
    EndKind.LIMIT: lambda case: [
        f"see the limits{_on(case)}: ulimit -n -u",
        "use fewer DataLoader workers or threads, or raise the limits with a set-up line of the profile "
        "(cluster.setup: ulimit -n 65536)",
    ],
    EndKind.WALL_TIME: _wall_time,
    EndKind.PREEMPTED: _resume("the scheduler gave its nodes to another job, and restarts it if it can"),
    EndKind.REQUEUED: _resume("a user, or Slurm after a node failure, requeued its job: it starts by itself"),
    EndKind.CANCELLED: _resume(),
    EndKind.STOPPED: _resume(),
    EndKind.PRUNED: lambda case: [Step("run it to its end all the same", case.resume())],
    EndKind.NODE_LOST: _node,
    EndKind.BAD_NODE: _node,
    EndKind.NO_GPU: _no_gpu,
    EndKind.GPU_ERROR: _gpu_error,
    EndKind.CONNECTION_LOST: lambda case: [
        "another rank or its node ended first: see the logs of all ranks", *_node(case),
    ],
    EndKind.COLLECTIVE_TIMEOUT: lambda case: [
        "a rank did not take part in time: the ranks named here did, so look at the logs of the others",
        "do all ranks call the same collectives in the same order, and the same number of times?",
        Step("if a rank may be that late", case.resume(f"launch.timeout={2 * case.plan.launch.timeout}")),
    ],
    EndKind.RENDEZVOUS_TIMEOUT: _rendezvous,
    EndKind.HANG: _hang,
    EndKind.KILLED: _killed,
    EndKind.EXITED: _exited,
    EndKind.EXITED_EARLY: lambda case: [
        "all ranks must call the same collectives: does this one return early, or have fewer batches than the others? "
        "(torch.distributed.algorithms.join.Join lets a rank with fewer batches wait)",
        "a rank that has nothing more to do waits for the others: torch.distributed.barrier() before it exits",
        _then(case),
    ],
    EndKind.IMPORT_ERROR: lambda case: [
        _installed(case),
        f"is the code on its path? The job starts in {case.plan.workdir}; PYTHONPATH may be set in cluster.environment",
        _then(case),
    ],
    EndKind.CONFIG_ERROR: lambda case: (
        _arguments(case) or [Step("change the setting that the cause names", case.resume("KEY=VALUE"))]
    ),
    EndKind.FILE_MISSING: _file,
    EndKind.DAMAGED_CHECKPOINT: _damaged_checkpoint,
    EndKind.EXCEPTION: lambda case: [
        "fix the code; the traceback shows where it failed", _then(case),
        "breakpoint() in a batch job: debug.rank=0 (docs/operating.md)",
    ],
    EndKind.SETUP_FAILED: lambda case: [
        f"try that line in a shell{_on(case)}; it is in cluster.setup or in env", _then(case),
    ],
    EndKind.NO_PROGRESS: lambda case: [
        Step("give each attempt more time", case.resume(f"time={format_hours(2 * case.plan.time)}")),
        "or save more often (checkpoint.every)",
    ],
    EndKind.NEVER_STARTED: _never,
    EndKind.LOST: _unknown,
    EndKind.UNKNOWN: _unknown,
}  # fmt: skip


def _then(case: Case) -> Step:
    return Step("then", case.resume())


def _on(case: Case) -> str:
    return f" (on {case.host})" if case.host else ""
