"""Makes text for users of what the checks of a preflight have measured or found wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from launcher.failures.codes import CheckCode, MismatchCode
from launcher.formatting import format_size, plural

if TYPE_CHECKING:
    from launcher.runs.events import Mismatch, Observation

MIB, GIB = 2**20, 2**30


def of_observation(found: Observation) -> str:
    """Returns what was measured, or what is wrong and what to do about it, as one line."""
    make = _TEXTS.get(found.code)
    return make(found) if make else "a problem that this version of the launcher does not know"


def _clock(found: Observation) -> str:
    way = "ahead of" if found.ahead > 0 else "behind"
    return f"its clock is {abs(found.ahead):.3f} s {way} the first node's (± {found.accuracy:.3f} s)"


def _space(found: Observation) -> str:
    return f"{found.path} has {found.free / MIB:,.0f} MiB free"


def _little_space(found: Observation) -> str:
    less = f", less than {format_size(found.least)}" if found.least else ""
    return f"{_space(found)}{less}: free some, or set {found.key} to another file system"


def _not_writable(found: Observation) -> str:
    why = "its file system is full" if found.code is CheckCode.FULL else found.error
    return f"{found.path} cannot be written to ({why}): set {found.key} to a folder that can"


def _few_gpus(found: Observation) -> str:
    return (
        f"torch sees {plural(found.count, 'GPU')}, and gpus_per_node={found.of} asks for {max(found.of, 1)}: see what "
        "`nvidia-smi` (`rocm-smi`, `xpu-smi`) says there"
    )


def _computes_wrong(found: Observation) -> str:
    return f"{found.device} computes wrong: {found.count} of {found.of} elements of a product of matrices; replace it"


def _gpu_in_use(found: Observation) -> str:
    used = f"{found.used / GIB:.1f} of {found.total / GIB:.0f} GiB"
    return f"{used} of the memory of {found.device} are in use: does a process of another job live?"


def _network(found: Observation) -> str:
    return found.network.text if found.network is not None else "NCCL wrote no log"


def _other_network(found: Observation) -> str:
    return of_mismatch(found.mismatch) if found.mismatch else "NCCL uses another network than this cluster expects"


def of_mismatch(wrong: Mismatch) -> str:
    """Returns how NCCL's network differs from the one that the site expects, and what to do."""
    wanted = " or ".join(wrong.accepted)
    todo = {
        MismatchCode.NO_PLUGIN: "it found no plug-in (libnccl-net.so); put its folder on LD_LIBRARY_PATH in "
                                "cluster.setup",
        MismatchCode.NOT_FOUND: f"{'; '.join(wrong.fabric.missing)}; see NCCL_DEBUG=INFO, and cluster.environment",
    }.get(wrong.code, "set NCCL_NET in cluster.environment, and see NCCL_DEBUG=INFO")  # fmt: skip
    return f"{wrong.fabric.text}, and this cluster expects {wrong.name} {wanted} (cluster.expects): {todo}"


def _wrong_elements(found: Observation) -> str:
    return (
        f"an all_reduce of {found.of} elements came out wrong in {found.count} of them (from rank "
        f"{', '.join(map(str, found.ranks))}): test its network card and memory"
    )


def _not_reached(found: Observation) -> str:
    more = f" and {len(found.hosts) - 1} more" if len(found.hosts) > 1 else ""
    why = f"({found.error}) at {found.address}" if found.address else "(it has opened no port)"
    return (
        f"from {found.host} {''.join(found.hosts[:1])}{more} cannot be reached {why}: is there a firewall between the "
        "nodes, or the wrong cluster.interface?"
    )


def _how(found: Observation) -> str:
    return f"was killed by {found.signal}" if found.signal else f"ended with exit code {found.exit_code}"


_TEXTS: dict[CheckCode, Callable[[Observation], str]] = {
    CheckCode.COMPUTES: lambda found: found.device,
    CheckCode.NETWORK: _network,
    CheckCode.SPACE: _space,
    CheckCode.FILES_SEEN: lambda found: f"{plural(found.count, 'file')} of other nodes seen",
    CheckCode.FILE_WRITTEN: lambda found: f"{found.path} written",
    CheckCode.CLOCK: _clock,
    CheckCode.REDUCED: lambda found: (
        f"{found.total // 1024} KiB over {plural(found.count, 'rank')} in {found.seconds * 1000:.2f} ms"
    ),
    CheckCode.REACHED: lambda found: f"{found.count} other nodes reached",
    CheckCode.FEW_GPUS: _few_gpus,
    CheckCode.COMPUTES_WRONG: _computes_wrong,
    CheckCode.GPU_IN_USE: _gpu_in_use,
    CheckCode.OTHER_NETWORK: _other_network,
    CheckCode.LITTLE_SPACE: _little_space,
    CheckCode.FEW_FILES: lambda found: (
        f"{found.path} takes {found.count} more files: remove some, or set {found.key} to another file system"
    ),
    CheckCode.NO_DIRECTORY: lambda found: f"{found.path} is no folder: set {found.key} to one",
    CheckCode.NO_TMPDIR: lambda found: (
        f"TMPDIR={found.path} is not there: make it in cluster.setup, or set it in cluster.environment"
    ),
    CheckCode.FULL: _not_writable,
    CheckCode.NOT_WRITABLE: _not_writable,
    CheckCode.OTHER_OWNER: lambda found: (
        f"{found.path} belongs to user {found.owner} and was made by {found.user}: ids are mapped there; set runs_dir "
        "elsewhere"
    ),
    CheckCode.OTHER_MODE: lambda found: (
        f"{found.path} has mode {found.mode:o} and was made with 600: set runs_dir to another file system"
    ),
    CheckCode.NOT_SHARED: lambda found: (
        f"{found.path} does not show what other nodes write within {found.seconds:g} s: is it on a file system that "
        "all nodes share? Set runs_dir to one"
    ),
    CheckCode.CLOCK_OFF: lambda found: (
        f"{_clock(found)}: have the nodes' clocks synchronised; times in its records are wrong"
    ),
    CheckCode.CLOCK_UNKNOWN: lambda found: (
        f"not compared with the others, which did not respond in {found.seconds:g} s"
    ),
    CheckCode.WRONG_ELEMENTS: _wrong_elements,
    CheckCode.NOT_REACHED: _not_reached,
    CheckCode.ERROR: lambda found: found.error,
    CheckCode.PROCESS_ENDED: lambda found: (
        f"the process that checks the device of local rank {found.local_rank} {_how(found)}"
    ),
    CheckCode.RANK_ENDED: lambda found: f"local rank {found.local_rank} {_how(found)} in an all_reduce",
    CheckCode.SILENT: lambda found: (
        f"reported nothing within {found.seconds:g} s: does a device or a file system hang there?"
    ),
    CheckCode.LEADER_LOST: lambda found: f"it leads the agents, and does not respond: {found.error}",
}
