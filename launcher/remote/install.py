"""`site init NAME --ssh HOST`: looks at a cluster behind ssh, installs this launcher there, and writes its profile.

The other side needs no internet: wheels of what the launcher requires come along, for its Python and processor. Its own
torch is used. Each installation has a folder of its own, since queued jobs go on with theirs; the link `there` leads to
the newest.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import io
import json
import re
import secrets
import shlex
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher import __version__
from launcher.environment.programs import NEWEST, OLDEST
from launcher.errors import ConfigError, RunError
from launcher.formatting import clean
from launcher.paths import PACKAGE, resource
from launcher.remote.clusters import COMMAND, RemoteCluster, Unreachable
from launcher.remote.ssh import arguments

FOLDER = str(Path(COMMAND).parents[1])  # from the home folder there
ALONE = "antlr4-python3-runtime==4.9.*"  # what Hydra requires, of which there is no wheel
TIMEOUT = 600.0  # seconds for one step over there
_PROBE = """
import json, platform, site, sys, sysconfig
from importlib import metadata
def has(name):
    try:
        __import__(name); return True
    except Exception:
        return False
def version(name, *without):
    try:
        path = [each for each in sys.path if each not in without]
        return next(iter(metadata.distributions(name=name, path=path))).version
    except Exception:
        return None
print("found " + json.dumps({"python": sys.executable, "version": sys.version_info[:3], "machine": platform.machine(),
    "libc": platform.libc_ver()[1], "venv": has("venv") and has("ensurepip"), "torch": version("torch"),
    "numpy": version("numpy", site.getusersitepackages()),
    "packages": sysconfig.get_path("purelib") if sys.prefix != sys.base_prefix else None}))
"""


@dataclass(frozen=True)
class FarPython:
    python: str  # its path
    version: tuple[int, ...]  # (3, 11, 2)
    machine: str  # x86_64, aarch64, ...
    libc: str  # version of glibc; empty: not known
    venv: bool  # whether it makes venvs
    torch: str | None  # version of its torch; None: it has none
    numpy: str | None  # that of its numpy, if it is not the user's own, which the launcher there does not see
    packages: str | None  # if it is that of a venv: the folder of its packages, which a venv made by it would not have

    @property
    def fits(self) -> bool:
        return OLDEST <= self.version[:2] <= NEWEST

    @property
    def text(self) -> str:
        return f"Python {'.'.join(map(str, self.version))} ({self.python})"


def shell(cluster: RemoteCluster, script: str, data: bytes | None = None) -> str:
    """Runs a script there, in a login shell, and returns its output; raises Unreachable, or RunError with its errors.

    data: what it reads on stdin. The script goes there as characters that no shell changes.
    """
    encoded = base64.b64encode(script.encode()).decode()
    words = [*arguments(cluster, prompts=True), f"sh -c 'exec bash -lc \"$(echo {encoded} | base64 -d)\"'"]
    with tempfile.TemporaryFile() as errors:  # no pipe: before OpenSSH 8.5 the control connection keeps it open
        try:
            done = subprocess.run(
                words, input=data or b"", stdout=subprocess.PIPE, stderr=errors, timeout=TIMEOUT, check=False
            )
        except subprocess.TimeoutExpired:
            raise Unreachable(f"{cluster.host}: no answer within {TIMEOUT:g} s") from None
        except OSError as error:
            raise ConfigError(f"ssh cannot be started on this machine: {error.strerror}") from None
        errors.seek(0)
        said = errors.read()
    if done.returncode == 255:
        raise Unreachable(f"{cluster.host}: {clean(said.decode(errors='replace')).strip() or 'no connection'}")
    if done.returncode:
        lines = clean((done.stdout + said).decode(errors="replace")).strip().splitlines()
        raise RunError(f"{cluster.host}: {' '.join(lines[-5:]) or f'exit code {done.returncode}'}")
    return clean(done.stdout.decode(errors="replace"))


def chosen_python(cluster: RemoteCluster, activate: Sequence[str], named: str | None) -> FarPython:
    """Returns the Python there that has torch, else the first that fits. Raises RunError: none fits."""
    names = [named] if named else ["python3", *(f"python3.{minor}" for minor in range(NEWEST[1], OLDEST[1] - 1, -1))]
    if wrong := next((name for name in names if not re.fullmatch(r"[\w./+~-]+", name)), None):
        raise ConfigError(f"--python={wrong}: it is not a path of letters, digits and _ - + . /")
    probe = base64.b64encode(_PROBE.encode()).decode()
    lines = [f"command -v {name} >/dev/null && echo {probe} | base64 -d | {name} -" for name in names]
    said = shell(cluster, "\n".join([*activate, *lines, "exit 0"]))
    found = [
        FarPython(**{**values, "version": tuple(values["version"])})
        for values in (json.loads(line[6:]) for line in said.splitlines() if line.startswith("found {"))
    ]
    fits = [each for each in found if each.fits and each.venv]
    if not fits:
        seen = ", ".join(dict.fromkeys(each.text + ("" if each.venv else " without venv") for each in found)) or "none"
        raise RunError(
            f"{cluster.host} has no Python {OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]} that makes venvs; found: "
            f"{seen}. Load one with --activate 'module load python', or name one with --python PATH"
        )
    return next((each for each in fits if each.torch), fits[0])


def wheel() -> tuple[str, bytes]:
    """Returns the name and content of a wheel of this launcher, made from its own files; raises ConfigError."""
    try:
        distribution = importlib.metadata.distribution("launcher")
    except importlib.metadata.PackageNotFoundError:
        raise ConfigError(f"the launcher is not installed here: `pip install -e {PACKAGE.parent}` first") from None
    files: dict[str, bytes] = {}
    for root, name in (
        (PACKAGE, "launcher"), (PACKAGE.parent / "workloads", "workloads"),
        (PACKAGE.parent / "hydra_plugins", "hydra_plugins"), (resource("conf"), "launcher/conf"),
        (resource("templates"), "launcher/templates"),
    ):  # fmt: skip
        for path in sorted(root.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                files[f"{name}/{path.relative_to(root).as_posix()}"] = path.read_bytes()
    info = f"launcher-{__version__}.dist-info"
    for name in ("METADATA", "entry_points.txt"):
        files[f"{info}/{name}"] = (distribution.read_text(name) or "").encode()
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: launcher\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = [f"{name},sha256={_digest(data)},{len(data)}" for name, data in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""]).encode()
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return f"launcher-{__version__}-py3-none-any.whl", target.getvalue()


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")


def requirements(python: FarPython) -> list[str]:
    """Returns what the launcher requires, without extras and what is the site's: torch, and a numpy that fits it."""
    listed = [each for each in importlib.metadata.requires("launcher") or [] if "extra ==" not in each]
    return [each for each in listed if not each.startswith(("torch", "numpy") if python.numpy else "torch")]


