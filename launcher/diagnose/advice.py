"""The advice of `post-mortem`: steps to take for each kind of end, with commands to copy."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from launcher.config.schema import LaunchMode
from launcher.diagnose import verdict as known
from launcher.failures.codes import EndKind, FaultCode
from launcher.formatting import format_hours, rough_size
from launcher.plan.plan import JobPlan, keys_of
from launcher.runs.events import Fault
from launcher.schedulers import registry

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
    known = keys_of(case.plan).get(limit)  # a damaged event may name no key
    return [
        "look at the stacks below: a rank that is in no collective holds up the others",
        *([Step("if a step may take that long", case.resume(f"{limit}={2 * known}"))] if known else []),
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
    sets = [] if case.plan.own_code else [Step("which data sets are here, and how to get one", f"{case.program} data")]
    data: Steps = [*sets, _then(case)]
    there = f"does it exist on the compute nodes, and may you read it? ls -l ...{_on(case)}"
    return [there, *(_arguments(case) or data)]


def _never(case: Case) -> Steps:
    if case.fault.code is FaultCode.CONDITION_FAILED:
        keys = ("after=null", "sweep.after=null") if "/" in case.plan.run_id else ("after=null",)
        return [Step("start it whatever has become of what it waited for", case.resume(*keys))]
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
        _arguments(case) or [Step("change the setting or the code that the cause names", case.resume("KEY=VALUE"))]
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
