"""Makes archives of environments (`env pack`) and checks them before submission, on the login node.

Facts about an archive FILE, such as its checksum, are in FILE.json, or cached in the user's cache folder (archives/).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from launcher.environment import programs
from launcher.environment.unpack_on_node import SUFFIXES, ArchiveError, Members
from launcher.errors import ConfigError, RunError
from launcher.files import run_files
from launcher.files.run_files import digest_of, write
from launcher.own_module import program
from launcher.paths import user_cache_dir
from launcher.plan.plan import Archive

EXCLUDED = ("/share/man/", "/pip-selfcheck")  # paths with one of these are not packed: a job does not need them


def checked(name: str) -> tuple[str, Archive]:
    """Returns env.archive's absolute path, and the plan's section `archive`; raises ConfigError."""
    key = f"env.archive={name}"
    path = programs.absolute(name)
    if not path.name.endswith(SUFFIXES):
        raise ConfigError(
            f"{key} is none of {', '.join(SUFFIXES)}: make one with `{program()} env pack FOLDER {path.name}.tar.gz`"
        )
    if not path.is_file():
        raise ConfigError(
            f"{key}: there is no file {path.name} in {path.parent}: make it with `{program()} env pack FOLDER {name}`, "
            "on a file system that all nodes share"
        )
    cached = user_cache_dir() / "archives" / f"{hashlib.sha256(os.fsencode(path)).hexdigest()[:16]}.json"
    facts = _read_facts(Path(f"{path}.json"), path) or _read_facts(cached, path) or _compute_facts(cached, path)
    return str(path), Archive(facts["sha256"], facts.get("of"), float(facts.get("import_seconds", 0.0)))


def _read_facts(file: Path, path: Path) -> dict[str, Any]:
    try:
        facts = json.loads(file.read_text())
        return dict(facts) if facts["sha256"] and facts.items() >= _stamp(path).items() else {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _compute_facts(file: Path, path: Path) -> dict[str, Any]:
    facts = {**_stamp(path), "sha256": digest_of(path)}
    with contextlib.suppress(OSError):
        run_files.make_folder(file.parent)
        write(file, json.dumps(facts), sync=False)
    return facts


def _stamp(path: Path) -> dict[str, int]:
    status = path.stat()
    return {"bytes": status.st_size, "mtime_ns": status.st_mtime_ns}


def pack(folder: Path, archive: Path) -> dict[str, Any]:
    """Packs a venv into an archive, and writes its facts, with the time that torch's import takes, to FILE.json.

    Raises ConfigError: ranks could not run in this venv, or the archive's name has a wrong suffix. RunError: no space.
    """
    if not archive.name.endswith(SUFFIXES):
        raise ConfigError(f"{archive} is none of {', '.join(SUFFIXES)}")
    programs.checked(str(folder), "")
    if (folder / "conda-meta").is_dir():
        raise ConfigError(
            f"{folder} is an environment of conda, whose files contain its path: `conda-pack -p {folder} -o {archive}` "
            "(pip install conda-pack) makes an archive for env.archive"
        )
    if archive.resolve().is_relative_to(folder.resolve()):
        raise ConfigError(f"{archive} would be within {folder}: write it elsewhere")
    seconds = import_seconds(folder / "bin/python")
    part, members = archive.with_name(run_files.temporary_name(archive.name)), Members()
    try:
        with _compressed(part, archive.name) as stream, tarfile.open(fileobj=stream, mode="w|") as tar:
            for path in sorted(folder.rglob("*")):
                if not any(each in f"/{path.relative_to(folder)}" for each in EXCLUDED):
                    tar.add(path, str(path.relative_to(folder)), recursive=False, filter=members.allowed)
        part.replace(archive)
    except (OSError, subprocess.SubprocessError, ArchiveError) as error:
        part.unlink(missing_ok=True)
        raise RunError(f"{archive} cannot be written: {error}") from None
    facts = {"sha256": digest_of(archive), **_stamp(archive), "of": str(folder), "import_seconds": round(seconds, 2)}
    Path(f"{archive}.json").write_text(json.dumps(facts, indent=1) + "\n")
    return facts


def import_seconds(python: Path) -> float:
    """Returns how many seconds an interpreter takes to import torch, with the page cache; raises RunError."""
    began = time.monotonic()
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    try:
        subprocess.run([str(python), "-c", "import torch"], check=True, cwd="/", env=environ, capture_output=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise RunError(f"{python} cannot import torch: {error}") from None
    return time.monotonic() - began


@contextlib.contextmanager
def _compressed(path: Path, name: str) -> Iterator[IO[bytes]]:
    import gzip

    if name.endswith((".gz", ".tgz")):
        with gzip.open(path, "wb", compresslevel=1) as stream:
            yield stream  # type: ignore[misc]
        return
    if not name.endswith(".zst"):
        with path.open("wb") as stream:
            yield stream
        return
    if shutil.which("zstd") is None:
        raise ConfigError(f"{name} needs the command zstd, which is not on PATH: use .tar.gz, or .tar")
    with subprocess.Popen(["zstd", "-q", "-T0", "-3", "-o", str(path)], stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        yield process.stdin
    if process.returncode:
        raise OSError(f"zstd ended with {process.returncode}")


def default_folder() -> Path:
    if not (Path(sys.prefix) / "pyvenv.cfg").is_file():
        raise ConfigError(f"{sys.executable} belongs to no venv: name the FOLDER of one")
    return Path(sys.prefix)
