"""`doctor`: checks this machine, its software, the folder of runs and the scheduler, and prints the findings."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import platform
import re
import resource
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from launcher import __version__, paths
from launcher.cli.output import json_text, labelled
from launcher.config.schema import Cluster, Config, Form
from launcher.environment.programs import NEWEST, OLDEST
from launcher.errors import NOT_ON_PATH, ConfigError
from launcher.files.folder_checks import LOCAL, kind_of
from launcher.formatting import format_size, long_size, plural
from launcher.paths import user_config_dir
from launcher.plan import workload_hook
from launcher.plan.build import converted
from launcher.redaction import public, without_password
from launcher.schedulers import registry, run_command
from launcher.schedulers.base import Queue, Scheduler
from launcher.schedulers.registry import allocation
from launcher.schedulers.site import Finding, Level, ok, problem, warning, worst

MARKS = {Level.OK: "ok     ", Level.WARNING: "warning", Level.PROBLEM: "PROBLEM"}
STUCK = "a file system or a service that the check uses hangs: try it by hand"
IMPORT, ASK = 60.0, 8.0  # seconds for: the import of torch, one query to a scheduler


def run(arguments: Namespace) -> int:
    found = []
    for each in _all(arguments.cluster):
        found.append(each)
        if not arguments.as_json:
            print(line(each), flush=True)
    level = worst(found)
    if arguments.as_json:
        values = {"launcher": __version__, "python": sys.version.split()[0], "level": level.value}
        print(json_text({**values, "findings": [dataclasses.asdict(each) for each in found]}))
    else:
        problems, warnings = (sum(each.level is kind for each in found) for kind in (Level.PROBLEM, Level.WARNING))
        print(f"\n{plural(problems, 'problem')}, {plural(warnings, 'warning')}")
    return 1 if level is Level.PROBLEM else 0


def _all(cluster: str | None) -> Iterator[Finding]:
    slow = start(DoctorCheck("torch", lambda: [probe_torch(IMPORT)], IMPORT + 5))  # so in the background
    yield from run_all([
        DoctorCheck("launcher", launcher),
        DoctorCheck("python", lambda: [python(sys.version_info[:3], sys.executable)]),
        DoctorCheck("packages", lambda: packages(installed_version)),
        DoctorCheck("machine", probe_machine),
    ])  # fmt: skip
    try:
        # What it needs may not be installed, which the checks before report
        from launcher.submission import resume

        config = resume.composed_config(["workload=p2p", *([f"cluster={cluster}"] if cluster else [])]).config
    except ConfigError as error:
        yield problem("config", str(error), "correct it, or choose another profile with --cluster NAME")
    except Exception as error:  # as in `start`: a package that is missing, a file that is no text, a silent file server
        text = f"cannot be composed: {type(error).__name__}: {error}"
        yield problem("config", text, "see packages above, and the files of your own settings")
    else:
        yield from run_all(rest(config))
    yield from slow()


def line(found: Finding) -> str:
    head = f"{MARKS[found.level]}  {found.about:<10} "
    lines = labelled(head, found.says, column=len(head))
    if found.do:
        lines += labelled("", f"-> {found.do}", column=len(head))
    return "\n".join(lines)


# -- Runs checks concurrently, each in a thread and with a time limit


@dataclasses.dataclass(frozen=True)
class DoctorCheck:
    about: str  # its subject, as the report shows it
    look: Callable[[], Iterable[Finding]]
    limit: float = 10.0  # seconds that it may take


def start(check: DoctorCheck) -> Callable[[], list[Finding]]:
    """Starts a check in a thread; returns a function that waits for its findings, or its limit, which is a problem."""
    findings: list[Finding] = []

    def look() -> None:
        try:
            for each in check.look():
                findings.append(each)
        except Exception as error:  # a check that fails must not hide the findings of others
            findings.append(problem(check.about, f"the check failed: {type(error).__name__}: {error}", "report this"))

    def wait() -> list[Finding]:
        thread.join(max(until - time.monotonic(), 0.0))
        late = [problem(check.about, f"no answer within {check.limit:g} s", STUCK)] if thread.is_alive() else []
        return [*findings, *late]

    # A thread that hangs in a file system cannot be ended. A daemon thread does not keep the process from exiting.
    thread, until = threading.Thread(target=look, daemon=True), time.monotonic() + check.limit
    thread.start()
    return wait


def run_all(checks: Sequence[DoctorCheck]) -> Iterator[Finding]:
    for wait in [start(each) for each in checks]:
        yield from wait()


# -- Checks this machine: each check is a function of facts; the functions `probe_*` collect the facts


MIB, GIB = 2**20, 2**30
# Environment variables that change what the launcher, torch or a scheduler does. The report shows them.
RELEVANT = re.compile(
    r"(LAUNCHER|NCCL|GLOO|TORCH|UCX|FI|OMP|MKL|SBATCH|SQUEUE|SINFO|SACCT|TP|OMPI_MCA)_|SLURM_CONF$|PBS_(CONF_FILE|SERVER|"
    r"DEFAULT|EXEC)$|(CUDA|ROCR|HIP)_VISIBLE_DEVICES$|PYTHON(PATH|HOME|STARTUP|OPTIMIZE|DONTWRITEBYTECODE)$|"
    r"(CONDA_PREFIX|VIRTUAL_ENV|TMPDIR|HYDRA_FULL_ERROR|LD_PRELOAD)$"
)
LEAST_FILES, LEAST_PROCESSES = 4096, 1024  # lower limits (ulimit -n, -u) are a warning


def environment(environ: Mapping[str, str]) -> Iterator[Finding]:
    try:
        if held := allocation(environ):
            yield ok("shell", f"inside job {held.job}: cluster=allocation runs here")
    except ConfigError as error:
        yield warning("shell", str(error))
    found = {name: public(name, environ[name]) for name in sorted(environ) if RELEVANT.match(name)}
    if found:
        yield ok("variables", "; ".join(f"{name}={value}" for name, value in found.items()))
    if "LD_PRELOAD" in found:
        yield warning("variables", "LD_PRELOAD is set: it is loaded into every rank too", "unset it unless you mean it")


def proxies(environ: Mapping[str, str]) -> Finding:
    names = [name for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy") for name in (name, name.upper())]
    shown = [f"{name}={without_password(environ[name])}" for name in names if environ.get(name)]
    return ok("proxies", "; ".join(shown) if shown else "none set")


def locale(encoding: str, umask: int) -> Iterator[Finding]:
    text = f"file names and texts are {encoding}"
    if encoding.lower().replace("-", "") == "utf8":
        yield ok("locale", text)
    else:
        yield warning("locale", f"{text}: names with other characters cannot be written", "export LC_ALL=C.UTF-8")
    if umask & 0o700:
        yield problem("umask", f"umask {umask:03o} denies the owner access to new files", "umask 022")
    else:
        yield ok("umask", f"{umask:03o}; run directories are 0700 whatever it is")


def limits(found: Mapping[str, int | None]) -> Finding:
    """Checks this shell's soft limits (`nofile`: bytes or numbers; None: unlimited), which Slurm jobs inherit."""
    sizes = {name: long_size(found[name]) for name in ("memlock", "stack", "core") if found.get(name) is not None}
    shown = ", ".join(f"{name} {sizes.get(name, 'unlimited' if n is None else n)}" for name, n in found.items())
    low = []
    if (files := found.get("nofile")) is not None and files < LEAST_FILES:
        low.append(f"ulimit -n {LEAST_FILES} (open files: ranks and data loaders need many)")
    if (processes := found.get("nproc")) is not None and processes < LEAST_PROCESSES:
        low.append(f"ulimit -u {LEAST_PROCESSES} (processes and threads)")
    return warning("ulimits", shown, "; ".join(low)) if low else ok("ulimits", shown)


