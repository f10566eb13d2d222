"""`python -m tests.gpu.check`: what only a GPU can show, one line for each check, on a machine with one or more.

Elsewhere it says so and exits with 0. Every check runs the real command line in a folder of its own that is removed
afterwards, has a time limit, and leaves no process behind. This process itself uses no GPU: it would hold memory.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from launcher import errors
from launcher.failures import messages
from launcher.files.json_types import from_json
from launcher.runs.events import Restart
from launcher.worker import hang_diagnosis
from tests.launch import PYTHON, ROOT, Launcher

GB = 10**9
TOKEN = "GPU_CHECK_TOKEN"  # marks the processes of a check in their environment


class OutOfTime(BaseException):
    """A check takes too long. No OSError as TimeoutError is, nor an Exception: nothing on the way may catch it."""


class Failed(Exception):
    """A check did not find what it should; the text says what it found."""


@dataclass(frozen=True)
class Machine:
    """Where the checks run.

    Attributes:
        gpus: how many there are.
        memory: bytes of the smallest.
        folder: for everything that a check writes.
        token: of the check; see `leftovers`.
        asks: overrides by which a run gets all GPUs, one rank on each.
        asks_one: the same for one GPU.
    """

    gpus: int
    memory: int
    folder: Path
    token: str = field(default_factory=lambda: secrets.token_hex(8))
    asks: tuple[str, ...] = ()
    asks_one: tuple[str, ...] = ("gpus_per_node=1",)

    @property
    def launcher(self) -> Launcher:
        return Launcher(self.folder / "runs", {TOKEN: self.token}, ["cluster=local"])

    @property
    def environ(self) -> dict[str, str]:
        """For commands that are not the launcher's: nothing of a job that this may run in."""
        of_a_job = ("LAUNCHER_", "SLURM_", "PBS_")
        ours = {name: value for name, value in os.environ.items() if not name.startswith(of_a_job)}
        return {**ours, "PYTHONPATH": str(ROOT), TOKEN: self.token}

    def command(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Runs a command from the root of the repository; the time limit is the check's."""
        return subprocess.run(
            words, cwd=ROOT, env={**self.environ, **environment}, capture_output=True, text=True, check=False
        )

    def launch(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Runs `python -m launcher WORDS`."""
        return self.command(PYTHON, "-m", "launcher", *words, **{**self.launcher.environ, **environment})

    def run(self, *overrides: str, code: int = 0, **environment: str) -> tuple[dict[str, Any], str]:
        """Runs a job to its end: its metrics, and all that was printed.

        Raises:
            Failed: it ended with another exit code.
        """
        done = self.launch(*overrides, "cluster=local", "wait=true", **environment)
        output = done.stdout + done.stderr
        if done.returncode != code:
            raise Failed(f"exit code {done.returncode}, not {code}: {last_line(output)}\n{output}")
        require("in an interpreter of its own" not in output, f"the agent could not fork its ranks\n{output}")
        return dict(self.launcher.last().result() or {}), output

    def restarts(self) -> list[dict[str, Any]]:
        """The restarts of the newest run."""
        return [event for event in self.launcher.last().attempts()[-1].events() if event["event"] == "restart"]


def require(condition: object, words: str) -> None:
    """Raises Failed unless the condition holds."""
    if not condition:
        raise Failed(words)


def last_line(text: str) -> str:
    """The last line that says something."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "nothing was printed")


def entry(name: str) -> tuple[str, str]:
    """Overrides by which ranks run a function of programs.py."""
    return "workload=collective", f"workload.entry=tests.gpu.programs:{name}"


# -- the checks


def versions(machine: Machine) -> str:
    """torch, CUDA, NCCL, the driver, and a product of matrices on every GPU."""
    code = (
        "import torch; n = torch.cuda.device_count(); "
        "x = [torch.ones(256, 256, device=f'cuda:{i}') for i in range(n)]; "
        "assert all((y @ y == 256).all() for y in x); "
        "print(f'torch {torch.__version__}, CUDA {torch.version.cuda or torch.version.hip}, NCCL', "
        "'.'.join(map(str, torch.cuda.nccl.version())) + ',', n, 'x', torch.cuda.get_device_name(0))"
    )
    done = machine.command(PYTHON, "-c", code)
    require(done.returncode == 0, last_line(done.stderr))
    smi = shutil.which("nvidia-smi")
    driver = machine.command(smi, "--query-gpu=driver_version", "--format=csv,noheader").stdout if smi else ""
    return last_line(done.stdout) + (f", driver {driver.split()[0]}" if driver.split() else "")


def unit_tests(machine: Machine) -> str:
    """The unit tests and those of processes, with a torch that was built for GPUs."""
    parallel = ["--numprocesses=auto"] if importlib.util.find_spec("xdist") else []
    folders = ("tests/unit", "tests/processes")
    done = machine.command(PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider", *parallel, *folders)
    require(done.returncode == 0, f"{last_line(done.stdout)}\n{done.stdout[-6000:]}")
    return last_line(done.stdout)


def ddp_with_preflight(machine: Machine) -> str:
    """ddp_mnist on all GPUs after a preflight."""
    metrics, output = machine.run("workload=ddp_mnist", "workload.dataset=digits", "preflight=true", *machine.asks)
    require("nccl, cuda:" in output, f"it did not train on GPUs: {last_line(output)}")
    require(metrics["accuracy"] > 0.9, f"accuracy {metrics['accuracy']}")
    return f"accuracy {metrics['accuracy']:.3f}, {metrics['images_per_s']:,.0f} images/s"


def no_visible_device(machine: Machine) -> str:
    """The same with no device in sight is refused, and does not train on the CPU."""
    hidden = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
    _, output = machine.run(
        "workload=ddp_mnist", "workload.dataset=digits", *machine.asks, code=errors.NO_RETRY, **hidden
    )
    require("sees no GPU" in output and "CUDA_VISIBLE_DEVICES=" in output, f"it does not say why: {last_line(output)}")
    return "refused, exit code 93"


def asks_at_import(machine: Machine) -> str:
    """A module that calls torch.cuda.is_available() when it is imported."""
    metrics, _ = machine.run("workload=function", "workload.target=tests.gpu.asks_at_import:main", *machine.asks)
    require(metrics == {"found": True, "sum": 1000.0}, f"it returned {metrics}")
    return "ranks use their GPUs"


def two_ranks_on_one_gpu(machine: Machine) -> str:
    """Refused while they join, by name."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    _, output = machine.run(
        "workload=collective", "workload.op=all_reduce", "workload.sizes=1M", "gpus_per_node=1", "procs_per_node=2",
        code=errors.NO_RETRY, CUDA_VISIBLE_DEVICES=first,
    )  # fmt: skip
    said = next((line for line in output.splitlines() if "Several ranks use one GPU: " in line), "")
    require("ranks 0-1" in said, f"the ranks are not named: {last_line(output)}")
    return "refused, exit code 93: " + said.partition("one GPU: ")[2].partition(".")[0]


def gloo_with_gpu_tensors(machine: Machine) -> str:
    """gloo's operations on tensors of a GPU."""
    _, output = machine.run(
        "workload=collective", "workload.backend=gloo", "workload.op=[all_reduce,broadcast]",
        "workload.sizes=1K:64M:256", *machine.asks,
    )  # fmt: skip
    require("gloo, cuda:" in output, f"it was not gloo on GPUs: {last_line(output)}")
    return f"{machine.gpus} ranks, verified"


def all_collectives(machine: Machine) -> str:
    """Every operation up to 8 GiB, or to what fits into the memory; every element verified."""
    _, output = machine.run(
        "workload=collective", "workload.op=all", "workload.sizes=8M:8G:32", "workload.iterations=2", *machine.asks
    )
    require("nccl, cuda:" in output, f"it was not NCCL on GPUs: {last_line(output)}")
    rows = json.loads((machine.launcher.last().path / "results.json").read_text())["rows"]
    sizes: dict[str, int] = {}
    for row in rows:
        if not row["missing"]:
            sizes[row["op"]] = max(sizes.get(row["op"], 0), row["size"])
    largest = max(sizes.values())
    return f"{len(sizes)} operations, the largest {largest / 2**30:.1f} GiB"


def types_and_groups(machine: Machine) -> str:
    """The operations on other types, started asynchronously, and in groups that NCCL splits off."""
    keys = ("workload=collective", "workload.op=all", "workload.sizes=[4K,4M]", "workload.async_op=true")
    types = {"float16": "sum", "bfloat16": "avg", "float64": "max", "int8": "sum", "int32": "avg"}
    for dtype, redop in types.items():
        words = (f"workload.dtype={dtype}", f"workload.redop={redop}", "workload.groups=[world,node]")
        _, output = machine.run(*keys, *words, *machine.asks)
        require("nccl, cuda:" in output, f"{dtype}: it was not NCCL on GPUs: {last_line(output)}")
    return f"{len(types)} types, verified"


def point_to_point(machine: Machine) -> str:
    """Every pattern of p2p over NCCL, and the matrix of all pairs of GPUs; every element verified."""
    if machine.gpus < 2:
        return "left out: one GPU"
    metrics, output = machine.run("workload=p2p", "workload.sizes=[8,1M,64M]", "workload.matrix=ranks", *machine.asks)
    require("nccl, cuda:" in output, f"it was not NCCL on GPUs: {last_line(output)}")
    return f"{metrics['patterns']} patterns, {metrics['checked']:,} elements"


def invariant_weights(machine: Machine) -> str:
    """train.invariant: one GPU and all of them train bitwise the same weights."""
    keys = (
        "workload=ddp_mnist", "workload.dataset=digits", "workload.epochs=2", "train.invariant=true",
        f"train.micro_batches={max(8, machine.gpus)}",
    )  # fmt: skip
    one, several = (machine.run(*keys, *asks)[0]["weights_sha256"] for asks in (machine.asks_one, machine.asks))
    require(one == several, f"{one} on one GPU, {several} on {machine.gpus}")
    return f"equal on 1 and on {machine.gpus}"


def memory_of_a_save(machine: Machine) -> str:
    """Comparing a tensor takes little of a GPU, and copies take the pinned memory that is counted for them."""
    metrics, _ = machine.run(*entry("takes_memory_for_a_save"), *machine.asks)
    require(metrics["gpu"] < 150_000_000 and not metrics["uncounted"], f"it took {metrics}")
    return f"{metrics['gpu'] / 1e6:.0f} MB of the GPU"


def default_device(machine: Machine) -> str:
    """A program that makes its tensors on the GPU (torch.set_default_device) saves and loads those on the CPU, too."""
    metrics, output = machine.run(*entry("makes_tensors_on_its_gpu"), *machine.asks)
    require(metrics == {"loaded": 1, "same": True}, f"it returned {metrics}")
    require("in memory" not in output, f"the copy failed\n{output}")
    return "saved, copied and loaded"


def fsdp_resumed(machine: Machine) -> str:
    """fsdp_lm in bfloat16, stopped and resumed, has the weights of one that was left alone."""
    keys = (
        "workload=fsdp_lm", "workload.precision=bfloat16", "workload.steps=4000", "workload.width=256",
        "workload.sample=0", "workload.eval_every=1000", *machine.asks,
    )  # fmt: skip
    whole, _ = machine.run(*keys, "run_id=whole")
    begun = machine.launch(*keys, "run_id=parts", "cluster=local", "wait=false", "resume.how=never")
    require(begun.returncode == 0, last_line(begun.stderr))
    launcher = machine.launcher
    launcher.until(lambda: (launcher.status()["step"] or 0) >= 200, "step 200", timeout=240)
    (launcher.runs_dir / "parts" / "stop").touch()
    launcher.until(lambda: launcher.status()["state"] in ("stopped", "done", "failed"), "the stop", timeout=120)
    require(launcher.status()["state"] == "stopped", f"it could not be stopped: {launcher.status()}")
    resumed = machine.launch("resume", "parts", "wait=true")
    require(resumed.returncode == 0, last_line(resumed.stdout + resumed.stderr))
    parts = dict(launcher.last().result() or {})
    for name in ("weights_sha256", "loss", "val_loss"):
        require(parts[name] == whole[name], f"{name}: {parts[name]} when resumed, {whole[name]} undisturbed")
    return f"equal weights, loss {whole['loss']:.4f}"


def staging_under_a_queue(machine: Machine) -> str:
    """What a queued kernel is yet to write is saved whole, with one GPU in sight of a rank and with all of them."""
    for visible in ("one", "all"):
        metrics, _ = machine.run(*entry("stages"), f"launch.visible_devices={visible}", *machine.asks)
        require(metrics == {"wrong": 0}, f"visible_devices={visible}: {metrics} elements")
    return "three saves, equal; visible_devices=one and all"


def killed_while_full(machine: Machine) -> str:
    """kill -9 of a rank that holds most of its GPU's memory: started again it gets as much."""
    metrics, _ = machine.run(*entry("is_killed_while_full"), *machine.asks)
    require(metrics.get("round") == 1, f"it was not started again in place: {metrics}")
    return f"{metrics['held'] / GB:.1f} GB held again"


def killed_under_a_queue(machine: Machine) -> str:
    """kill -9 of a rank with queued kernels and a copy in memory on its way: the next round has a copy, bitwise."""
    metrics, _ = machine.run(*entry("is_killed_under_a_queue"), "checkpoint.memory=1", *machine.asks)
    found = metrics.get("round"), metrics.get("memory"), metrics.get("wrong")
    require(found == (1, True, 0) and metrics["begun"] >= 3, f"it came back as {metrics}")
    return f"continued after step {metrics['begun']} of 5"


def kernel_that_never_ends(machine: Machine) -> str:
    """A rank whose kernel does not end is found by launch.hang_timeout, ended, and started again on the same GPU."""
    metrics, _ = machine.run(*entry("has_a_kernel_that_never_ends"), "launch.hang_timeout=10", *machine.asks)
    require(metrics == {"round": 1}, f"it was not started again in place: {metrics}")
    restart = from_json(machine.restarts()[0], Restart)
    require(restart.limit == "launch.hang_timeout", f"it was taken for something else: {restart}")
    return messages.of_fault(restart).partition(":")[0]


def collective_that_a_rank_misses(machine: Machine) -> str:
    """The rank that does not call a collective is blamed, and not those that wait in it for their GPUs."""
    if machine.gpus < 2:
        return "left out: one GPU"
    metrics, _ = machine.run(*entry("stays_away"), "launch.hang_timeout=10", *machine.asks)
    require(metrics == {"round": 1}, f"it was not started again in place: {metrics}")
    restart = from_json(machine.restarts()[0], Restart)
    text = messages.of_fault(restart)
    require([each.rank for each in restart.accused] == [machine.gpus - 1] and "has not called" in text, text)
    return text


def sigterm_with_a_large_state(machine: Machine) -> str:
    """A rank with 20 GB of state, or what the machine has room for, saves it when it is told to end."""
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    size = min(20 * GB, machine.memory // 4, available // 4, shutil.disk_usage(machine.folder).free // 3)
    keys = (*entry("keeps_a_large_state"), "run_id=large", "launch.grace=200", *machine.asks_one)
    sized = {"GPU_CHECK_BYTES": str(size)}
    begun = machine.launch(*keys, "cluster=local", "wait=false", **sized, GPU_CHECK_STEPS="1000000")
    require(begun.returncode == 0, last_line(begun.stderr))
    launcher = machine.launcher
    launcher.until(lambda: (launcher.status()["step"] or 0) >= 20, "step 20", timeout=120)
    told = time.monotonic()
    machine.launch("cancel", "large")
    machine.launch("wait", "large", "-q")
    seconds = time.monotonic() - told
    verified = machine.launch("checkpoint", "verify", "large")
    require(verified.returncode == 0, f"the checkpoint is not sound: {last_line(verified.stdout + verified.stderr)}")
    resumed = machine.launch("resume", "large", "wait=true", **sized, GPU_CHECK_STEPS="0")
    require(resumed.returncode == 0, last_line(resumed.stdout + resumed.stderr))
    metrics = dict(launcher.last().result() or {})
    require(metrics.get("begun", 0) >= 20 and metrics.get("wrong") == 0, f"it came back as {metrics}")
    return f"{size / GB:.1f} GB, over {seconds:.0f} s after SIGTERM"


def recorder_answers(machine: Machine) -> str:
    """NCCL's flight recorder says what a rank waits for that hangs in .item()."""
    renamed = hasattr(torch._C._distributed_c10d, "_dump_fr_trace")
    recorders = hang_diagnosis.Recorders(machine.folder, {}, renamed=renamed)
    process = subprocess.Popen(
        [PYTHON, "-m", "tests.gpu.waits_for_its_gpu"], cwd=ROOT, stdout=subprocess.PIPE, text=True,
        env={**machine.environ, **recorders.variables},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        require(process.stdout.readline() == "waits\n", "NCCL did not start")
        (found,) = recorders.take([0], timeout=10)
    finally:
        process.kill()
        process.wait()
    require(found, "torch's pipe was not answered")
    (group,) = found.groups
    require((group.enqueued, group.pending, group.started) == (2, 2, False), f"it says {group}")
    return f"{group.operation} enqueued and not begun"


def benchmarks(machine: Machine) -> str:
    """The benchmarks that have a --device, on GPUs; a target that is missed fails the check."""
    told = []
    for name in ("checkpoint", "stop"):
        done = machine.command(PYTHON, "-m", f"benchmarks.{name}", "--device=cuda")
        lines = [line for line in done.stdout.splitlines() if "met:" in line]
        require(done.returncode == 0, "; ".join(lines) or last_line(done.stderr))
        told += [line.partition(" (target")[0] for line in lines]
    return "; ".join(told)


# -- the table


@dataclass(frozen=True)
class Check:
    """One line of the table: its name, what does it, and its time limit in seconds."""

    name: str
    call: Callable[[Machine], str]
    limit: float


CHECKS = (
    Check("versions", versions, 120),
    Check("unit tests", unit_tests, 1800),
    Check("ddp_mnist with preflight", ddp_with_preflight, 300),
    Check("no visible device", no_visible_device, 120),
    Check("is_available() at import", asks_at_import, 120),
    Check("two ranks on one GPU", two_ranks_on_one_gpu, 120),
    Check("gloo with GPU tensors", gloo_with_gpu_tensors, 300),
    Check("all collectives to 8 GiB", all_collectives, 900),
    Check("types and groups", types_and_groups, 900),
    Check("p2p over NCCL", point_to_point, 900),
    Check("train.invariant", invariant_weights, 600),
    Check("memory of a save", memory_of_a_save, 120),
    Check("set_default_device", default_device, 120),
    Check("fsdp_lm bf16 resumed", fsdp_resumed, 900),
    Check("staging under a queue", staging_under_a_queue, 300),
    Check("kill -9 while full", killed_while_full, 300),
    Check("kill -9 under a queue", killed_under_a_queue, 300),
    Check("kernel that never ends", kernel_that_never_ends, 300),
    Check("collective that a rank misses", collective_that_a_rank_misses, 300),
    Check("SIGTERM with a large state", sigterm_with_a_large_state, 900),
    Check("flight recorder", recorder_answers, 120),
    Check("benchmarks", benchmarks, 1200),
)


@dataclass(frozen=True)
class Outcome:
    """What came of one check."""

    name: str
    result: str
    seconds: float
    detail: str


def run_check(check: Check, gpus: int, memory: int) -> Outcome:
    """Does one check in a folder of its own, within its time limit; no process of it is left."""
    began = time.monotonic()
    asks = (f"gpus_per_node={gpus}",)
    with tempfile.TemporaryDirectory(prefix="gpu-check-", ignore_cleanup_errors=True) as folder:
        machine = Machine(gpus, memory, Path(folder), asks=asks)
        try:
            with time_limit(check.limit):
                result, detail = "passed", check.call(machine)
        except OutOfTime:
            result, detail = "FAILED", f"not done within {check.limit:g} s"
        except Exception as error:  # whatever goes wrong is a line of the table
            result, detail = "FAILED", str(error) if isinstance(error, Failed) else f"{type(error).__name__}: {error}"
        left = end_leftovers(machine.token)
        if left and result == "passed":
            result, detail = "FAILED", f"{left} processes were left behind; {detail}"
    return Outcome(check.name, result, time.monotonic() - began, detail)


@contextlib.contextmanager
def time_limit(seconds: float) -> Any:
    """Raises OutOfTime in the main thread when the time is up."""

    def over(*_: object) -> None:
        raise OutOfTime

    previous = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def end_leftovers(token: str) -> int:
    """Kills the processes that have this token in their environment; how many there were."""
    mark, found = f"{TOKEN}={token}".encode(), 0
    for process in os.scandir("/proc"):
        if process.name.isdecimal() and int(process.name) != os.getpid():
            with contextlib.suppress(OSError):
                if mark in Path(process.path, "environ").read_bytes().split(b"\0"):
                    os.kill(int(process.name), signal.SIGKILL)
                    found += 1
    return found


def table(outcomes: Sequence[Outcome]) -> str:
    """check | result | seconds | detail"""
    rows = [("check", "result", "seconds", "detail")]
    rows += [(each.name, each.result, f"{each.seconds:.1f}", each.detail.partition("\n")[0]) for each in outcomes]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join(
        " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def look_for_gpus(environ: Mapping[str, str] = os.environ) -> tuple[list[int], str]:
    """The memory of each GPU in bytes, and what torch says of them; asked in another process, which then ends."""
    code = (
        "import json, os, torch; from launcher.worker.devices import find_accelerators; "
        "seen = find_accelerators(os.environ); "
        "sizes = [torch.cuda.get_device_properties(n).total_memory for n in range(seen.count)] "
        "if seen.kind == 'cuda' else []; print(json.dumps([sizes, seen.text]))"
    )
    done = subprocess.run([PYTHON, "-c", code], cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        return [], last_line(done.stderr)
    sizes, text = json.loads(last_line(done.stdout))
    return sizes, text


def main(arguments: Sequence[str] | None = None) -> int:
    """Does the checks; 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", metavar="NAME", action="append", help="do the checks whose name contains this; repeat"
    )
    options = parser.parse_args(arguments)
    sizes, text = look_for_gpus()
    if not sizes:
        print(f"gpu-check: nothing was checked, for there is no GPU here: {text}")
        return 0
    chosen = [check for check in CHECKS if not options.only or any(name in check.name for name in options.only)]
    outcomes = []
    for check in chosen:
        print(f"{check.name} …", file=sys.stderr, flush=True)
        outcomes.append(run_check(check, len(sizes), min(sizes)))
        if outcomes[-1].result == "FAILED":
            print(outcomes[-1].detail, file=sys.stderr, flush=True)
    print(table(outcomes))
    return 1 if any(each.result == "FAILED" for each in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
