"""Each observation of a preflight has a text, with what to do if something is wrong."""

from __future__ import annotations

import pytest

from launcher.failures.codes import CheckCode, MismatchCode
from launcher.failures.text import of_observation
from launcher.runs.events import Fabric, Mismatch, Observation

IB = Fabric("2.19.3", "IB", devices=("mlx5_0",))
TEXTS = [
    (Observation(code=CheckCode.COMPUTES, device="NVIDIA H100"), "NVIDIA H100"),
    (Observation(code=CheckCode.NETWORK, network=IB), "NCCL 2.19.3 uses IB (mlx5_0)"),
    (Observation(code=CheckCode.NETWORK), "NCCL wrote no log"),
    (Observation(code=CheckCode.SPACE, path="/runs", free=5000 << 20), "/runs has 5,000 MiB free"),
    (Observation(code=CheckCode.FILES_SEEN, count=1), "1 file of other nodes seen"),
    (Observation(code=CheckCode.FILE_WRITTEN, path="/runs/x"), "/runs/x written"),
    (Observation(code=CheckCode.CLOCK, ahead=-0.5, accuracy=0.01),
     "its clock is 0.500 s behind the first node's (± 0.010 s)"),
    (Observation(code=CheckCode.REDUCED, count=4, total=1 << 18, seconds=0.0012), "256 KiB over 4 ranks in 1.20 ms"),
    (Observation(code=CheckCode.REACHED, count=3), "3 other nodes reached"),
    (Observation(code=CheckCode.FEW_GPUS, count=7, of=8),
     "torch sees 7 GPUs, and gpus_per_node=8 asks for 8: see what `nvidia-smi` (`rocm-smi`, `xpu-smi`) says there"),
    (Observation(code=CheckCode.FEW_GPUS), "torch sees 0 GPUs, and gpus_per_node=0 asks for 1: see what"),
    (Observation(code=CheckCode.COMPUTES_WRONG, device="cuda:1", count=2, of=9),
     "cuda:1 computes wrong: 2 of 9 elements of a product of matrices; replace it"),
    (Observation(code=CheckCode.GPU_IN_USE, device="cuda:1", used=3 << 30, total=80 << 30),
     "3.0 of 80 GiB of the memory of cuda:1 are in use: does a process of another job live?"),
    (Observation(code=CheckCode.OTHER_NETWORK, mismatch=Mismatch(MismatchCode.CHOSEN, IB, "net", ("OFI", "AWS"))),
     "NCCL 2.19.3 uses IB (mlx5_0), and this cluster expects net OFI or AWS (cluster.expects): set NCCL_NET in"),
    (Observation(code=CheckCode.LITTLE_SPACE, path="/tmp", key="TMPDIR", free=1 << 20, least=16 << 20),
     "/tmp has 1 MiB free, less than 16M: free some, or set TMPDIR to another file system"),
    (Observation(code=CheckCode.LITTLE_SPACE, path="/tmp", key="TMPDIR", free=1 << 20),
     "/tmp has 1 MiB free: free some, or set TMPDIR to another file system"),
    (Observation(code=CheckCode.FEW_FILES, path="/runs", key="runs_dir", count=3),
     "/runs takes 3 more files: remove some, or set runs_dir to another file system"),
    (Observation(code=CheckCode.NO_DIRECTORY, path="/runs", key="runs_dir"), "/runs is no folder: set runs_dir to one"),
    (Observation(code=CheckCode.NO_TMPDIR, path="/x"),
     "TMPDIR=/x is not there: make it in cluster.setup, or set it in cluster.environment"),
    (Observation(code=CheckCode.FULL, path="/runs", key="runs_dir", error="No space left on device"),
     "/runs cannot be written to (its file system is full): set runs_dir to a folder that can"),
    (Observation(code=CheckCode.NOT_WRITABLE, path="/runs", key="runs_dir", error="Permission denied"),
     "/runs cannot be written to (Permission denied): set runs_dir to a folder that can"),
    (Observation(code=CheckCode.OTHER_OWNER, path="/runs/x", owner=65534, user=1000),
     "/runs/x belongs to user 65534 and was made by 1000: ids are mapped there; set runs_dir elsewhere"),
    (Observation(code=CheckCode.OTHER_MODE, path="/runs/x", mode=0o666),
     "/runs/x has mode 666 and was made with 600: set runs_dir to another file system"),
    (Observation(code=CheckCode.NOT_SHARED, path="/runs/x", seconds=10),
     "/runs/x does not show what other nodes write within 10 s: is it on a file system that all nodes share? Set"),
    (Observation(code=CheckCode.CLOCK_OFF, ahead=9, accuracy=0.1),
     "its clock is 9.000 s ahead of the first node's (± 0.100 s): have the nodes' clocks synchronised; times in its"),
    (Observation(code=CheckCode.CLOCK_UNKNOWN, seconds=5),
     "not compared with the others, which did not respond in 5 s"),
    (Observation(code=CheckCode.WRONG_ELEMENTS, count=2, of=65536, ranks=(3, 5)),
     "an all_reduce of 65536 elements came out wrong in 2 of them (from rank 3, 5): test its network card and memory"),
    (Observation(code=CheckCode.NOT_REACHED, host="a", hosts=("b", "c"), address="10.0.0.2 5", error="refused"),
     "from a b and 1 more cannot be reached (refused) at 10.0.0.2 5: is there a firewall between the nodes, or the"),
    (Observation(code=CheckCode.NOT_REACHED, host="a", hosts=("b",)),
     "from a b cannot be reached (it has opened no port): is there a firewall between the nodes, or the wrong"),
    (Observation(code=CheckCode.ERROR, error="CUDA error: ECC error"), "CUDA error: ECC error"),
    (Observation(code=CheckCode.PROCESS_ENDED, local_rank=2, signal="SIGKILL"),
     "the process that checks the device of local rank 2 was killed by SIGKILL"),
    (Observation(code=CheckCode.RANK_ENDED, local_rank=2, exit_code=1),
     "local rank 2 ended with exit code 1 in an all_reduce"),
    (Observation(code=CheckCode.SILENT, seconds=40),
     "reported nothing within 40 s: does a device or a file system hang there?"),
    (Observation(code=CheckCode.LEADER_LOST, error="it closed the connection"),
     "it leads the agents, and does not respond: it closed the connection"),
    (Observation(code=CheckCode.UNKNOWN), "a problem that this version of the launcher does not know"),
]  # fmt: skip


@pytest.mark.parametrize(("found", "begins"), TEXTS, ids=lambda value: getattr(value, "code", ""))
def test_an_observation_has_a_text(found: Observation, begins: str) -> None:
    assert of_observation(found).startswith(begins)


def test_every_code_has_a_text() -> None:
    assert {found.code for found, _ in TEXTS} == set(CheckCode)