def download(python: FarPython, folder: Path) -> None:
    """Downloads wheels of what the launcher requires there; raises RunError with what pip says."""
    version = ".".join(map(str, python.version[:2]))
    parts = python.libc.split(".")
    newest = int(parts[1]) if len(parts) > 1 and parts[1].isdecimal() else 17
    tags = ["manylinux2014", *(f"manylinux_2_{minor}" for minor in range(17, newest + 1))]
    platforms = [word for tag in tags for word in ("--platform", f"{tag}_{python.machine}")]
    _pip("wheel", "--no-deps", "--wheel-dir", str(folder), ALONE)
    _pip("download", "--only-binary=:all:", "--find-links", str(folder), "--dest", str(folder),
         "--python-version", version, *platforms, *requirements(python))  # fmt: skip


def _pip(*words: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-3:]
        raise RunError(f"pip on this machine: {' '.join(last) or 'it failed'}; it brings what the other side lacks")


def install(cluster: RemoteCluster, python: FarPython, activate: Sequence[str], made: tuple[str, bytes]) -> None:
    """Installs a `wheel` there. Raises RunError or Unreachable; nothing is left of an installation that fails."""
    folder = f"{FOLDER}/{__version__}-{secrets.token_hex(4)}"
    packed = io.BytesIO()
    with tempfile.TemporaryDirectory() as wheels, tarfile.open(fileobj=packed, mode="w") as archive:
        Path(wheels, made[0]).write_bytes(made[1])
        download(python, Path(wheels))
        archive.add(wheels, "wheels")
        script = "\n".join([
            "#!/bin/bash -l", *activate, r"[ $# -gt 0 ] || printf '\036LAUNCHER\n'",
            f'exec "$HOME"/{folder}/venv/bin/python -I -m launcher.cli.ssh_serve "$@"', "",
        ]).encode()  # fmt: skip
        entry = tarfile.TarInfo("launcher")
        entry.size, entry.mode = len(script), 0o700
        archive.addfile(entry, io.BytesIO(script))
    there = str(Path(COMMAND).parent)
    library = f"venv/lib/python{python.version[0]}.{python.version[1]}/site-packages"
    more = f"echo {shlex.quote(python.packages)} >{library}/more.pth &&" if python.packages else ""
    shell(cluster, "\n".join([
        *activate, "umask 077", f"new=$HOME/{folder}", 'mkdir -p "$new" || exit 1', "set_up() {",
        'cd "$new" && tar xf - &&', f"{shlex.quote(python.python)} -m venv --system-site-packages venv &&", more,
        "venv/bin/python -I -m pip --disable-pip-version-check -q install --no-index --no-deps wheels/*.whl",
        '[ $? = 0 ] && rm -rf wheels && venv/bin/python -I -c "import launcher.cli.ssh_serve"', "}",
        f'set_up && ln -sfn "$new" "$HOME/{there}" && exit 0', 'rm -rf "$new"; exit 1',
    ]), packed.getvalue())  # fmt: skip
