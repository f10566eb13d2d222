"""Secrets (random bytes) by which processes of one user recognise each other, in files that only this user can read.

Each run has one in its directory (`Run.secret`); processes that form a group without a run use that of their user.
"""

from __future__ import annotations

import os
from pathlib import Path

from launcher import paths
from launcher.errors import RunError
from launcher.files import run_files

SIZE = 32  # bytes
VARIABLE, MIN_LENGTH = "LAUNCHER_SECRET", 16


class SecretError(RunError):
    """The secret cannot be used: it is missing, damaged, too short, or readable by others."""


def of_file(path: Path) -> bytes:
    """Returns the secret in a file, made if missing; raises OSError, or SecretError (damaged, others can read it)."""
    if not path.exists():
        make(path)
    with open(path, "rb") as file:
        mode, secret = os.fstat(file.fileno()).st_mode, file.read(SIZE + 1)
    if len(secret) != SIZE:
        raise SecretError(f"{path} is damaged: it has {len(secret)} bytes instead of {SIZE}; remove it")
    if mode & 0o077:
        raise SecretError(f"others can read {path}: remove it, and a new one is made")
    return secret


def make(path: Path) -> None:
    """Makes a file with a new secret, atomically, unless another process makes it first; raises OSError."""
    secret = os.urandom(SIZE)
    try:
        run_files.create(path, secret)
    except FileExistsError:
        pass
    except OSError as error:
        if error.errno not in run_files.WITHOUT_LINKS:
            raise  # another process may have made it
        run_files.replace(path, secret, sync=False)


def of_user() -> bytes:
    """Returns this user's secret: $LAUNCHER_SECRET, or that in the user's config folder; raises SecretError."""
    if given := os.environ.get(VARIABLE):
        if len(given) < MIN_LENGTH:
            raise SecretError(f"{VARIABLE} has {len(given)} characters, too few: use {MIN_LENGTH} or more")
        return given.encode()
    path = paths.user_config_dir() / "secret"
    try:
        run_files.make_folder(path.parent)
        return of_file(path)
    except OSError as error:
        raise SecretError(
            f"{path} can neither be read nor made ({error.strerror or error}): set {VARIABLE} to the same random text "
            "in all processes of the job"
        ) from None
