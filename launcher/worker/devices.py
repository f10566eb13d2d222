"""The device of a rank (GPU or CPU), its accelerator's calls, its threads, and the network that NCCL uses."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from launcher import errors
from launcher.binding import hardware, masks
from launcher.config.schema import Device, VisibleDevices
from launcher.fast_dataclasses import Struct
from launcher.plan.plan import JobPlan

OWN_CORES = "LAUNCHER_CORES"  # variable: number of cores the agent has bound this rank to; unset if it is not bound


def cores(environ: Mapping[str, str], local_world_size: int) -> int:
    """Returns the number of cores that a rank is bound to or, if not bound, its share of the node's CPUs (>= 1)."""
    own = environ.get(OWN_CORES, "")
    return int(own) if own.isdecimal() and int(own) else max(1, len(os.sched_getaffinity(0)) // local_world_size)


def limit_threads(environ: Mapping[str, str]) -> None:
    """Lowers torch's threads, which a forked rank inherits from its agent, to the cores that this rank is bound to."""
    if OWN_CORES in environ:
        torch.set_num_threads(min(torch.get_num_threads(), cores(environ, 1)))


# -- The same calls for every type of device: CUDA, ROCm (which torch calls cuda too), XPU, and the CPU
#
# torch.accelerator needs torch 2.6. If torch lacks a function, the device counts as lacking the feature.


# The backend of torch.distributed for each type of device. Collectives of the backends in ON_STREAM are queued on the
# device's current stream; those of others are complete when the call, or its wait(), returns.
BACKENDS = {"cpu": "gloo", "cuda": "nccl", "xpu": "xccl"}
ON_STREAM = {"nccl": "cuda", "xccl": "xpu"}


def module(device: torch.device) -> Any:
    """Returns torch's module for a device's type (torch.cuda, torch.xpu); None for the CPU."""
    return None if device.type == "cpu" else getattr(torch, device.type)


def synchronize(device: torch.device) -> None:
    if (there := module(device)) is not None:
        there.synchronize(device)


def name(device: torch.device) -> str:
    """Returns the model name of an accelerator; empty for the CPU."""
    there = module(device)
    return "" if there is None else str(there.get_device_name(device))


def memory(device: torch.device) -> tuple[int, int] | None:
    """Returns an accelerator's free bytes, with those that torch keeps unused, and all; None: the CPU, or unknown."""
    there = module(device)
    if not hasattr(there, "mem_get_info"):
        return None
    free, total = there.mem_get_info(device)
    return int(free + there.memory_reserved(device) - there.memory_allocated(device)), int(total)


def has_bfloat16(device: torch.device) -> bool:
    """Returns whether an accelerator computes in bfloat16 without emulation; False for the CPU."""
    there = module(device)
    if device.type == "cuda":
        return bool(there.is_bf16_supported(including_emulation=False))
    supported = getattr(there, "is_bf16_supported", None)
    return bool(supported is not None and supported())


def current() -> torch.device:
    """Returns the current accelerator, if this process has initialized one; else the CPU."""
    kinds = {"cuda": torch.cuda, "xpu": torch.xpu} if torch.xpu._is_compiled() else {"cuda": torch.cuda}
    for kind, there in kinds.items():
        if there.is_initialized():
            return torch.device(kind, there.current_device())
    return torch.device("cpu")


def seed(value: int) -> None:
    """Seeds the random generator of the current accelerator, if this process has initialized one."""
    if (there := module(current())) is not None:
        there.manual_seed(value)


def of_backend(backend: str) -> torch.device:
    """Returns the device on which a backend needs tensors: the current GPU or XPU for nccl and xccl, else the CPU."""
    kind = ON_STREAM.get(backend)
    return torch.device("cpu") if kind is None else torch.device(kind, getattr(torch, kind).current_device())


# -- Which accelerators a rank sees, and which device it computes on
#
# A GPU that was asked for and is missing is an error; the rank never falls back to the CPU. In the launcher's workloads
# each rank sees one GPU only, since CUDA's current device is per thread, and initially 0. Users' programs and functions
# see all of them: for torchrun's contract, LOCAL_RANK is the index of the device.


ASKED = "LAUNCHER_GPUS_PER_NODE"  # variable of a rank, and of its program: GPUs per node that the run asked for
# The variables ("masks") that limit which devices a process sees, by the kind of torch build
_MASKS = {"cuda": masks.MASKS["nvidia"], "hip": masks.MASKS["amd"], "xpu": masks.MASKS["intel"]}


class BackendError(errors.LauncherError):
    """The backend or device that was asked for is not available here; a retry would fail too."""

    exit_code = errors.NO_RETRY


def torch_build() -> str:
    """Returns the kind of accelerator that this torch was built for: cuda, hip or xpu; empty for CPUs only."""
    found = next((kind for kind in ("hip", "cuda", "xpu") if getattr(torch.version, kind, None)), "")
    return found or ("xpu" if torch.xpu._is_compiled() else "")  # torch.version has no xpu before 2.5


class NoGpuError(BackendError):
    """There is no accelerator here, or this torch was built without support for it."""


def variables(plan: JobPlan, environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables to add to a rank's environment, which has LOCAL_RANK, before torch uses an accelerator."""
    changes = visible_device_changes(
        environ, local_rank=int(environ["LOCAL_RANK"]), ranks=int(environ["LOCAL_WORLD_SIZE"]),
        gpus_per_node=plan.gpus_per_node if plan.workload.device != Device.cpu.value else 0,
        wanted=VisibleDevices(plan.launch.visible_devices), own_code=plan.own_code, build=torch_build(),
    )  # fmt: skip
    return {ASKED: str(plan.gpus_per_node), **changes}


def visible_device_changes(
    environ: Mapping[str, str], *, local_rank: int, ranks: int, gpus_per_node: int, wanted: VisibleDevices,
    own_code: bool, build: str,
) -> dict[str, str]:  # fmt: skip
    """Returns the variables that make a rank see one device only. Pure; the first row that applies decides.

    | launch.visible_devices | the node | the rank sees |
    |---|---|---|
    | all; or auto, and the ranks run the user's own code | | all that is there |
    | otherwise | no GPUs were asked for, or torch is CPU-only and no mask is set | all that is there |
    | | the mask names one device, or none (the scheduler gave each task its own) | all that is there |
    | | the mask names fewer devices than the node has ranks | all that is there: `choose_device` refuses |
    | | the mask names enough | the mask's entry at the index of the local rank, unchanged (index, UUID, MIG) |
    | | no mask is set, and there are as many GPUs as ranks | the GPU at the index of the local rank |
    """
    if wanted is VisibleDevices.all or (wanted is VisibleDevices.auto and own_code) or not gpus_per_node:
        return {}
    mask = _mask(environ, build)
    if mask is None:
        return {}
    shown = environ.get(mask)
    entries = [str(number) for number in range(gpus_per_node)] if shown is None else masks.entries_of(shown)
    already = shown is not None and len(entries) < 2
    return {} if already or len(entries) < ranks else {mask: entries[local_rank]}


def _mask(environ: Mapping[str, str], build: str) -> str | None:
    if build in _MASKS:
        return masks.mask_of(_MASKS[build], environ)
    # The launcher's torch may be CPU-only while the program brings its own: any such variable that is set
    return next((name for names in _MASKS.values() for name in reversed(names) if name in environ), None)


@dataclass(frozen=True)
class Accelerators:
    kind: str  # torch.device type of the accelerators (cuda on ROCm as well); empty if torch was built for CPUs only
    count: int
    torch: str  # its version
    mask: str = ""  # the variables that limit what the process sees, with their values, as text
    error: str = ""  # the driver's message if the process sees no accelerator

    @property
    def text(self) -> str:
        if not self.kind:
            return f"torch {self.torch} was built for CPUs only"
        error = f"; the driver says: {self.error}" if self.error else ""
        return f"torch {self.torch} finds {self.count or 'none'} with {self.mask}{error}"


def find_accelerators(environ: Mapping[str, str]) -> Accelerators:
    build = torch_build()
    names = _MASKS.get(build, ())
    mask = ", ".join(f"{name}={environ[name]}" for name in names if name in environ)
    kind = "cuda" if build == "hip" else build
    if not kind:
        return Accelerators("", 0, torch.__version__)
    device_module = getattr(torch, kind)
    count, error = device_module.device_count(), ""
    if not count:
        try:
            device_module.init()
        except Exception as failed:  # RuntimeError, and AssertionError of some builds
            error = str(failed).partition("\n")[0]
    return Accelerators(kind, count, torch.__version__, mask or f"{names[-1]} not set", error)


def choose_device(
    wanted: str, asked: int, seen: Accelerators, *, rank: int, local_rank: int, ranks: int, host: str
) -> tuple[str, int | None]:
    """Chooses a rank's device. Pure; the first row that applies decides.

    A run uses no more GPUs than it asked for, even if it sees more, as on a machine without a scheduler.

    | device | GPUs asked for | GPUs seen, at most as many as asked for | result |
    |---|---|---|---|
    | cpu | | | the CPU |
    | cuda, xpu | | accelerators of another kind, or none | refused |
    | auto | some | none | refused |
    | auto | none | none | the CPU |
    | not cpu | | more than one, but fewer than the node has ranks | refused |
    | not cpu | | one | that one; ranks that share it are found when they join |
    | not cpu | | enough | the one at the index of the local rank |

    asked: GPUs on each node that the run asked for; 0 outside of a run.
    Returns the torch.device type and the index of the device (None for the CPU); raises BackendError.
    """
    if wanted == Device.cpu.value or (wanted == Device.auto.value and not asked and not seen.count):
        return "cpu", None
    if not seen.count or wanted not in (Device.auto.value, seen.kind):
        raise _no_gpu(wanted, asked, seen.text, rank, host)
    count = min(seen.count, asked) if asked else seen.count
    if 1 < count < ranks:
        raise BackendError(
            f"{ranks} ranks on {host} with {count} GPUs: use procs_per_node={count} or workload.device=cpu"
        )
    return seen.kind, local_rank % count


def _no_gpu(wanted: str, asked: int, why: str, rank: int, host: str) -> NoGpuError:
    key = f"gpus_per_node={asked} with device={wanted}" if asked else f"device={wanted}"
    return NoGpuError(
        f"{key} asks for a GPU, and rank {rank} on {host} sees no GPU: {why}. Compare with `nvidia-smi` "
        "(`rocm-smi`, `xpu-smi`) there, and with what the scheduler was asked for (gpus_per_node, "
        "cluster.gpu_directive); to compute on the CPU set workload.device=cpu"
    )


def require_gpu(
    wanted: str, asked: int, environ: Mapping[str, str], *, other_torch: bool, rank: int, host: str
) -> None:
    """Refuses to start the user's own code if it wants a GPU and none is visible.

    | device | torch | refused if |
    |---|---|---|
    | cpu; or auto, and no GPUs were asked for | | never |
    | otherwise | the code runs with this torch, which is built for accelerators | it finds none |
    | | this torch is for CPUs only, or the program brings its own | masks are set, and all name none |
    | | | no mask is set, and there is no device file |

    Raises NoGpuError: none is visible.
    """
    if wanted == Device.cpu.value or (wanted == Device.auto.value and not asked):
        return
    seen = find_accelerators(environ)
    if seen.kind and not other_torch:
        if not seen.count:
            raise _no_gpu(wanted, asked, seen.text, rank, host)
        return
    shown = {name: environ[name] for names in _MASKS.values() for name in names if name in environ}
    if shown and not any(map(masks.entries_of, shown.values())):
        raise _no_gpu(wanted, asked, ", ".join(f"{name}={value}" for name, value in shown.items()), rank, host)
    if not shown and not hardware.device_files():
        raise _no_gpu(wanted, asked, f"/dev has no {', '.join(hardware.DEVICE_FILES)}", rank, host)


# -- Reads from NCCL's log (or RCCL's) which network it uses, and compares that with what the site expects
#
#     environ.update(nccl_log_variables(environ, file))  # before NCCL makes its first communicator
#     fabric = read_nccl_log(file)                       # after the first collective
#     network_mismatch(fabric, {"net": ("AWS Libfabric",)})
#
# If a plug-in or a device is missing, NCCL falls back to sockets without an error: results are right, but the training
# is several times slower.


SOCKET = "Socket"  # NCCL's name of its transport over sockets
NCCL_LOG_BYTES = 1 << 20  # at most so many characters of a log are read
_NCCL_LEVELS = ("", "VERSION", "WARN")  # values of NCCL_DEBUG that INFO may replace; others were set on purpose

_VERSION = re.compile(r"\b[NR]CCL version (\S+)")
_NET = re.compile(r"NCCL INFO Using network (.+)|\[(?:send|receive)\] via NET/([^/\s]+)")
_DEVICES = re.compile(r"NCCL INFO NET/(\w+) ?: Using (.+)")
_DEVICE = re.compile(r"\[\d+\] ?([\w.-]+)")
_PROVIDER = re.compile(r"NET/OFI Selected [Pp]rovider is ([\w;-]+)")
_PLUGIN = re.compile(
    r"NET/OFI (?:Using|Initializing) (aws-ofi-[nr]ccl \S+)|NET/Plugin: Loaded net plugin (.+)|P2P plugin (\S+)"
)
_MISSING = re.compile(
    r"(No plugin found|Could not find: libnccl-net\S*|libnccl-net\S*: cannot open shared object file"
    r"|NET/OFI aws-ofi-[nr]ccl initialization failed|NET/IB : No device found)"
)


class Fabric(Struct):
    """The network that the NCCL of a rank uses between nodes; what is empty is not in the log."""

    version: str = ""
    net: str = ""  # the transport: `IB`, `Socket`, or the name of a plug-in's transport
    plugin: str = ""  # name and version of the plug-in; empty: NCCL uses its own transports
    provider: str = ""  # of libfabric, if the plug-in uses it
    devices: tuple[str, ...] = ()  # the network devices that were found for the transport
    missing: tuple[str, ...] = ()  # messages about plug-ins and devices that were not found

    @property
    def text(self) -> str:
        """Text for the user, such as `NCCL 2.19.3 uses IB (mlx5_10, mlx5_11)`."""
        name = f"NCCL {self.version}" if self.version else "NCCL"
        if not self.net:
            return f"{name} does not report its network"
        about = [*filter(None, (self.plugin, self.provider)), *self.devices]
        return f"{name} uses {'sockets' if self.net == SOCKET else self.net}" + (f" ({', '.join(about)})" * bool(about))


def nccl_log_variables(environ: Mapping[str, str], path: Path) -> dict[str, str]:
    """Returns the variables with which NCCL writes its log to a file; none if the user has asked for a log."""
    if environ.get("NCCL_DEBUG", "").upper() not in _NCCL_LEVELS or environ.get("NCCL_DEBUG_FILE"):
        return {}
    return {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET", "NCCL_DEBUG_FILE": str(path)}


def nccl_log_name(rank: int) -> str:
    return f"nccl-{rank}.txt"


def read_nccl_log(path: Path) -> Fabric | None:
    try:
        with open(path, errors="replace") as file:
            return parse_nccl_log(file.read(NCCL_LOG_BYTES))
    except OSError:
        return None


def parse_nccl_log(log: str) -> Fabric:
    """Parses the NCCL log of a rank. If it names several networks, the last one counts."""
    version = next((match[1].partition("+")[0] for match in _VERSION.finditer(log)), "")
    nets = [(match[1] or match[2]).strip() for match in _NET.finditer(log)]
    found = {match[1]: tuple(_DEVICE.findall(match[2].partition(";")[0])) for match in _DEVICES.finditer(log)}
    net = nets[-1] if nets else next((name for name in ("IB", SOCKET) if name in found), "")  # before 2.5
    plugin = next((next(filter(None, match.groups())).strip() for match in _PLUGIN.finditer(log)), "")
    provider = next((match[1] for match in _PROVIDER.finditer(log)), "")
    own = net in ("IB", SOCKET)
    missing = tuple(dict.fromkeys(match[1] for match in _MISSING.finditer(log))) if own else ()
    devices = found.get(net) or (found.get("IB", ()) if net.startswith("IB") else ())
    return Fabric(version, net, "" if own else plugin, "" if own else provider, devices, missing)


def network_mismatch(fabric: Fabric | None, expects: Mapping[str, Sequence[str]]) -> str | None:
    """Returns how NCCL's network differs from what the site expects, and what to do; None: it does not, or unknown.

    expects: accepted values of `provider`, and beginnings of `net` and `plugin`, since a transport may be IBext_v8.
    """
    if fabric is None or not fabric.net:
        return None
    for name, accepted in expects.items():
        value = getattr(fabric, name)
        whole = name == "provider"
        if any(value.lower() == each.lower() if whole else value.lower().startswith(each.lower()) for each in accepted):
            continue
        todo = "set NCCL_NET in cluster.environment, and see NCCL_DEBUG=INFO"
        if any("libnccl-net" in each or "plugin" in each for each in fabric.missing):
            todo = "it found no plug-in (libnccl-net.so); put its folder on LD_LIBRARY_PATH in cluster.setup"
        elif fabric.missing:
            todo = f"{'; '.join(fabric.missing)}; see NCCL_DEBUG=INFO, and cluster.environment"
        wanted = f"{name} {' or '.join(accepted)} (cluster.expects)"
        return f"{fabric.text}, and this cluster expects {wanted}: {todo}"
    return None
