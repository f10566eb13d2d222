"""Checks Python, the libraries, torch and the NVIDIA driver on this machine."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from typing import Any

from launcher import __version__, paths
from launcher.files.shared_files import NOT_ON_PATH
from launcher.findings import Finding, ok, problem, warning
from launcher.schedulers import run_command

OLDEST, NEWEST = (3, 10), (3, 13)  # Python; Hydra 1.3 breaks on 3.14
# The range of versions of each package that works (pyproject.toml): the lowest, and the first too new; None: any.
NEEDED: Mapping[str, tuple[str, str] | None] = {
    "hydra-core": ("1.3.4", "1.4"), "omegaconf": ("2.3", "2.4"), "submitit": ("1.5.4", "1.6"), "jinja2": None,
    "rich": None, "numpy": None,
}  # fmt: skip
OPTIONAL = ("optuna", "tensorboard", "mlflow", "mlflow-skinny", "wandb", "lightning", "transformers")
OLDEST_TORCH = (2, 4)  # as in pyproject.toml; of a vendor's 2.9.0a0+50eac811a6 only 2.9 counts
TORCH = f"torch>={'.'.join(map(str, OLDEST_TORCH))}"
SLOW_IMPORT = 15.0  # seconds for `import torch` above which its file system counts as slow
LOOK_AT_TORCH = """
import json, time
began = time.perf_counter()
import torch
took = time.perf_counter() - began
import torch.distributed as d
def has(name):
    there = getattr(d, "is_" + name + "_available", None)
    return bool(d.is_available() and there is not None and there())
names = [name for name in ("gloo", "nccl", "mpi", "ucc", "xccl") if has(name)]
gpus = []
for kind in (torch.cuda, torch.xpu):
    if kind.is_available():
        gpus += [kind.get_device_name(n) for n in range(kind.device_count())]
print(json.dumps({"version": torch.__version__, "cuda": torch.version.cuda, "hip": torch.version.hip, "took": took,
                  "xpu": torch.xpu._is_compiled(), "backends": names, "gpus": gpus, "file": torch.__file__}))
"""


def python(version: tuple[int, ...], executable: str) -> Iterator[Finding]:
    """Checks that the version of this Python, which jobs use too, is one that the libraries work with."""
    text = ".".join(map(str, version[:3]))
    known = f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"
    if OLDEST <= version[:2] <= NEWEST:
        yield ok("python", f"{text}, {executable}")
    else:
        yield problem("python", f"{text}, {executable}", f"use Python {known}: the libraries are known to work with it")


def packages(version_of: Callable[[str], str | None]) -> Iterator[Finding]:
    """Checks the versions of the libraries, and lists the installed optional ones.

    version_of: returns the installed version of a package; None: it is not installed.
    """
    versions, wrong = [], []
    for name, span in NEEDED.items():
        version = version_of(name)
        versions.append(f"{name} {version or 'missing'}")
        if version is None:
            wrong.append(f"pip install {name}")
        elif span is not None and not _parts(span[0]) <= _parts(version) < _parts(span[1]):
            wrong.append(f"pip install '{name}>={span[0]},<{span[1]}'")
    if wrong:
        yield problem("packages", ", ".join(versions), "; ".join(wrong))
    else:
        yield ok("packages", ", ".join(versions))
    extra = [f"{name} {version}" for name in OPTIONAL if (version := version_of(name))]
    yield ok("extras", ", ".join(extra) if extra else f"none of {', '.join(OPTIONAL)}")


def installed(name: str) -> str | None:
    """Returns the installed version of a package; None: it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _parts(version: str) -> tuple[int, ...]:
    # A part without digits ends them
    numbers = []
    for part in version.split(".")[:4]:
        digits = "".join(each for each in part if each.isdigit())
        if not digits:
            break
        numbers.append(int(digits))
    return tuple(numbers)


def launcher() -> Iterator[Finding]:
    """Reports the launcher's version and folder, and the kernel and the number of CPUs of this machine."""
    where = "a checkout" if paths.code_root() else "installed"
    yield ok("launcher", f"{__version__}, {paths.PACKAGE.parent} ({where})")
    yield ok("system", f"{platform.system()} {platform.release()}, {platform.machine()}, {os.cpu_count()} CPUs")


def torch(found: Mapping[str, Any] | str) -> Iterator[Finding]:
    """Checks torch: its version, its backends, and how long its import took.

    found: the output of LOOK_AT_TORCH as a dict; if torch cannot be imported, the error as a string.
    """
    if isinstance(found, str):
        yield problem("torch", f"cannot be imported: {found}", f"{sys.executable} -m pip install '{TORCH}'")
        return
    build = "XPU" if found["xpu"] else "CPU only"
    build = f"CUDA {found['cuda']}" if found["cuda"] else f"ROCm {found['hip']}" if found["hip"] else build
    backends = ", ".join(found["backends"]) or "no backend of torch.distributed"
    gpus = found["gpus"]
    text = f"{found['version']} ({build}), {backends}; {len(gpus)} GPU{'' if len(gpus) == 1 else 's'} here"
    text += f"; import took {found['took']:.1f} s"
    if not found["backends"]:
        yield problem("torch", text, "install a torch with gloo")
    elif _parts(found["version"])[:2] < OLDEST_TORCH:
        yield problem("torch", text, f"pip install '{TORCH}'")
    elif found["took"] > SLOW_IMPORT:
        yield warning(
            "torch", text, "its file system is slow: every rank reads it; put the environment on a faster one, or into "
            "an image",
        )  # fmt: skip
    else:
        yield ok("torch", text)


def probe_torch(limit: float) -> Iterator[Finding]:
    """Imports torch in another process, which is killed after `limit` seconds, and checks what it printed."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", LOOK_AT_TORCH], cwd="/", capture_output=True, text=True, timeout=limit, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        yield from torch(f"its import took more than {limit:g} s: a slow file system, or one that hangs")
        return
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        yield from torch(lines[-1] if lines else f"exit code {done.returncode}")
        return
    yield from torch(json.loads(done.stdout.splitlines()[-1]))


def nvidia(answer: str | None) -> Iterator[Finding]:
    """Reports the GPUs of this machine.

    answer: the output of nvidia-smi, a line `name, memory in MiB, driver` for each GPU; None: there is no nvidia-smi.
    """
    if answer is None:
        yield ok("gpus", "no nvidia-smi here; login nodes often have none")
        return
    rows = [[part.strip() for part in line.split(",")] for line in answer.splitlines() if line.strip()]
    if not rows or any(len(row) != 3 for row in rows):
        text = " ".join(answer.split())[:200] or "nothing"
        yield warning("gpus", f"nvidia-smi says {text}", "the driver may not be loaded: ask the administrators")
        return
    counts: dict[tuple[str, ...], int] = {}
    for row in rows:
        counts[tuple(row)] = counts.get(tuple(row), 0) + 1
    text = ", ".join(
        f"{number} x {name}, {memory} MiB, driver {driver}" for (name, memory, driver), number in counts.items()
    )
    yield ok("gpus", text)


def probe_nvidia() -> Iterator[Finding]:
    words = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits"]
    try:
        done = run_command.run(words, timeout=8)
    except NOT_ON_PATH:
        yield from nvidia(None)
        return
    except subprocess.TimeoutExpired:
        yield problem("gpus", "nvidia-smi did not answer within 8 s", "the driver hangs: ask the administrators")
        return
    except run_command.OutputTooLong as error:
        yield problem("gpus", str(error), "it is not NVIDIA's nvidia-smi: check PATH")
        return
    yield from nvidia(done.stdout if done.returncode == 0 else done.stdout + done.stderr)
