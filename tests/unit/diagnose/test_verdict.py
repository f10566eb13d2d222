"""Why an attempt ended, from evidence that was recorded on real schedulers, GPUs and networks."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from launcher.binding import hardware
from launcher.cli.post_mortem import has_saved
from launcher.config.schema import Env
from launcher.diagnose import verdict as diagnosis
from launcher.diagnose.advice import Case, advice
from launcher.diagnose.verdict import Evidence, Verdict, classify
from launcher.failures import known_errors, messages
from launcher.failures.codes import EndKind, FaultCode, NextReason, StopReason
from launcher.monitoring.run_status import JobStatus, RunState
from launcher.runs.events import Accused, Fault, SetupFailed, Started, Stays, Stop, StopRequested
from launcher.schedulers import pending, registry
from launcher.schedulers.pbs.client import NOTICES as PBS
from launcher.schedulers.slurm.client import NOTICES as SLURM
from launcher.worker import user_script
from tests.fakes.third_scheduler.scheduler import ThirdScheduler
from tests.unit.plans import bare_plan, plan_of, with_fields

GIB = 1024**3


def fault(code: FaultCode, **more: Any) -> Fault:
    """The event of an agent."""
    return Fault(code=code, host="node1", **more)


def raised(error: str, **more: Any) -> Fault:
    return fault(FaultCode.RAISED, rank=0, exit_code=1, error=error, traceback="T", **more)


def signalled(name: str) -> Fault:
    return fault(FaultCode.SIGNALLED, rank=1, signal=name)


def exited(code: int, which: FaultCode = FaultCode.EXITED) -> Fault:
    return fault(which, rank=1, exit_code=code)


def failed(told: Fault | None = None, **more: Any) -> Evidence:
    """An attempt on Slurm that has failed."""
    return Evidence(**{"state": RunState.FAILED, "ended": 1, "scheduler": "Slurm", "fault": told, **more})


def said(raw_state: str, reason: str = "", signal: int | None = None) -> JobStatus:
    """The state of the job, as the scheduler prints it."""
    return JobStatus(raw_state=raw_state, reason=reason, signal=signal)


def lines(*text: str) -> tuple[pending.Notice, ...]:
    return pending.find(text, [*SLURM, *PBS])


def test_a_cause_is_no_longer_than_somebody_reads() -> None:
    line = f"MemoryError: {'x' * 60_000}"
    for evidence in (failed(raised(line)), failed(output=(line,))):
        found = classify(evidence)
        assert found.kind is EndKind.OUT_OF_MEMORY
        assert len(found.cause or "") == 1000 and len(found.sign) <= 1000


# -- what the script and whoever waits for the tasks have noted

TOLD = StopRequested(signal="SIGTERM", host="n1")
TOLD_WORDS = "n1 was asked to stop by SIGTERM"


@pytest.mark.parametrize(
    ("evidence", "kind", "cause"),
    [
        (Evidence(RunState.STOPPED, request=TOLD), EndKind.STOPPED, TOLD_WORDS),
        (Evidence(RunState.FAILED, request=TOLD, ended=143, output=("Terminated",)), EndKind.STOPPED,
         f"{TOLD_WORDS} (exit code 143)"),
        (Evidence(RunState.FAILED, request=TOLD, ended=143, scheduler="PBS", job=said("TIMEOUT")), EndKind.WALL_TIME,
         f"{TOLD_WORDS} (exit code 143); PBS says TIMEOUT"),
        (Evidence(RunState.CANCELLED, request=TOLD, ended=143, job=said("CANCELLED")), EndKind.CANCELLED,
         f"{TOLD_WORDS}; CANCELLED"),
        (Evidence(RunState.STOPPED, request=TOLD, stop=Stop(reason=StopReason.KILLED, exit_code=137)),
         EndKind.STOPPED, "all agents were killed, or could not be started (exit code 137)"),
        (failed(fault(FaultCode.NO_FOLDER, error="gone")), EndKind.CONFIG_ERROR, "node1: gone"),
    ],
)  # fmt: skip
def test_what_is_noted_before_any_agent_speaks(evidence: Evidence, kind: EndKind, cause: str) -> None:
    found = classify(evidence)
    assert (found.kind, found.cause) == (kind, cause)


# -- what a line is a sign of

NCCL_TIMEOUT = (
    "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1042, OpType=ALLREDUCE, NumelIn=26214400, "
    "NumelOut=26214400, Timeout(ms)=600000) ran for 600029 milliseconds before timing out."
)
CUDA_OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB "
    "of which 1.43 GiB is free."
)


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (CUDA_OOM, EndKind.OUT_OF_GPU_MEMORY),
        ("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB", EndKind.OUT_OF_GPU_MEMORY),
        ("RuntimeError: CUDA error: out of memory", EndKind.OUT_OF_GPU_MEMORY),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
         EndKind.OUT_OF_GPU_MEMORY),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", EndKind.GPU_ERROR),
        ("RuntimeError: CUDA error: device-side assert triggered", EndKind.GPU_ERROR),
        ("torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered", EndKind.GPU_ERROR),
        ("NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
         EndKind.GPU_ERROR),
        ("MemoryError", EndKind.OUT_OF_MEMORY),
        ("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 7.45 GiB for an array with shape (1000000000,)",
         EndKind.OUT_OF_MEMORY),
        ("RuntimeError: [enforce fail at alloc_cpu.cpp:118] err == 0. DefaultCPUAllocator: can't allocate memory: you "
         "tried to allocate 4000000000 bytes. Error code 12 (Cannot allocate memory)", EndKind.OUT_OF_MEMORY),
        ("OSError: [Errno 12] Cannot allocate memory", EndKind.OUT_OF_MEMORY),
        ("RuntimeError: DataLoader worker (pid 4711) is killed by signal: Killed. ", EndKind.OUT_OF_MEMORY),
        ("Memory cgroup out of memory: Killed process 4711 (python)", EndKind.OUT_OF_MEMORY),
        ("RuntimeError: DataLoader worker (pid 4711) is killed by signal: Bus error. It is possible that dataloader's "
         "workers are out of shared memory. Please try to raise your shared memory limit.", EndKind.SHARED_MEMORY),
        ("ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).",
         EndKind.SHARED_MEMORY),
        ("RuntimeError: unable to write to file </torch_1234_5678_0>: No space left on device (28)",
         EndKind.SHARED_MEMORY),
        ("OSError: [Errno 28] No space left on device: '/scratch/run/checkpoints/step-60'", EndKind.DISK_FULL),
        ("OSError: [Errno 122] Disk quota exceeded", EndKind.DISK_FULL),
        ("OSError: [Errno 27] File too large", EndKind.DISK_FULL),
        ("RuntimeError: [enforce fail at inline_container.cc:815] . PytorchStreamWriter failed writing file data/3: "
         "file write failed", EndKind.DISK_FULL),
        ("RuntimeError: basic_ios::clear: iostream error", EndKind.DISK_FULL),  # torch 2.13
        ("RuntimeError: [enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598", EndKind.DISK_FULL),
        ("OSError: [Errno 24] Too many open files", EndKind.LIMIT),
        ("RuntimeError: can't start new thread", EndKind.LIMIT),
        ("BlockingIOError: [Errno 11] Resource temporarily unavailable", EndKind.LIMIT),
        (NCCL_TIMEOUT, EndKind.COLLECTIVE_TIMEOUT),
        ("RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 3000ms for recv"
         " operation to complete", EndKind.COLLECTIVE_TIMEOUT),
        ("RuntimeError: [gloo/transport/tcp/pair.cc:544] Application timeout caused pair closure",
         EndKind.COLLECTIVE_TIMEOUT),
        ("torch.distributed.DistStoreError: wait timeout after 300000ms, keys: /group/0//cpu//0/1",
         EndKind.RENDEZVOUS_TIMEOUT),
        ("torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to connect to "
         "(node1, 29500).", EndKind.RENDEZVOUS_TIMEOUT),
        ("RuntimeError: The server socket has failed to listen on any local network address. EADDRINUSE",
         EndKind.RENDEZVOUS_TIMEOUT),
        ("RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.2]:3411",
         EndKind.CONNECTION_LOST),
        ("torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2027, remote process exited or there "
         "was a network error, NCCL version 2.27.5 ncclRemoteError: A call failed possibly due to a network error",
         EndKind.CONNECTION_LOST),
        ("ConnectionRefusedError: [Errno 111] Connection refused", None),  # of the user's own code
        ("urllib.error.URLError: <urlopen error [Errno 111] Connection refused>", None),
        ("requests.exceptions.ConnectionError: ('Connection aborted.', ConnectionResetError(104, 'Connection reset by "
         "peer'))", None),
        ("ModuleNotFoundError: No module named 'flash_attn'", EndKind.IMPORT_ERROR),
        ("ImportError: /lib64/libstdc++.so.6: version `GLIBCXX_3.4.29' not found", EndKind.IMPORT_ERROR),
        ("OSError: libcudart.so.12: cannot open shared object file: No such file or directory", EndKind.IMPORT_ERROR),
        ("AttributeError: module 'train' has no attribute 'mian'", EndKind.IMPORT_ERROR),
        ("WorkloadError: workload.batch_size=3 cannot be divided", EndKind.CONFIG_ERROR),
        ("BackendError: 4 ranks on node1 with 2 GPUs: use procs_per_node=2", EndKind.CONFIG_ERROR),
        ("NoGpuError: device=cuda, and this rank sees no GPU: ask for gpus_per_node=...", EndKind.NO_GPU),
        ("AssertionError: Torch not compiled with CUDA enabled", EndKind.NO_GPU),
        ("AttributeError: module 'torch._C' has no attribute '_cuda_setDevice'", EndKind.NO_GPU),
        ("RuntimeError: Distributed package doesn't have NCCL built in", EndKind.NO_GPU),
        ("RuntimeError: Cannot access accelerator device when none is available.", EndKind.NO_GPU),
        ("RuntimeError: No CUDA GPUs are available", EndKind.NO_GPU),
        (
            "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU",
            EndKind.NO_GPU,
        ),
        ("RuntimeError: CUDA error: no CUDA-capable device is detected", EndKind.NO_GPU),
        ("torch.AcceleratorError: CUDA error: invalid device ordinal", EndKind.NO_GPU),
        ("RuntimeError: Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False.",
         EndKind.NO_GPU),
        ("RuntimeError: Tried to instantiate dummy base class Event", EndKind.NO_GPU),
        ("ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!", EndKind.NO_GPU),
        ("MisconfigurationException: `CUDAAccelerator` can not run on your system since the accelerator is not "
         "available.", EndKind.NO_GPU),
        ("ValueError: Your setup doesn't support bf16/gpu. You need to assign use_cpu", EndKind.NO_GPU),
        ("RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory.",
         EndKind.DAMAGED_CHECKPOINT),
        (
            "RuntimeError: unexpected EOF, expected 5 more bytes. The file might be corrupted.",
            EndKind.DAMAGED_CHECKPOINT,
        ),
        ("_pickle.UnpicklingError: pickle data was truncated", EndKind.DAMAGED_CHECKPOINT),
        ("safetensors_rust.SafetensorError: Error while deserializing: incomplete metadata, file not fully covered",
         EndKind.DAMAGED_CHECKPOINT),
        ("EOFError", None),  # without a file that was loaded, it may be of input()
        ("FileNotFoundError: [Errno 2] No such file or directory: '/data/imagenet'", EndKind.FILE_MISSING),
        ("PermissionError: [Errno 13] Permission denied: '/data/imagenet'", EndKind.FILE_MISSING),
        ("ValueError: the loss is a banana", None),
        ("KeyError: 'memory'", None),
        ("AttributeError: 'NoneType' object has no attribute 'shape'", None),
    ],
)  # fmt: skip
def test_what_an_error_is_a_sign_of(line: str, kind: EndKind | None) -> None:
    assert known_errors.kind_of(line) == kind
    if kind is not None:
        assert classify(failed(raised(line))).kind is kind


def test_an_error_of_no_special_kind_is_the_codes() -> None:
    told = raised("ValueError: the loss is a banana")
    assert classify(failed(told)) == Verdict(EndKind.EXCEPTION, "rank 0 on node1: ValueError: the loss is a banana")


@pytest.mark.parametrize(
    ("exception", "kind"), [("WorkloadError", EndKind.CONFIG_ERROR), ("RanksDiffer", EndKind.CONFIG_ERROR),
                            ("Misfit", EndKind.CONFIG_ERROR), ("Damaged", EndKind.DAMAGED_CHECKPOINT),
                            ("ValueError", EndKind.EXCEPTION)],
)  # fmt: skip
def test_what_is_refused_is_known_by_the_type_of_the_exception(exception: str, kind: EndKind) -> None:
    told = raised(f"{exception}: this is no ConfigError, and nothing was killed by SIGBUS", exception=exception)
    assert classify(failed(told)).kind is kind


def test_where_gpus_are_missing_it_is_said_how_many_were_asked_for() -> None:
    told = raised("AssertionError: Torch not compiled with CUDA enabled")
    for gpus, words in ((0, "0 GPUs"), (1, "1 GPU"), (4, "4 GPUs")):
        cause = classify(failed(told, gpus=gpus)).cause
        assert cause == f"{messages.of_fault(told)}; it asked for {words} a node (gpus_per_node)"
    asked = plan_of(gpus_per_node=2)
    assert "resume run-1 gpus_per_node=1" in steps(EndKind.NO_GPU)
    assert "gpus_per_node" not in steps(EndKind.NO_GPU, plan=asked)


@pytest.mark.parametrize("exception", ["EOFError", "UnicodeDecodeError", "BadZipFile"])
def test_an_error_of_reading_while_a_checkpoint_is_loaded_means_that_it_is_damaged(exception: str) -> None:
    told = raised(exception, exception=exception, reading="/x/model.pt")
    verdict = classify(failed(told))
    assert verdict == Verdict(EndKind.DAMAGED_CHECKPOINT, f"rank 0 on node1, loading /x/model.pt: {exception}")
    assert "/x/model.pt is incomplete" in steps(EndKind.DAMAGED_CHECKPOINT, fault=told)
    assert classify(failed(raised(exception, exception=exception))).kind is EndKind.EXCEPTION
    other = raised("KeyError: 'w'", exception="KeyError", reading="/x/model.pt")
    assert classify(failed(other)).kind is EndKind.EXCEPTION


def test_what_this_torch_says_of_a_torn_file_is_known_and_the_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    for zipped in (True, False):
        for part in (0.0, 0.01, 0.5, 0.999):
            torch.save({"weight": torch.zeros(10_000)}, path, _use_new_zipfile_serialization=zipped)
            os.truncate(path, int(path.stat().st_size * part))
            for opened in (path, str(path), *([path.open("rb")] if part else [])):
                try:
                    torch.load(opened)
                except Exception as error:
                    report = user_script.error_report(error, user_script.cut(error, ()), "")
                else:
                    pytest.fail("a torn file was loaded")
                assert report["reading"] == str(path)
                line = f"{report['type']}: {report['message']}"
                assert known_errors.kind_of(line, report["type"], loads=True) is EndKind.DAMAGED_CHECKPOINT, line


@pytest.mark.skipif(torch.cuda.is_available(), reason="it is about machines without GPUs")
@pytest.mark.parametrize(
    "call",
    [lambda: torch.zeros(1).cuda(), lambda: torch.cuda.set_device(0), lambda: torch.zeros(1, device="cuda"),
     lambda: torch.cuda.synchronize(), lambda: torch.cuda.Event()],
)  # fmt: skip
def test_what_this_torch_says_without_a_gpu_is_known(call: Callable[[], object]) -> None:
    try:
        call()
    except Exception as error:
        assert known_errors.kind_of(f"{type(error).__name__}: {error}") is EndKind.NO_GPU
    else:
        pytest.skip("this torch raises no error here")


@pytest.mark.parametrize("size", [1, 1 << 20])
def test_what_this_torch_says_of_a_full_disk_is_known(size: int) -> None:
    try:
        torch.save({"weight": torch.zeros(size)}, "/dev/full")
    except (RuntimeError, OSError) as error:
        assert known_errors.kind_of(f"{type(error).__name__}: {error}") is EndKind.DISK_FULL
    else:
        pytest.skip("this torch raises no error here")


# -- what schedulers write into the output

NOTICES = [
    ("slurmstepd-node1: error: *** JOB 10 ON node1 CANCELLED AT 2026-11-21T21:09:41 DUE TO TIME LIMIT ***", "TIMEOUT"),
    ("slurmstepd: error: *** STEP 12.0 ON node1 CANCELLED AT 2026-11-21T21:10:05 DUE TO PREEMPTION ***", "PREEMPTED"),
    ("slurmstepd: error: *** JOB 8 ON node3 CANCELLED AT 2026-11-21T21:13:25 DUE TO NODE FAILURE, SEE SLURMCTLD LOG "
     "FOR DETAILS ***", "NODE_FAIL"),
    ("srun: error: Node failure on node4", "NODE_FAIL"),
    ("slurmstepd: error: *** JOB 8 ON node3 CANCELLED AT 2026-11-21T21:13:25 DUE TO JOB REQUEUE ***", "REQUEUED"),
    ("slurmstepd-node1: error: *** JOB 2 ON node1 CANCELLED AT 2026-11-22T10:17:26 ***", "CANCELLED"),
    ("slurmstepd: error: Detected 1 oom-kill event(s) in StepId=5.0. Some of your processes may have been killed by "
     "the cgroup out-of-memory handler.", "OUT_OF_MEMORY"),
    ("slurmstepd: error: Detected 2 oom_kill events in StepId=5.batch. Some of the step tasks have been OOM Killed.",
     "OUT_OF_MEMORY"),
    ("slurmstepd-node1: error: Exceeded job memory limit", "OUT_OF_MEMORY"),
    ("srun: error: node1: task 0: Out Of Memory", "OUT_OF_MEMORY"),
    # 26.05
    ("[2026-11-22T04:27:25.760] error: *** JOB 10 ON node1 CANCELLED AT 2026-11-22T04:27:25 DUE TO TIME LIMIT ***",
     "TIMEOUT"),
    ("[2026-11-22T04:27:25.760] error: *** STEP 12.0 ON node1 CANCELLED AT 2026-11-22T04:27:25 DUE TO PREEMPTION ***",
     "PREEMPTED"),
    ("[2026-11-22T04:27:25.760] error: *** JOB 8 ON node3 CANCELLED AT 2026-11-22T04:27:25 DUE TO NODE FAILURE, SEE "
     "SLURMCTLD LOG FOR DETAILS ***", "NODE_FAIL"),
    ("[2026-11-22T04:27:25.760] error: *** JOB 8 ON node3 CANCELLED AT 2026-11-22T04:27:25 DUE TO JOB REQUEUE ***",
     "REQUEUED"),
    ("[2026-11-22T04:27:25.760] error: *** JOB 2 ON node1 CANCELLED AT 2026-11-22T04:27:25 DUE to SIGNAL Terminated "
     "***", "CANCELLED"),
    ("[2026-11-22T04:27:25.760] error: Detected 1 oom_kill event in StepId=5.0. Some of the step tasks have been OOM "
     "Killed.", "OUT_OF_MEMORY"),
    # other values of LogTimeFormat
    ("[2026-11-22T04:27:25.760+01:00] error: *** JOB 10 ON node1 CANCELLED AT 2026-11-22T04:27:25 DUE TO TIME LIMIT "
     "***", "TIMEOUT"),
    ("[Nov 22 04:27:25] error: *** JOB 10 ON node1 CANCELLED AT 2026-11-22T04:27:25 DUE TO TIME LIMIT ***", "TIMEOUT"),
    ("=>> PBS: job killed: walltime 70 exceeded limit 60", "TIMEOUT"),
    ("=>> PBS: job killed: mem 2097152kb exceeded limit 1048576kb", "OUT_OF_MEMORY"),
    ("=>> PBS: job killed: vmem 2097152kb exceeded limit 1048576kb", "OUT_OF_MEMORY"),
    ("Cgroup mem limit exceeded: oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null)", "OUT_OF_MEMORY"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "word"), NOTICES)
def test_what_a_scheduler_wrote_is_read(line: str, word: str) -> None:
    (found,) = lines(line)
    assert (found.state, found.line) == (word, line)


@pytest.mark.parametrize(
    ("line", "used", "limit"),
    [
        ("slurmstepd-node1: error: StepId=5.0 exceeded memory limit (973406208 > 838860800), being killed",
         973406208, 838860800),
        ("[2026-11-22T04:27:25.760] error: StepId=5.0 exceeded memory limit (973406208 > 838860800), being killed",
         973406208, 838860800),
        ("=>> PBS: job killed: mem 2097152kb exceeded limit 1048576kb", 2 * GIB, GIB),
    ],
)  # fmt: skip
def test_how_much_memory_it_had_is_read(line: str, used: int, limit: int) -> None:
    (found,) = lines(line)
    assert (found.state, found.used, found.limit) == ("OUT_OF_MEMORY", used, limit)


@pytest.mark.parametrize(
    ("at", "told"),
    [("2026-11-21T21:09:41", time.mktime((2026, 11, 21, 21, 9, 41, 0, 0, -1))), ("21.11.", None)],
)
def test_when_slurm_ended_it_is_read(at: str, told: float | None) -> None:
    """SLURM_TIME_FORMAT may write another form."""
    (found,) = lines(f"slurmstepd-node1: error: *** JOB 2 ON node1 CANCELLED AT {at} ***")
    assert (found.state, found.time) == ("CANCELLED", told)


@pytest.mark.parametrize(
    ("scheduler", "known"),
    [("slurm", [True, False]), ("pbs", [False, True]), ("allocation", [True, True]), ("local", [False, False])],
)
def test_only_who_may_have_written_a_line_is_believed(scheduler: str, known: list[bool]) -> None:
    forms = diagnosis._forms(registry.scheduler(scheduler))
    told = (NOTICES[0][0], "=>> PBS: job killed: walltime 70 exceeded limit 60")
    assert [bool(pending.find([line], forms)) for line in told] == known
    (kernel,) = pending.find(["Memory cgroup out of memory: Killed process 7"], forms)
    assert kernel.state == "OUT_OF_MEMORY"


def test_a_queue_that_writes_no_notices_has_none_of_others() -> None:
    assert diagnosis._forms(ThirdScheduler()) == []


@pytest.mark.parametrize(
    "printed",
    ["[0] epoch 3 was CANCELLED AT 12:00 DUE TO PREEMPTION of the cat", "all out of memory jokes", "srun: got SIGCONT",
     "srun: error: node1: task 0: Exited with exit code 143",
     "[2026-11-22T04:27:25.760] error: out of patience", "[rank 0] error: the memory limit is DUE TO PREEMPTION"],
)  # fmt: skip
def test_what_a_program_prints_is_no_notice(printed: str) -> None:
    assert lines(printed) == ()


BY_SRUN = [  # with --kill-on-bad-exit, after a task has failed: 22.05, 26.05
    "slurmstepd-node1: error: *** STEP 4.0 ON node1 CANCELLED AT 2026-11-22T10:17:02 ***",
    "[2026-11-22T04:27:25.760] error: *** STEP 4.0 ON node1 CANCELLED AT 2026-11-22T04:27:25 DUE TO TASK FAILURE ***",
]


@pytest.mark.parametrize("line", BY_SRUN)
def test_a_step_that_srun_ends_is_no_cancellation(line: str) -> None:
    assert lines(line) == ()


# -- the verdict

KILLED, ABORTED = signalled("SIGKILL"), signalled("SIGABRT")
ASKED = fault(FaultCode.STOPPED_EARLY, signal="SIGTERM")
GONE = fault(FaultCode.NODE_ENDED, signal="SIGTERM", accused=(Accused("node2"),))
LEFT, CRASHED = exited(3), signalled("SIGSEGV")
SAY = "SAY"  # the text of the event itself
BY_TIME, BY_PREEMPTION, BY_NODE, BY_REQUEUE, BY_SOMEBODY, BY_OOM = (NOTICES[at][0] for at in (0, 1, 2, 4, 5, 6))


@pytest.mark.parametrize(
    ("evidence", "kind", "cause"),
    [
        # killed without a word
        (failed(KILLED), EndKind.KILLED, SAY),
        (failed(KILLED, job=said("OUT_OF_MEMORY")), EndKind.OUT_OF_MEMORY, f"{SAY}; Slurm says OUT_OF_MEMORY"),
        (failed(KILLED, job=said("FAILED", "NonZeroExitCode"), notices=lines(BY_OOM)), EndKind.OUT_OF_MEMORY,
         f"{SAY}; Slurm says OUT_OF_MEMORY"),
        (failed(KILLED, memory={"kills": 1}), EndKind.OUT_OF_MEMORY,
         f"{SAY}; the kernel killed processes for lack of memory in its cgroup"),
        (failed(KILLED, memory={"host_kills": 1}), EndKind.OUT_OF_MEMORY,
         f"{SAY}; the kernel killed processes for lack of memory on that host"),
        (failed(KILLED, memory={"largest": 15 * GIB, "limit": 16 * GIB}), EndKind.OUT_OF_MEMORY,
         f"{SAY}; it used 15G of 16G memory"),
        (failed(KILLED, memory={"largest": 5 * GIB, "limit": 16 * GIB}), EndKind.KILLED, SAY),
        (failed(CRASHED, memory={"kills": 1}), EndKind.KILLED, None),
        (failed(signalled("SIGBUS")), EndKind.SHARED_MEMORY, None),
        (failed(ABORTED, log=("loading", NCCL_TIMEOUT)), EndKind.COLLECTIVE_TIMEOUT, None),
        (failed(ABORTED, log=("terminate called", "what(): std::bad_alloc")), EndKind.OUT_OF_MEMORY, None),
        (failed(ABORTED), EndKind.KILLED, None),
        # left
        (failed(exited(7)), EndKind.EXITED, None),
        (failed(exited(0, FaultCode.RETURNED_EARLY)), EndKind.EXITED_EARLY, None),
        (failed(exited(0, FaultCode.RETURNED_EARLY), log=("Traceback (most recent call last):", "  x", "E: no")),
         EndKind.EXCEPTION, f"{SAY}: E: no"),
        (failed(exited(93, FaultCode.NO_RETRY), ended=93), EndKind.CONFIG_ERROR, None),
        (failed(exited(1), log=("OSError: [Errno 28] No space left on device",)), EndKind.DISK_FULL, None),
        (failed(exited(1), log=("a", "Traceback (most recent call last):", "  x", "E: no")), EndKind.EXCEPTION,
         f"{SAY}: E: no"),
        (failed(fault(FaultCode.EXITED, rank=1, exit_code=1, error="E: no"),
                log=("Traceback (most recent call last):", "E: no")), EndKind.EXCEPTION, SAY),
        (failed(fault(FaultCode.EXITED, rank=1, exit_code=3, error="no licence")), EndKind.EXITED,
         "rank 1 on node1: exited with code 3: no licence"),
        (failed(fault(FaultCode.USAGE, rank=1, exit_code=2, error="train.py: error: unrecognized arguments: --foo")),
         EndKind.CONFIG_ERROR, "rank 1 on node1: train.py: error: unrecognized arguments: --foo"),
        (failed(fault(FaultCode.USAGE, rank=1, exit_code=2, error="error: [Errno 2] No such file or directory: 'y'")),
         EndKind.FILE_MISSING, SAY),
        (failed(raised("sys.exit('no licence')", exception="SystemExit")), EndKind.EXITED, SAY),
        # asked to stop
        (failed(ASKED, job=said("TIMEOUT")), EndKind.WALL_TIME, f"{SAY}; Slurm says TIMEOUT"),
        (failed(ASKED, job=said("TIMEOUT", "TimeLimit")), EndKind.WALL_TIME, f"{SAY}; Slurm says TIMEOUT"),
        (failed(ASKED, notices=lines(BY_TIME)), EndKind.WALL_TIME, f"{SAY}; Slurm says TIMEOUT"),
        (failed(ASKED, scheduler="PBS", job=said("TIMEOUT", "Job run at ... exceeded resource walltime")),
         EndKind.WALL_TIME,
         f"{SAY}; PBS says TIMEOUT"),
        (failed(ASKED, job=said("PREEMPTED")), EndKind.PREEMPTED, f"{SAY}; Slurm says PREEMPTED"),
        (failed(ASKED, notices=lines(BY_PREEMPTION)), EndKind.PREEMPTED, f"{SAY}; Slurm says PREEMPTED"),
        (failed(ASKED, notices=lines(BY_REQUEUE)), EndKind.REQUEUED, f"{SAY}; Slurm says REQUEUED"),
        (failed(ASKED, notices=lines(BY_SOMEBODY)), EndKind.CANCELLED, SAY),
        (failed(ASKED, job=said("CANCELLED")), EndKind.CANCELLED, SAY),
        (failed(ASKED, state=RunState.CANCELLED, cancelled=True), EndKind.CANCELLED, "it was cancelled"),
        (failed(GONE, state=RunState.CANCELLED, cancelled=True, job=said("CANCELLED")), EndKind.CANCELLED,
         "it was cancelled"),
        (failed(ASKED), EndKind.STOPPED, SAY),
        # the first failure counts, and not what was ended for it
        *((failed(told, notices=lines(line), job=said(state)), kind, SAY)
          for told, kind in ((LEFT, EndKind.EXITED), (CRASHED, EndKind.KILLED))
          for line, state in ((BY_SRUN[0], ""), (BY_SRUN[1], ""), (BY_SOMEBODY, ""), (BY_SOMEBODY, "CANCELLED"))),
        (failed(KILLED, notices=lines(BY_SOMEBODY)), EndKind.CANCELLED, SAY),
        (failed(exited(143), notices=lines(BY_SOMEBODY)), EndKind.CANCELLED, None),
        (failed(LEFT, notices=lines(BY_OOM)), EndKind.OUT_OF_MEMORY, None),
        # nodes and connections
        (failed(GONE), EndKind.NODE_LOST, SAY),
        (failed(GONE, job=said("NODE_FAIL")), EndKind.NODE_LOST, f"{SAY}; Slurm says NODE_FAIL"),
        (failed(GONE, notices=lines(BY_OOM)), EndKind.OUT_OF_MEMORY, None),
        (failed(GONE, notices=lines(BY_NODE)), EndKind.NODE_LOST, f"{SAY}; Slurm says NODE_FAIL"),
        (failed(fault(FaultCode.NODE_SILENT)), EndKind.NODE_LOST, None),
        (failed(fault(FaultCode.LEADER_LOST, error="Connection reset by peer")), EndKind.NODE_LOST, None),
        (Evidence(RunState.STOPPED, ended=75, fault=fault(FaultCode.NODE_SILENT)), EndKind.NODE_LOST, SAY),
        (failed(raised("RuntimeError: Connection closed by peer")), EndKind.CONNECTION_LOST, None),
        (failed(raised("RuntimeError: Connection closed by peer"), notices=lines(BY_NODE)), EndKind.NODE_LOST, None),
        (failed(raised("URLError: <urlopen error [Errno 111] Connection refused>"), notices=lines(BY_NODE)),
         EndKind.EXCEPTION, None),
        (failed(fault(FaultCode.LOST_PEER, rank=0, error="RuntimeError: Connection reset by peer")),
         EndKind.CONNECTION_LOST, None),
        (failed(fault(FaultCode.LOST_PEER, rank=0, error="DistBackendError: of an unknown sort")),
         EndKind.CONNECTION_LOST, None),
        # what agents know
        (failed(fault(FaultCode.RENDEZVOUS_TIMEOUT)), EndKind.RENDEZVOUS_TIMEOUT, None),
        (failed(fault(FaultCode.REFUSED)), EndKind.CONFIG_ERROR, None),
        (failed(fault(FaultCode.NOT_JOINED)), EndKind.RENDEZVOUS_TIMEOUT, None),
        (failed(fault(FaultCode.HANG, rank=1, limit="launch.hang_timeout")), EndKind.HANG, None),
        (failed(fault(FaultCode.PREFLIGHT)), EndKind.BAD_NODE, None),
        (failed(fault(FaultCode.STILL_THERE, signal="SIGKILL")), EndKind.BAD_NODE, None),
        (failed(fault(FaultCode.CONDITION_FAILED)), EndKind.NEVER_STARTED, None),
        (
            failed(fault(FaultCode.NOT_STARTED, error="[Errno 11] Resource temporarily unavailable")), EndKind.LIMIT,
            None,
        ),
        (failed(fault(FaultCode.CONTAINER, error="apptainer starts no python3 in /x.sif: FATAL:   no such file")),
         EndKind.CONFIG_ERROR, None),
        (failed(fault(FaultCode.ARCHIVE, error="/x.tar cannot be unpacked: [Errno 28] No space left on device")),
         EndKind.DISK_FULL, None),
        (failed(fault(FaultCode.UNREADABLE, error="another version")), EndKind.CONFIG_ERROR, None),
        (failed(fault(FaultCode.ARCHIVE, error="/x.tar: [Errno 116] Stale file handle", ends_with=75)),
         EndKind.STOPPED, None),
        (failed(fault(FaultCode.NO_FOLDER, ends_with=75)), EndKind.STOPPED, None),
        (failed(fault(FaultCode.UNKNOWN)), EndKind.EXCEPTION, None),
        # an exception stays one, whatever the scheduler says later
        (failed(raised("ValueError: no"), notices=lines(BY_OOM)), EndKind.EXCEPTION, SAY),
        (failed(raised("MemoryError")), EndKind.OUT_OF_MEMORY, SAY),
        (failed(raised("RuntimeError: a subprocess exited with code 3")), EndKind.EXCEPTION, None),
        # nobody said anything
        (failed(ended=137, job=said("OUT_OF_MEMORY")), EndKind.OUT_OF_MEMORY,
         "no rank reported a cause (exit code 137); Slurm says OUT_OF_MEMORY"),
        (failed(ended=None, job=said("TIMEOUT", "TimeLimit"), output=("srun: forcing job termination",)),
         EndKind.WALL_TIME,
         "no rank reported a cause; Slurm says TIMEOUT"),
        (
            failed(ended=None, job=said("NODE_FAIL")), EndKind.NODE_LOST,
            "no rank reported a cause; Slurm says NODE_FAIL",
        ),
        (failed(ended=137), EndKind.KILLED, "no rank reported a cause (exit code 137)"),
        (failed(ended=1, output=("/usr/bin/python3: No module named launcher.agent", "", "ImportError: no torch", "x")),
         EndKind.IMPORT_ERROR, "no rank reported a cause (exit code 1); its last line: ImportError: no torch"),
        (failed(ended=93, output=("the end",)), EndKind.CONFIG_ERROR, None),
        (failed(ended=3, output=("bash: line 4: oh", " ")), EndKind.UNKNOWN,
         "no rank reported a cause (exit code 3); its last line: bash: line 4: oh"),
        (failed(begun=False, ended=None, job=said("FAILED", "RaisedSignal:53(Real-time_signal_19)")),
         EndKind.NEVER_STARTED,
         "no rank reported a cause; FAILED (RaisedSignal:53(Real-time_signal_19))"),
        (failed(ended=None, scheduler="PBS", job=said("FAILED", "in words", signal=9)), EndKind.KILLED,
         "no rank reported a cause; FAILED (in words)"),
        (failed(ended=None, scheduler="PBS", job=said("FAILED", "a comment: killed by SIGKILL")),
         EndKind.UNKNOWN, None),
        (Evidence(RunState.STOPPED, ended=75), EndKind.STOPPED, None),
        (Evidence(RunState.STOPPED, ended=75, preempted=True, stop=Stop(reason=StopReason.SIGNAL, host="n1", step=7)),
         EndKind.PREEMPTED, f"{SAY} at step 7"),
        (Evidence(RunState.LOST), EndKind.LOST, None),
        (Evidence(RunState.LOST, output=("a step",)), EndKind.LOST, None),
        # A prologue of PBS that fails, without job history
        (
            Evidence(RunState.LOST, begun=False, output=("no scratch", "Could not run prolog: exit: 1", "")),
            EndKind.NEVER_STARTED, "its last line: Could not run prolog: exit: 1",
        ),
        (
            Evidence(RunState.LOST, scheduler="Slurm", notices=lines(BY_REQUEUE)), EndKind.REQUEUED,
            "Slurm says REQUEUED",
        ),
        (failed(ended=143, notices=lines(BY_REQUEUE), output=(BY_REQUEUE,)), EndKind.REQUEUED,
         "no rank reported a cause (exit code 143); Slurm says REQUEUED"),
        (Evidence(RunState.LOST, scheduler="Slurm", notices=lines(BY_PREEMPTION)), EndKind.PREEMPTED,
         "Slurm says PREEMPTED"),
        (Evidence(RunState.CANCELLED, begun=False, cancelled=True), EndKind.CANCELLED,
         "it was cancelled before it started"),
        (Evidence(RunState.CANCELLED, begun=False, cancelled=True, job=said("CANCELLED", "Dependency")),
         EndKind.CANCELLED,
         "it was cancelled before it started"),
        (Evidence(RunState.CANCELLED, cancelled=True, job=said("CANCELLED"),
                  stop=Stop(reason=StopReason.SIGNAL, step=21)),
         EndKind.CANCELLED, "it was cancelled at step 21"),
        (Evidence(RunState.CANCELLED, cancelled=True, scheduler="Slurm", job=said("TIMEOUT")), EndKind.CANCELLED,
         "Slurm says TIMEOUT"),
        (Evidence(RunState.CANCELLED, job=said("CANCELLED")), EndKind.CANCELLED, "CANCELLED"),
        (Evidence(RunState.CANCELLED, scheduler="Slurm", job=said("CANCELLED"), notices=lines(BY_OOM)),
         EndKind.OUT_OF_MEMORY,
         "Slurm says OUT_OF_MEMORY"),
        (Evidence(RunState.DONE, ended=0), EndKind.DONE, None),
    ],
)  # fmt: skip
def test_the_verdict(evidence: Evidence, kind: EndKind, cause: str | None) -> None:
    verdict = classify(evidence)
    assert verdict.kind is kind
    if cause is not None:
        said = messages.of_fault(evidence.fault) if isinstance(evidence.fault, Fault) else ""
        said = said or (messages.of_stop(evidence.stop) if evidence.stop else "")
        assert verdict.cause == cause.replace(SAY, said)


def stays(reason: NextReason, what: str = "stays", **more: Any) -> Stays:
    return Stays(what=what, reason=reason, **more)


STAYS_STOPPED = f"{SAY} at step 120; "


@pytest.mark.parametrize(
    ("reason", "stays", "more", "kind", "cause"),
    [
        (
            StopReason.TIME_LIMIT,
            stays(NextReason.RESUME_NEVER),
            {},
            EndKind.WALL_TIME,
            f"{STAYS_STOPPED}resume.how=never",
        ),
        (StopReason.WARNING_SIGNAL, None, {}, EndKind.WALL_TIME, f"{SAY} at step 120"),
        (StopReason.STOP_FILE, stays(NextReason.CANCELLED), {}, EndKind.STOPPED, f"{STAYS_STOPPED}it was cancelled"),
        (
            StopReason.SIGNAL,
            stays(NextReason.SCHEDULER_ENDS, scheduler="Slurm", state="PREEMPTED"),
            {},
            EndKind.PREEMPTED,
            f"{STAYS_STOPPED}Slurm ends its job (PREEMPTED)",
        ),
        (
            StopReason.SIGNAL,
            stays(NextReason.PREEMPTED, scheduler="Slurm", state="COMPLETING"),
            {},
            EndKind.PREEMPTED,
            f"{STAYS_STOPPED}Slurm has preempted its job, and starts it again unless the site cancels such jobs",
        ),
        (StopReason.SIGNAL, stays(NextReason.SCHEDULER_ENDS, state="COMPLETING"), {}, EndKind.STOPPED, None),
        (StopReason.SIGNAL, stays(NextReason.CANCELLED), {"cancelled": True}, EndKind.CANCELLED, None),
        (StopReason.SIGNAL, None, {"notices": lines(BY_PREEMPTION)}, EndKind.PREEMPTED, None),
        (StopReason.KILLED, None, {}, EndKind.KILLED, None),
        (StopReason.EXIT_75, None, {}, EndKind.STOPPED, None),
        (StopReason.UNREADABLE, None, {}, EndKind.STOPPED, None),
        (StopReason.UNKNOWN, None, {}, EndKind.STOPPED, None),
    ],
)
def test_an_attempt_that_stopped(
    reason: StopReason, stays: Stays | None, more: dict[str, Any], kind: EndKind, cause: str | None
) -> None:
    stop = Stop(reason=reason, step=120)
    verdict = classify(Evidence(RunState.STOPPED, ended=75, scheduler="Slurm", stop=stop, stays=stays, **more))
    assert verdict.kind is kind
    if cause is not None:
        assert verdict.cause == cause.replace(SAY, messages.of_stop(stop))


def test_a_reason_is_not_told_twice() -> None:
    stop = Stop(reason=StopReason.STOP_FILE)
    again = Stays(what="stays", reason=NextReason.STOP_FILE)
    assert classify(Evidence(RunState.STOPPED, stop=stop, stays=again)).cause == messages.of_stop(stop)


@pytest.mark.parametrize("reason", [NextReason.NO_PROGRESS, NextReason.MAX_ATTEMPTS])
def test_a_run_that_was_given_up(reason: NextReason) -> None:
    event = stays(reason, "given_up", attempts=3, step=7)
    verdict = classify(Evidence(RunState.FAILED, ended=93, stays=event))
    assert verdict == Verdict(EndKind.NO_PROGRESS, messages.of_next(event))


def test_a_set_up_line_that_failed() -> None:
    told = SetupFailed(line=2, host="node1", message="set-up line 2 of cluster=mine failed", code=1)
    verdict = classify(Evidence(RunState.FAILED, fault=told, setup="module load cuda"))
    assert verdict == Verdict(EndKind.SETUP_FAILED, "set-up line 2 of cluster=mine failed on node1: module load cuda")


@pytest.mark.parametrize(
    ("line", "message", "setup"),
    [
        (1, "it failed", "module load cuda"),
        (2, "activating /env (env.activate) failed", ""),
        (2, "a set-up line failed", "activating /env (env.activate)"),
        (3, "it failed", ". /opt/env.sh"),
        (4, "it failed", "?"),
    ],
)
def test_a_set_up_line_is_shown_unless_the_event_says_what_it_does(line: int, message: str, setup: str) -> None:
    env = Env(activate="/env", setup=[". /opt/env.sh"])
    plan = plan_of(cluster={"setup": ["module load cuda"]}, env=env)
    event = {"event": "setup_failed", "line": line, "host": "node1", "message": message, "code": 1}
    found = diagnosis._from_events(plan, [event], Evidence(RunState.FAILED))
    assert found.setup == setup
    assert classify(found).cause == f"{message} on node1" + (f": {setup}" if setup else "")


def test_the_line_that_told_it_is_kept() -> None:
    verdict = classify(failed(ABORTED, log=("a", NCCL_TIMEOUT, "b")))
    assert verdict.sign == NCCL_TIMEOUT


# -- what to do


def steps(kind: EndKind, cause: str = "", **more: Any) -> str:
    plan = more.pop("plan", None) or plan_of()
    found = advice(Case("run-1", "python -m launcher", plan, Verdict(kind, cause), **more))
    return "\n".join(f"{step.words}|{step.command}" for step in found)


@pytest.mark.parametrize("kind", EndKind)
def test_every_kind_has_words_and_something_to_do(kind: EndKind) -> None:
    assert kind.label
    assert bool(steps(kind)) is (kind is not EndKind.DONE)


@pytest.mark.parametrize(
    ("kind", "own", "offered"),
    [
        (EndKind.CONFIG_ERROR, "Program", "python -m launcher resume run-1 -- ARGUMENT ..."),
        (EndKind.FILE_MISSING, "Program", "python -m launcher resume run-1 -- ARGUMENT ..."),  # that it has got as one
        (EndKind.CONFIG_ERROR, "Function", "python -m launcher resume run-1 KEY=VALUE"),
    ],
)
def test_arguments_that_a_program_has_refused_are_not_offered_again(kind: EndKind, own: str, offered: str) -> None:
    plan = with_fields(plan_of(), workload={"kind": own})
    told = steps(kind, plan=plan, fault=fault(FaultCode.USAGE, rank=0, exit_code=2, error="no"))
    assert [line.partition("|")[2] for line in told.splitlines() if "resume" in line] == [offered]


@pytest.mark.parametrize(("own", "told"), [("DDPMnist", True), ("Program", False), ("Function", False)])
def test_the_launchers_data_sets_are_offered_to_its_own_workloads(own: str, told: bool) -> None:
    plan = with_fields(plan_of(), workload={"kind": own})
    assert ("|python -m launcher data" in steps(EndKind.FILE_MISSING, plan=plan)) is told


def test_more_memory_is_named_with_what_was_used() -> None:
    told = steps(EndKind.OUT_OF_MEMORY, memory={"used": int(15.8 * GIB), "limit": 16 * GIB})
    assert "ask for more memory (it used 15.8G of 16G)|python -m launcher resume run-1 mem=32G" in told
    assert "mem=MORE" in steps(EndKind.OUT_OF_MEMORY)
    assert "(its limit is 16G)|python -m launcher resume run-1 mem=32G" in steps(
        EndKind.KILLED, fault=KILLED, memory={"limit": 16 * GIB}
    )
    assert "mem=" not in steps(EndKind.KILLED, fault=KILLED, memory={"largest": GIB})
    assert "mem=" not in steps(EndKind.KILLED, fault=CRASHED, memory={"limit": 16 * GIB})
    local = steps(EndKind.OUT_OF_MEMORY, plan=plan_of(cluster={"scheduler": "local"}), memory={"largest": GIB})
    assert "mem=" not in local


def test_other_advice_has_commands_that_can_be_copied() -> None:
    assert "resume run-1 time=02:00:00" in steps(EndKind.WALL_TIME)
    assert steps(EndKind.WALL_TIME, saved=True).startswith(
        "continue from the last checkpoint|python -m launcher resume run-1\n"
    )
    assert "cluster.exclude=node2" in steps(EndKind.NODE_LOST, host="node2")
    excluding = plan_of(cluster={"exclude": "node7"})
    assert "\"cluster.exclude='node7,node2'\"" in steps(EndKind.NODE_LOST, host="node2", plan=excluding)
    assert "exclude" not in steps(EndKind.NODE_LOST, host="n2", plan=plan_of(cluster={"scheduler": "pbs"}))
    broken = raised("RuntimeError: CUDA error: uncorrectable ECC error")
    assert "report it to the site" in steps(EndKind.GPU_ERROR, fault=broken)
    assert "CUDA_LAUNCH_BLOCKING" in steps(EndKind.GPU_ERROR, fault=raised("CUDA error: device-side assert triggered"))
    assert "CUDA_LAUNCH_BLOCKING" in steps(EndKind.GPU_ERROR, "our own words on Xid 79")
    assert "could not be opened" in steps(EndKind.NEVER_STARTED, signal=53)
    assert "could not be opened" not in steps(EndKind.NEVER_STARTED, signal=9)
    assert "could not be opened" not in steps(
        EndKind.NEVER_STARTED, signal=53, plan=plan_of(cluster={"scheduler": "pbs"})
    )
    unmet = steps(EndKind.NEVER_STARTED, fault=fault(FaultCode.CONDITION_FAILED))
    assert unmet.endswith("|python -m launcher resume run-1 after=null")
    assert "signal 9" in steps(EndKind.EXITED, fault=exited(137))


# -- tracebacks and stacks


@pytest.mark.parametrize(
    ("env", "asked"),
    [
        ({}, "is it installed for the job's Python? /usr/bin/python3 -c 'import ...'"),
        ({"activate": "/env"}, "is it installed for the job's Python? /env/bin/python -c 'import ...'"),
        (
            {"container": "/t.sif", "python": "py"},
            "is it installed in /t.sif (env.container)? py -c 'import ...' inside",
        ),
        ({"archive": "/e.tar"}, "is it installed in the environment that /e.tar (env.archive) contains?"),
    ],
)
def test_a_missing_package_is_looked_for_where_the_ranks_ran(env: dict[str, Any], asked: str) -> None:
    case = Case("run-1", "python -m launcher", plan_of(env=Env(**env)), Verdict(EndKind.IMPORT_ERROR, "no"))
    assert advice(case)[0].words == asked


# -- the memory of a node


@pytest.mark.parametrize(
    ("kind", "file", "age", "saved"),
    [
        ("Program", "checkpoints/state.pt", 0, True),
        ("Function", "here/state.pt", 0, True),
        ("Program", "here/state.pt", 3600, False),  # another run's
        ("Program", "here/train.py", 0, False),
        ("DDPMnist", "here/state.pt", 0, False),
        ("DDPMnist", "checkpoints/step-000000010/manifest.json", 0, False),  # it is not whole
    ],
)
def test_what_the_users_own_code_has_saved_counts(tmp_path: Path, kind: str, file: str, age: int, saved: bool) -> None:
    plan = bare_plan(
        workdir=f"{tmp_path}/here", checkpoint={"dir": f"{tmp_path}/checkpoints"}, workload={"kind": kind, "params": {}}
    )
    for folder in ("here", "checkpoints"):
        (tmp_path / folder).mkdir()
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.write_text("{}")
    os.utime(path, (1e9 - age, 1e9 - age))
    assert has_saved(plan, Started(time=1e9 - 60, job="1")) is saved


def test_memory_of_a_cgroup_is_read(tmp_path: Path) -> None:
    from launcher.agent import rank_watch

    def write(path: str, text: str) -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    write("proc/vmstat", "nr_free_pages 1\noom_kill 3\n")
    write("proc/self/cgroup", "0::/slurm/job_5/step_0\n")
    write("sys/fs/cgroup/slurm/job_5/step_0/memory.max", "max\n")
    write("sys/fs/cgroup/slurm/job_5/step_0/memory.events", "low 0\noom 1\noom_kill 1\n")
    write("sys/fs/cgroup/slurm/job_5/memory.max", f"{GIB}\n")
    write("sys/fs/cgroup/slurm/job_5/memory.peak", "1000\n")
    watch = rank_watch.MemoryWatch(tmp_path)
    assert {name: value for name, value in watch.read().items() if name != "largest"} == {"limit": GIB, "peak": 1000}
    write("sys/fs/cgroup/slurm/job_5/step_0/memory.events", "low 0\noom 2\noom_kill 2\n")
    write("proc/vmstat", "oom_kill 4\n")
    told = watch.read()
    assert (told["kills"], told["host_kills"]) == (1, 1)

    write("proc/self/cgroup", "4:cpu:/x\n3:memory:/slurm/job_6\n0::/\n")
    write("sys/fs/cgroup/memory/slurm/job_6/memory.limit_in_bytes", f"{2 * GIB}\n")
    write("sys/fs/cgroup/memory/slurm/job_6/memory.max_usage_in_bytes", "7\n")
    write("sys/fs/cgroup/memory/slurm/job_6/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n")
    assert hardware.memory_cgroup(tmp_path) == hardware.MemoryCgroup(2 * GIB, 7, 5)
    assert hardware.memory_cgroup(tmp_path / "nothing").limit is None


# -- the docs


def test_the_docs_have_a_line_for_every_kind() -> None:
    page = (Path(__file__).parents[3] / "docs" / "operating.md").read_text()
    assert [kind for kind in EndKind if f"| `{kind.value}` |" not in page] == []


@pytest.mark.parametrize("code", [*FaultCode, *StopReason, *NextReason])
def test_the_docs_have_every_code(code: FaultCode | StopReason | NextReason) -> None:
    page = (Path(__file__).parents[3] / "docs" / "operating.md").read_text()
    assert f"`{code.value}`" in page


def test_a_point_in_a_pilot_is_started_again_by_its_sweep() -> None:
    verdict = Verdict(EndKind.WALL_TIME, "it is out of time")
    steps = advice(Case("lr/1", "launcher", plan_of(), verdict, saved=True, rerun="sweep rerun lr 1"))
    found = [getattr(step, "command", "") for step in steps]
    assert found == ["launcher sweep rerun lr 1", ""]