def host(name: str, addresses: Iterable[str] | str) -> Finding:
    """addresses: to which the name resolves; a string: the error."""
    if isinstance(addresses, str):
        return problem(
            "host", f"{name} does not resolve ({addresses}): ranks that reach each other by this name cannot",
            f"add {name} to /etc/hosts, or ask the administrators of this machine",
        )  # fmt: skip
    found = sorted(set(addresses))
    alone = all(each.startswith("127.") or each == "::1" for each in found)
    return ok("host", f"{name} is {', '.join(found)}{': only this machine reaches itself by that' if alone else ''}")


def probe_host() -> Finding:
    name = socket.gethostname()
    try:
        return host(name, [str(each[4][0]) for each in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)])
    except OSError as error:
        return host(name, str(error))


def ports(wanted: tuple[int, int], ephemeral: tuple[int, int] | None, free: int, looked: int) -> Finding:
    low, high = wanted
    if free == 0:
        return problem(
            "ports", f"none of {looked} ports of cluster.port_range={low}-{high} could be bound here",
            "choose another cluster.port_range",
        )  # fmt: skip
    if ephemeral is not None and low <= ephemeral[1] and ephemeral[0] <= high:
        return warning(
            "ports", f"cluster.port_range={low}-{high} overlaps the ephemeral ports {ephemeral[0]}-{ephemeral[1]}: "
            "any connection may have taken the port", f"cluster.port_range below {ephemeral[0]}",
        )  # fmt: skip
    outside = "" if ephemeral is None else f", outside of the ephemeral {ephemeral[0]}-{ephemeral[1]}"
    return ok("ports", f"cluster.port_range={low}-{high}{outside}; {free} of {looked} tried are free")


