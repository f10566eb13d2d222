"""The files of a repository that a copy of its code has: those that git tracks or would add, as they are now."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from launcher import io_bounds
from launcher.errors import NOT_ON_PATH, ConfigError, RunError
from launcher.fast_dataclasses import Struct
from launcher.files.retried_reads import Wrong, read_json, retry_read, unwrap, unwrap_or
from launcher.formatting import format_size, plural, rough_size
from launcher.paths import user_cache_dir

SNAPSHOT = "env.snapshot=true"
SHOWN = 5  # files that are named when a copy is too large
# In a folder whose files were sent from another machine: it lists them, in the place of git.
SENT = ".launcher-code.json"
TIMEOUT = 60.0  # seconds for one git command
PIECE = 1 << 16  # bytes of a file that are read at once


class Tree(Struct):
    root: Path  # folder of the repository
    files: dict[str, int]  # size of each file in bytes, by its path relative to `root`

    @property
    def size(self) -> int:
        return sum(self.files.values())


def tree(folder: str, without: Sequence[str] = (), key: str = SNAPSHOT) -> Tree:
    """Returns the files, but for folders of runs, that a copy of a repository would have; ConfigError names `key`."""
    if (sent := sent_tree(folder)) is not None:
        return sent.tree
    root = Path(os.path.realpath(_git(key, folder, "rev-parse", "--show-toplevel").removesuffix("\n")))
    inner = (each for each in map(os.path.realpath, without) if each != str(root) and within(each, str(root)))
    left_out = tuple(each + os.sep for each in inner)
    files = {}
    for name in _names(key, root, ""):
        path = root / name
        if (status := _status(key, path, path.lstat)) is None:  # deleted, but still in git's index
            continue
        where = os.path.join(os.path.realpath(path.parent), path.name)
        if where != str(path):  # as git sees it, it is deleted: one of its folders is a link now
            continue
        if (stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)) and not where.startswith(left_out):
            files[name] = status.st_size
    return Tree(root, files)


def sent_folder() -> Path:
    """Returns the folder of all code that was sent to this machine. It is a cache: runs have copies of their own."""
    return user_cache_dir() / "code"


class SentTree(Struct):
    tree: Tree
    digest: str  # of the list
    commit: str | None  # the git commit there, as `commit_of` returns it


def sent_tree(folder: str) -> SentTree | None:
    """Returns the files that were sent with a folder; None: it was not sent. Raises RunError: its list is damaged."""
    trees, here = os.path.realpath(sent_folder()), os.path.realpath(folder)
    if here == trees or not within(here, trees):
        return None
    root = Path(trees, os.path.relpath(here, trees).partition(os.sep)[0])
    found = read_json(root / SENT, io_bounds.CODE_LIST_BYTES)
    facts: Any = None if isinstance(found, Wrong) else unwrap(found)
    try:
        files = {name: entry[1] for name, entry in facts["files"].items()}
        return SentTree(Tree(root, {**files, SENT: 0}), facts["digest"], facts["commit"])
    except (LookupError, TypeError, AttributeError):
        raise RunError(f"{root / SENT} is missing or damaged: remove {root}, and submit again") from None


def _names(key: str, root: Path, prefix: str) -> Iterator[str]:
    listed = _git(key, str(root / prefix), "ls-files", "--cached", "--others", "--exclude-standard", "-z").split("\0")
    for name in dict.fromkeys(filter(None, listed)):
        inner = os.path.join(prefix, name)
        path = root / inner
        status = _status(key, path, path.lstat)
        if status is None or not stat.S_ISDIR(status.st_mode):
            yield inner
        elif _status(key, path / ".git", (path / ".git").stat) is not None:  # else a submodule that was never fetched
            yield from _names(key, root, os.path.normpath(inner))


def _status(key: str, path: Path, read: Callable[[], os.stat_result]) -> os.stat_result | None:
    return unwrap_or(ConfigError, retry_read(read, path), f"{key}: ")


def _git(key: str, folder: str, *arguments: str, timeout: float = TIMEOUT) -> str:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, text=True, errors="surrogateescape",
            timeout=timeout, check=False,
        )  # fmt: skip
    except NOT_ON_PATH:
        raise ConfigError(f"{key} asks git for the files to copy, and git is not on this machine's PATH") from None
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{key}: git {arguments[0]} in {folder} did not end within {timeout:g} s") from None
    if done.returncode == 0:
        return done.stdout
    if "not a git repository" in done.stderr:
        raise ConfigError(
            f"{key}: {folder} is in no git repository: `git init` there (what .gitignore names is not copied)"
            + (", or leave env.snapshot out" if key == SNAPSHOT else "")
        )
    raise ConfigError(f"{key}: git {arguments[0]} in {folder} failed: {done.stderr.strip()}")


def check(found: Tree, limit: int, key: str = SNAPSHOT) -> None:
    """Raises ConfigError, with the largest files, if a snapshot would be larger than `limit` bytes."""
    if found.size <= limit:
        return
    largest = sorted(found.files, key=lambda name: -found.files[name])[:SHOWN]
    lines = "\n".join(f"  {rough_size(found.files[name]):>8}  {name}" for name in largest)
    raise ConfigError(
        f"{key}: the code in {found.root} is {rough_size(found.size)} ({plural(len(found.files), 'file')}),"
        f" and env.snapshot_limit={format_size(limit)}. The largest:\n{lines}\n"
        "Add what is no code to .gitignore (and `git rm --cached` what is tracked), or raise env.snapshot_limit"
    )


def within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def commit_of(folder: str) -> str | None:
    """Returns the git commit of a folder, with a `+` if files have changed since; None: not known."""
    if (sent := sent_tree(folder)) is not None:
        return sent.commit
    if any((each / ".git").exists() for each in (Path(folder), *Path(folder).parents)):
        words = ("describe", "--always", "--dirty=+", "--abbrev=40", "--exclude=*")
        with contextlib.suppress(ConfigError, OSError):
            return _git("the commit", folder, *words, timeout=5).strip() or None
    return None


# -- The list of the files that are sent to another machine


LINK, PROGRAM, FILE = "l", "x", "f"  # kinds of files: the content of a link is its target


class CodeFile(NamedTuple):
    kind: str
    size: int  # bytes
    digest: str  # SHA-256 of its content


def digest_of(files: Mapping[str, Sequence[Any]]) -> str:
    return hashlib.sha256(json.dumps([[name, *files[name]] for name in sorted(files)]).encode()).hexdigest()


def listed(tree: Tree) -> tuple[dict[str, CodeFile], list[str]]:
    """Reads the files of a repository, and returns them by path, and links that lead out of it; raises ConfigError."""
    files, left_out = {}, []
    for name in tree.files:
        try:
            file = read_file(tree.root, name)
        except FileNotFoundError:  # deleted since
            continue
        except OSError as error:
            raise ConfigError(f"{tree.root / name} cannot be sent: {error.strerror}") from None
        if file is None:
            left_out.append(name)
        else:
            files[name] = file
    return files, left_out


def read_file(
    root: Path, name: str, into: Callable[[bytes], object] = lambda _: None, most: int = sys.maxsize
) -> CodeFile | None:
    """Reads `most` bytes of a file, in pieces that `into` gets; None: a link that leads out of the repository."""
    path = root / name
    source: IO[bytes]
    if stat.S_ISLNK(mode := path.lstat().st_mode):
        folder = os.path.realpath(path.parent)
        whole = os.path.normpath(os.path.join(folder, os.readlink(path)))
        if not within(whole, os.path.realpath(root)):
            return None
        kind, source = LINK, io.BytesIO(os.fsencode(os.path.relpath(whole, folder)))
    else:
        kind, source = PROGRAM if mode & stat.S_IXUSR else FILE, path.open("rb")
    size, digest = 0, hashlib.sha256()
    with source:
        while data := source.read(min(PIECE, most - size)):
            digest.update(data)
            size += len(data)
            into(data)
    return CodeFile(kind, size, digest.hexdigest())
