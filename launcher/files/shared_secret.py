"""Random bytes that only one owner's processes know. They are kept in files that only the owner can read.

A run has one in its directory (`runs.Run.secret`). Processes that meet without a run (`init()` under srun or mpiexec)
use the one of their user.
"""

from __future__ import annotations

import os
from pathlib import Path

from launcher import paths
from launcher.errors import RunError
from launcher.files import run_files

SIZE = 32  # bytes
VARIABLE, LEAST = "LAUNCHER_SECRET", 16


class SecretError(RunError):
    """There is no secret that all processes could know."""


def of_file(path: Path) -> bytes:
    """The secret in a file, which is made if there is none.

    Raises:
        OSError: it can neither be read nor made.
        SecretError: it is damaged, or others can read it.
    """
    if not path.exists():
        make(path)
    with open(path, "rb") as file:
        mode, secret = os.fstat(file.fileno()).st_mode, file.read(SIZE + 1)
    if len(secret) != SIZE:
        raise SecretError(f"{path} is damaged: it has {len(secret)} bytes instead of {SIZE}; remove it")
    if mode & 0o077:
        raise SecretError(f"others can read {path}: remove it, and another one is made")
    return secret


def make(path: Path) -> None:
    """Makes the file, whole and only once, whoever else does so at the same time.

    Raises:
        OSError: it cannot be made.
    """
    secret = os.urandom(SIZE)
    try:
        run_files.create(path, secret)
    except FileExistsError:
        pass
    except OSError:  # a file system without hard links
        run_files.replace(path, secret, sync=False)


def of_user() -> bytes:
    """The secret of this user: LAUNCHER_SECRET, or a file in the folder of the user's settings.

    Raises:
        SecretError: there is none, and none can be made.
    """
    if given := os.environ.get(VARIABLE):
        if len(given) < LEAST:
            raise SecretError(
                f"{VARIABLE} has {len(given)} characters, and {LEAST} are the least: others could guess it"
            )
        return given.encode()
    path = paths.user_config_dir() / "secret"
    try:
        run_files.make_folder(path.parent)
        return of_file(path)
    except OSError as error:
        raise SecretError(
            f"{path} can neither be read nor made ({error.strerror or error}): set {VARIABLE} to the same random text "
            "in all processes that are to meet"
        ) from None