def probe_ports(wanted: str) -> Finding:
    try:
        low, high = converted(Form.ports, "cluster.port_range", wanted)
    except ConfigError as error:
        return problem("ports", str(error), "write it as 20000-32767")
    tried = range(low, high + 1, max((high - low) // 16, 1))[:16]
    ephemeral = None
    with contextlib.suppress(OSError, ValueError):
        first, last = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
        ephemeral = int(first), int(last)
    return ports((low, high), ephemeral, sum(map(_bindable, tried)), len(tried))


def _bindable(port: int) -> bool:
    with socket.socket() as listener, contextlib.suppress(OSError):
        listener.bind(("", port))
        return True
    return False


def interface(name: str | None, known: Iterable[str], *, queued: bool) -> Finding:
    found = sorted(known)
    if not name:
        return ok("interface", f"chosen on each node: the one that reaches the master; here: {', '.join(found)}")
    if name in found:
        return ok("interface", f"cluster.interface={name} is here")
    says = f"cluster.interface={name} is not on this machine, which has {', '.join(found)}"
    if queued:
        return warning("interface", says, "fine if the nodes have it: `preflight=true` looks there")
    return problem("interface", says, f"cluster.interface={found[0] if found else 'null'}, or leave it out")


def temporary(folder: str, free: int | str) -> Finding:
    if isinstance(free, str):
        return problem("tmp", f"{folder} cannot be written: {free}", "set TMPDIR to a folder that can")
    if free < 256 * MIB:
        says = f"{folder} has {format_size(free // MIB * MIB)} free"
        return warning("tmp", says, "remove what is not needed, or set TMPDIR")
    return ok("tmp", f"{folder}, {long_size(free)} free")


def probe_temporary() -> Finding:
    try:
        folder = tempfile.gettempdir()
        with tempfile.TemporaryFile() as file:
            file.write(b"x")
        free: int | str = shutil.disk_usage(folder).free
    except OSError as error:
        folder, free = os.environ.get("TMPDIR", "/tmp"), error.strerror or str(error)  # noqa: S108  only shown
    return temporary(folder, free)


def probe_machine() -> Iterator[Finding]:
    umask = os.umask(0o077)
    os.umask(umask)
    yield from locale(sys.getfilesystemencoding(), umask)
    names = ("nofile", "nproc", "memlock", "stack", "core")
    soft = {name: resource.getrlimit(getattr(resource, f"RLIMIT_{name.upper()}"))[0] for name in names}
    yield limits({name: None if value == resource.RLIM_INFINITY else value for name, value in soft.items()})
    yield from environment(os.environ)
    yield proxies(os.environ)


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
known = ("gloo", "nccl", "mpi", "ucc", "xccl") if d.is_available() else ()
names = [name for name in known if getattr(d, f"is_{name}_available", bool)()]
kinds = [kind for kind in (torch.cuda, torch.xpu) if kind.is_available()]
gpus = [kind.get_device_name(n) for kind in kinds for n in range(kind.device_count())]
print(json.dumps({"version": torch.__version__, "cuda": torch.version.cuda, "hip": torch.version.hip, "took": took,
                  "xpu": torch.xpu._is_compiled(), "backends": names, "gpus": gpus, "file": torch.__file__}))
"""


def python(version: tuple[int, ...], executable: str) -> Finding:
    text = ".".join(map(str, version[:3]))
    known = f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"
    if OLDEST <= version[:2] <= NEWEST:
        return ok("python", f"{text}, {executable}")
    return problem("python", f"{text}, {executable}", f"use Python {known}: the libraries are known to work with it")


def packages(version_of: Callable[[str], str | None]) -> Iterator[Finding]:
    versions, wrong = [], []
    for name, span in NEEDED.items():
        version = version_of(name)
        versions.append(f"{name} {version or 'missing'}")
        if version is None:
            wrong.append(f"pip install {name}")
        elif span is not None and not _parts(span[0]) <= _parts(version) < _parts(span[1]):
            wrong.append(f"pip install '{name}>={span[0]},<{span[1]}'")
    text = ", ".join(versions)
    yield problem("packages", text, "; ".join(wrong)) if wrong else ok("packages", text)
    extra = [f"{name} {version}" for name in OPTIONAL if (version := version_of(name))]
    yield ok("extras", ", ".join(extra) if extra else f"none of {', '.join(OPTIONAL)}")


def installed_version(name: str) -> str | None:
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(name)
    return None


def _parts(version: str) -> tuple[int, ...]:
    found = re.match(r"\d+(\.\d+){0,3}", version)
    return tuple(map(int, found[0].split("."))) if found else ()


def launcher() -> Iterator[Finding]:
    where = "a checkout" if paths.code_root() else "installed"
    yield ok("launcher", f"{__version__}, {paths.PACKAGE.parent} ({where})")
    yield ok(
        "system",
        f"{platform.system()} {platform.release()}, {platform.machine()}, {plural(os.cpu_count() or 1, 'CPU')}",
    )


def torch(found: Mapping[str, Any] | str) -> Finding:
    """Checks torch: its version, backends and import time, from LOOK_AT_TORCH's output (a string: the error)."""
    if isinstance(found, str):
        return problem("torch", f"cannot be imported: {found}", f"{sys.executable} -m pip install '{TORCH}'")
    build = "XPU" if found["xpu"] else "CPU only"
    build = f"CUDA {found['cuda']}" if found["cuda"] else f"ROCm {found['hip']}" if found["hip"] else build
    backends = ", ".join(found["backends"]) or "no backend of torch.distributed"
    gpus = found["gpus"]
    text = f"{found['version']} ({build}), {backends}; {len(gpus)} GPU{'' if len(gpus) == 1 else 's'} here"
    text += f"; import took {found['took']:.1f} s"
    if not found["backends"]:
        return problem("torch", text, "install a torch with gloo")
    if _parts(found["version"])[:2] < OLDEST_TORCH:
        return problem("torch", text, f"pip install '{TORCH}'")
    if found["took"] > SLOW_IMPORT:
        return warning(
            "torch", text, "its file system is slow: every rank reads it; put the environment on a faster one, or into "
            "an image",
        )  # fmt: skip
    return ok("torch", text)


def probe_torch(limit: float) -> Finding:
    try:
        done = subprocess.run(
            [sys.executable, "-c", LOOK_AT_TORCH], cwd="/", capture_output=True, text=True, timeout=limit, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return torch(f"its import took more than {limit:g} s: a slow file system, or one that hangs")
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        return torch(lines[-1] if lines else f"exit code {done.returncode}")
    return torch(json.loads(done.stdout.splitlines()[-1]))


def driver(answer: str | None) -> Finding:
    """answer: nvidia-smi's lines `name, memory in MiB, driver`; None: there is no nvidia-smi."""
    if answer is None:
        return ok("gpus", "no nvidia-smi here; login nodes often have none")
    rows = [[part.strip() for part in line.split(",")] for line in answer.splitlines() if line.strip()]
    if not rows or any(len(row) != 3 for row in rows):
        text = " ".join(answer.split())[:200] or "nothing"
        return warning("gpus", f"nvidia-smi says {text}", "the driver may not be loaded: ask the administrators")
    counts = Counter(map(tuple, rows)).items()
    text = ", ".join(f"{number} x {name}, {memory} MiB, driver {version}" for (name, memory, version), number in counts)
    return ok("gpus", text)


def probe_nvidia() -> Finding:
    words = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits"]
    try:
        done = run_command.run(words, timeout=8)
    except NOT_ON_PATH:
        return driver(None)
    except subprocess.TimeoutExpired:
        return problem("gpus", "nvidia-smi did not answer within 8 s", "the driver hangs: ask the administrators")
    except run_command.OutputTooLong as error:
        return problem("gpus", str(error), "it is not NVIDIA's nvidia-smi: check PATH")
    return driver(done.stdout if done.returncode == 0 else done.stdout + done.stderr)


LEAST, ENOUGH = 64 * MIB, 2 * GIB  # bytes free: below LEAST is an error, below ENOUGH a warning
FEW_INODES = 10_000  # free inodes below this are a warning
SKEW = 5.0  # seconds by which the file server's clock may differ from this machine's


def space(folder: str, kind: str, free: int, inodes: int | None, *, queued: bool) -> Finding:
    """folder: of runs, or its parent; kind: of its file system (`nfs4`); inodes: free ones, if they are counted."""
    counted = "" if inodes is None else f", {inodes} inodes"
    text = f"{folder} on {kind or 'an unknown file system'}, {long_size(free)}{counted} free"
    if free < LEAST:
        return problem("runs_dir", text, "make room there, or set runs_dir to another folder")
    if free < ENOUGH:
        return warning("runs_dir", text, "checkpoints need more: make room there, or set runs_dir")
    if inodes is not None and inodes < FEW_INODES:
        return warning("runs_dir", text, "each run has dozens of files: remove what is not needed, or set runs_dir")
    if queued and kind in LOCAL:
        return warning(
            "runs_dir", f"{text}: this type is usually local to a machine, and all nodes must see the folder",
            "fine if it is exported to the nodes; else set runs_dir (or LAUNCHER_RUNS_DIR) to a shared folder",
        )  # fmt: skip
    return ok("runs_dir", text)


def file_operations(folder: str, failed: Sequence[tuple[str, str]], skew: float, took: float) -> Finding:
    """failed: (name, error) of each that does not work. skew: seconds by which the file server's clock is ahead."""
    if failed:
        text = "; ".join(f"{what} does not work ({why})" for what, why in failed)
        if all(what == "flock" for what, _ in failed):
            return warning(
                "files", f"{folder}: {text}", "only the scheduler can then detect two simultaneous submissions of one "
                "run id; mount it with locks (NFS: without nolock)",
            )  # fmt: skip
        return problem("files", f"{folder}: {text}", "set runs_dir (or LAUNCHER_RUNS_DIR) to another folder")
    if abs(skew) > SKEW:
        return warning(
            "files", f"{folder}: its clock differs from this machine's by {skew:.0f} s",
            "times of events and heartbeats come from both: have the clocks set (NTP)",
        )  # fmt: skip
    return ok("files", f"private folders, atomic renames, links and locks work ({took * 1000:.0f} ms)")


def probe_folder(folder: Path, *, queued: bool) -> Iterator[Finding]:
    there = folder
    while not there.is_dir() and there != there.parent:
        there = there.parent
    shown = str(there) if there == folder else f"{there} (for {folder}, which the first run makes)"
    try:
        status, free = os.statvfs(there), shutil.disk_usage(there).free
        yield space(shown, kind_of(there), free, status.f_favail if status.f_files else None, queued=queued)
        if there == folder and (mode := stat.S_IMODE(folder.stat().st_mode)) & 0o022:
            yield warning(
                "runs_dir", f"others can write to {folder} (mode {mode:04o}): they could put runs there",
                f"chmod go-w {folder}",
            )  # fmt: skip
        yield file_operations(shown, *try_out(there))
    except OSError as error:
        yield problem(
            "runs_dir", f"{shown}: {error.strerror or error}",
            "set runs_dir (or LAUNCHER_RUNS_DIR) to a folder that you can write to and that all nodes share",
        )  # fmt: skip


def try_out(folder: Path) -> tuple[list[tuple[str, str]], float, float]:
    """Tries the file operations that runs need in a temporary folder; returns (failed, skew, took)."""
    began = time.monotonic()
    place = Path(tempfile.mkdtemp(prefix=".launcher-doctor-", dir=folder))
    failed: list[tuple[str, str]] = []
    skew = 0.0
    try:
        for what, attempt in _ATTEMPTS.items():
            try:
                attempt(place)
            except OSError as error:
                failed.append((what, error.strerror or str(error)))
        with contextlib.suppress(OSError):
            (place / "clock").touch()
            skew = (place / "clock").stat().st_mtime - time.time()
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return failed, skew, time.monotonic() - began


def _private(place: Path) -> None:
    (place / "private").mkdir(mode=0o700)
    mode = stat.S_IMODE((place / "private").stat().st_mode)
    if mode & 0o077:
        raise OSError(0, f"a folder made 0700 is {mode:04o}")


def _rename(place: Path) -> None:
    (place / "old").write_text("old")
    (place / "new").write_text("new")
    (place / "new").replace(place / "old")
    if (place / "old").read_text() != "new":
        raise OSError(0, "a renamed file has its old content")


def _link(place: Path) -> None:
    (place / "target").write_text("x")
    (place / "link").symlink_to("target")
    os.link(place / "target", place / "hard")  # a run's lease is taken by making a hard link


def _lock(place: Path) -> None:
    with open(place / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


_ATTEMPTS: dict[str, Callable[[Path], None]] = {
    "a private folder": _private, "an atomic rename": _rename, "a link": _link, "flock": _lock,
}  # fmt: skip


# -- Checks which schedulers are on this machine, and the one of the profile in detail


def probe(cluster: Cluster, timeout: float) -> Iterator[Finding]:
    wanted = registry.scheduler(cluster.scheduler)
    yield from which(wanted, [each for each in registry.schedulers() if each.command])
    if wanted.command and not wanted.problem():
        yield from wanted.check(cluster, timeout)


def which(wanted: Scheduler, known: Sequence[Scheduler]) -> Iterator[Finding]:
    none = f"none found: no {' and no '.join(dict.fromkeys(each.command for each in known))} is on PATH"
    present = "; ".join(filter(None, (each.found() for each in known))) or none
    if not wanted.command:
        yield ok("scheduler", present)
        if name := next((each.name for each in known if not each.problem()), None):
            looks = f"`doctor --cluster {name}` checks the scheduler"
            yield ok("scheduler", f"the profile runs on {wanted.title}; {looks}")
    elif why := wanted.problem():
        yield problem("scheduler", f"{present}; the profile needs {wanted.title}", why)
    else:
        yield ok("scheduler", present)


# -- The checks that need the configuration, in the order of the report


def rest(config: Config) -> list[DoctorCheck]:
    cluster, queued = config.cluster, isinstance(registry.scheduler(config.cluster.scheduler), Queue)
    folder, devices = Path(config.runs_dir), socket.if_nameindex  # used in checks, so that an error fails only one
    return [
        DoctorCheck("profile", lambda: _profile(cluster)),
        DoctorCheck("scheduler", lambda: probe(cluster, min(ASK, cluster.submit_timeout)), 4 * ASK),
        DoctorCheck("host", lambda: [probe_host()]),
        DoctorCheck("ports", lambda: [probe_ports(cluster.port_range)]),
        DoctorCheck("interface", lambda: [interface(cluster.interface, dict(devices()).values(), queued=queued)]),
        DoctorCheck("runs_dir", lambda: probe_folder(folder.expanduser().absolute(), queued=queued), 15.0),
        DoctorCheck("tmp", lambda: [probe_temporary()]),
        DoctorCheck("data", _data),
        DoctorCheck("gpus", lambda: [probe_nvidia()]),
    ]


def _profile(cluster: Cluster) -> Iterator[Finding]:
    own = user_config_dir()
    profiles = sorted(path.stem for path in (own / "cluster").glob("*.yaml"))
    text = f"your own settings are in {own}" + (f" (profiles {', '.join(profiles)})" if profiles else "")
    text = text if own.is_dir() else f"no folder of your own settings ({own})"
    settings = {each.name for each in dataclasses.fields(cluster)} - {each.name for each in dataclasses.fields(Cluster)}
    given = [f"{key}={value}" for key, value in vars(cluster).items()
             if key in {"account", *settings} and isinstance(value, str) and value]  # fmt: skip
    yield ok("config", f"cluster={cluster.name} ({cluster.scheduler}{', ' if given else ''}{', '.join(given)}); {text}")


def _data() -> Iterator[Finding]:
    known, problems = workload_hook.data_sets_of_all()
    for each in problems:
        yield problem("data", each, "correct its key hook, or what it names")
    here, missing = [], []
    for name, source in known.items():
        try:
            found = source.find(None)
        except ConfigError as error:
            yield problem("data", f"{name}: {error}", f"launcher data fetch {name}")
            continue
        if found:
            here.append(f"{name} ({found.how})")
        else:
            missing.append(name)
    rest = f"; `data fetch` gets {', '.join(missing)}" if missing else ""
    yield ok("data", f"here: {', '.join(here) or 'none'}{rest}")
