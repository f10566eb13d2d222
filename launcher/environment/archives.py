"""Archives of environments, seen from the login node: made by `env pack`, and looked at before a run is submitted.

Beside FILE there is FILE.json: its checksum, what it was made of, and how long importing torch took from there. The
checksum of a file without that is kept in CACHE/archives/, for it takes as long as the file is large.
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

from launcher.environment import interpreter
from launcher.environment.unpack_on_node import SUFFIXES, ArchiveError, Members
from launcher.errors import ConfigError, RunError
from launcher.files import run_files
from launcher.files.checksum import digest_of
from launcher.files.run_files import write
from launcher.paths import user_cache_dir

LEFT_OUT = ("/share/man/", "/pip-selfcheck")  # of no use in a job


def checked(name: str) -> tuple[str, dict[str, Any]]:
    """An archive's whole path, and the fields of a plan about it.

    Raises:
        ConfigError: it is not there, or no archive.
    """
    key = f"env.archive={name}"
    path = Path(os.path.normpath(os.path.join(os.getcwd(), os.path.expanduser(name))))
    if not path.name.endswith(SUFFIXES):
        raise ConfigError(f"{key} is none of {', '.join(SUFFIXES)}: make one with `env pack FOLDER {path.name}.tar.gz`")
    if not path.is_file():
        raise ConfigError(
            f"{key}: there is no file {path.name} in {path.parent}: make it with `env pack FOLDER {name}`, on a file "
            "system that all nodes share"
        )
    kept = user_cache_dir() / "archives" / f"{hashlib.sha256(os.fsencode(path)).hexdigest()[:16]}.json"
    told = _noted(Path(f"{path}.json"), path) or _noted(kept, path) or _note(kept, path)
    return str(path), {
        "archive_digest": told["sha256"], "archive_of": told.get("of"),
        "archive_import": float(told.get("import_seconds", 0.0)),
    }  # fmt: skip


def _noted(note: Path, path: Path) -> dict[str, Any]:
    """What was written down about an archive, if it is still that one."""
    try:
        told = json.loads(note.read_text())
        return dict(told) if told["sha256"] and told.items() >= _stamp(path).items() else {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _note(note: Path, path: Path) -> dict[str, Any]:
    """Reads an archive, and writes its checksum down."""
    told = {**_stamp(path), "sha256": digest_of(path)}
    with contextlib.suppress(OSError):
        run_files.make_folder(note.parent)
        write(note, json.dumps(told), sync=False)
    return told


def _stamp(path: Path) -> dict[str, int]:
    """By which it is known again."""
    status = path.stat()
    return {"bytes": status.st_size, "mtime_ns": status.st_mtime_ns}


def pack(folder: Path, archive: Path) -> dict[str, Any]:
    """Makes an archive of a venv, which can be unpacked anywhere.

    Returns:
        What was written down beside it.

    Raises:
        ConfigError: the folder is none that ranks could run in, or the archive's name is none.
        RunError: it cannot be written.
    """
    if not archive.name.endswith(SUFFIXES):
        raise ConfigError(f"{archive} is none of {', '.join(SUFFIXES)}")
    interpreter.checked(str(folder))
    if (folder / "conda-meta").is_dir():
        raise ConfigError(
            f"{folder} is conda's, whose files name their folder: `conda-pack -p {folder} -o {archive}` "
            "(pip install conda-pack) makes an archive for env.archive"
        )
    if archive.resolve().is_relative_to(folder.resolve()):
        raise ConfigError(f"{archive} would be within {folder}: write it elsewhere")
    seconds = import_seconds(folder / "bin/python")
    part, members = archive.with_name(run_files.temporary_name(archive.name)), Members()
    try:
        with _compressed(part, archive.name) as stream, tarfile.open(fileobj=stream, mode="w|") as tar:
            for path in sorted(folder.rglob("*")):
                if not any(each in f"/{path.relative_to(folder)}" for each in LEFT_OUT):
                    tar.add(path, str(path.relative_to(folder)), recursive=False, filter=members.allowed)
        part.replace(archive)
    except (OSError, subprocess.SubprocessError, ArchiveError) as error:
        part.unlink(missing_ok=True)
        raise RunError(f"{archive} cannot be written: {error}") from None
    told = {
        "sha256": digest_of(archive), **_stamp(archive), "of": str(folder), "import_seconds": round(seconds, 2),
    }  # fmt: skip
    Path(f"{archive}.json").write_text(json.dumps(told, indent=1) + "\n")
    return told


def import_seconds(python: Path) -> float:
    """How long a Python of an environment takes to import torch, as it is now (the second time is quicker)."""
    began = time.monotonic()
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    try:
        subprocess.run([str(python), "-c", "import torch"], check=True, cwd="/", env=environ, capture_output=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise RunError(f"{python} cannot import torch: {error}") from None
    return time.monotonic() - began


@contextlib.contextmanager
def _compressed(path: Path, name: str) -> Iterator[IO[bytes]]:
    # Lazily: only an archive that is packed with gzip needs it
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
    process = subprocess.Popen(["zstd", "-q", "-T0", "-3", "-o", str(path)], stdin=subprocess.PIPE)
    assert process.stdin is not None
    yield process.stdin
    process.stdin.close()
    if process.wait():
        raise OSError(f"zstd ended with {process.returncode}")


def default_folder() -> Path:
    """The environment that this Python is of.

    Raises:
        ConfigError: it is of none.
    """
    if not (Path(sys.prefix) / "pyvenv.cfg").is_file():
        raise ConfigError(f"{sys.executable} is of no venv: name the FOLDER of one")
    return Path(sys.prefix)
