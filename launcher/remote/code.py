"""The code of a submission to a cluster behind ssh: the files of its repository, of which only new ones are sent.

A list of the files (names, sizes, SHA-256) is known by its own digest. If the other side has a folder of this digest,
nothing else is sent. Otherwise it gets the list, asks for the contents that none of its newest folders has, and makes
the folder: as a whole, or not at all. Runs copy it (env.snapshot), so these folders are a cache.
"""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from launcher import bounds
from launcher.environment.repository import SENT, Tree, sent_folder, within
from launcher.errors import ConfigError, RunError

KEPT = 10  # newest folders of code, whose files need not be sent again
UNUSED = 86_400.0  # seconds without a submission after which another folder is removed
PART = ".part-"  # prefix of folders that are being made
LINK, PROGRAM, FILE = "l", "x", "f"  # kinds of files: the content of a link is its target


class CodeFile(NamedTuple):
    kind: str
    size: int  # bytes
    digest: str  # SHA-256 of its content


def digest_of(files: Mapping[str, Sequence[Any]]) -> str:
    return hashlib.sha256(json.dumps([[name, *files[name]] for name in sorted(files)]).encode()).hexdigest()


def listed(tree: Tree, exclude: Sequence[str] = ()) -> tuple[dict[str, CodeFile], list[str]]:
    """Reads the files of a repository, and returns them by path, and links that lead out of it; raises ConfigError."""
    files, left_out = {}, []
    for name in tree.files:
        if any(fnmatch.fnmatch(name, each) or within(name, each.rstrip("/")) for each in exclude):
            continue
        try:
            content = content_of(tree.root, name)
        except FileNotFoundError:  # deleted since
            continue
        except OSError as error:
            raise ConfigError(f"{tree.root / name} cannot be sent: {error.strerror}") from None
        if content is None:
            left_out.append(name)
        else:
            files[name] = CodeFile(content[0], len(content[1]), hashlib.sha256(content[1]).hexdigest())
    return files, left_out


def content_of(root: Path, name: str) -> tuple[str, bytes] | None:
    """Returns kind and content of a file; None: a link that leads out of the repository."""
    path = root / name
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        target = os.readlink(path)
        whole = os.path.normpath(os.path.join(os.path.realpath(path.parent), target))
        real = os.path.realpath(root)
        if not within(whole, real):
            return None
        return LINK, os.fsencode(os.path.relpath(whole, os.path.realpath(path.parent)))
    return PROGRAM if status.st_mode & stat.S_IXUSR else FILE, path.read_bytes()


def send(tree: Tree, files: Mapping[str, CodeFile], wanted: Iterable[str], into: Callable[[bytes], None]) -> None:
    """Sends the contents with these digests, in their order; raises ConfigError: a file has changed since."""
    by_digest = {file.digest: name for name, file in files.items()}
    for digest in wanted:
        name = by_digest[digest]
        content = content_of(tree.root, name)
        if content is None or hashlib.sha256(content[1]).hexdigest() != digest:
            raise ConfigError(f"{tree.root / name} was changed while the code was sent: repeat the command")
        into(content[1])


# -- on the cluster


def folder_of(digest: str) -> Path | None:
    """Returns the folder of the code with this digest, and marks it as used now.

    None: it is not here, or was changed since it was sent; then it is removed.
    Raises OSError: it cannot be read now, so that nothing is known of it.
    """
    folder = sent_folder() / digest
    try:
        made = (folder / SENT).stat().st_mtime_ns
        for name, (kind, size, _) in json.loads((folder / SENT).read_text())["files"].items():
            status = (folder / name).lstat()
            if status.st_mtime_ns > made or (kind != LINK and status.st_size != size):
                raise FileNotFoundError(name)
        os.utime(folder)
        return folder
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError):
        shutil.rmtree(folder, ignore_errors=True)
        return None


def receive(facts: Mapping[str, Any], digest: str, fetch: Callable[[Sequence[str]], Callable[[int], bytes]]) -> Path:
    """Makes the folder of a list of files, and returns it.

    facts: the list (`files`), and the git commit of the repository (`commit`).
    fetch: asks for the contents with these digests; what it returns reads so many bytes of them.
    Raises RunError: the list or a content is damaged. OSError: the folder cannot be written, for instance a full quota.
    """
    files = {str(name): CodeFile(*entry) for name, entry in facts["files"].items()}
    if digest_of(files) != digest or not all(map(_sound, files, files.values())):
        raise RunError("the list of the code's files is damaged: repeat the command")
    base = sent_folder()
    base.mkdir(0o700, parents=True, exist_ok=True)
    sizes = {file.digest: file.size for file in files.values()}
    here = _contents_of(base, sizes)
    missing = [each for each in sizes if each not in here]
    part = Path(tempfile.mkdtemp(prefix=PART, dir=base))
    try:
        (store := part / "contents").mkdir()
        (tree := part / "tree").mkdir()
        read = fetch(missing)
        for each in missing:
            _store(store / each, read(sizes[each]), each)
        for name, file in files.items():
            _make(tree / name, file, store, here)
        text = json.dumps({"digest": digest, "commit": facts.get("commit"), "files": files})
        if len(text) > bounds.CODE_LIST_BYTES:
            raise RunError(f"the list of the code's {len(files)} files has {len(text):,} bytes: send fewer (`exclude`)")
        (tree / SENT).write_text(text)
        folder = base / digest
        try:
            tree.rename(folder)
        except OSError:  # another submission has made it
            if not folder.is_dir():
                raise
        return folder
    finally:
        shutil.rmtree(part, ignore_errors=True)
        _prune(base)


def _sound(name: str, file: CodeFile) -> bool:
    parts = Path(name).parts
    inside = bool(parts) and not os.path.isabs(name) and ".." not in parts and ".git" not in parts
    return inside and parts[0] != SENT and file.kind in (LINK, PROGRAM, FILE) and file.size >= 0


def _contents_of(base: Path, wanted: Collection[str]) -> dict[str, Path]:
    # Returns files of the newest folders by the digests of their contents; somebody may have edited or removed some
    found: dict[str, Path] = {}
    for folder in _newest(base)[:KEPT]:
        with contextlib.suppress(OSError, ValueError, KeyError):
            for name, entry in json.loads((folder / SENT).read_text())["files"].items():
                kind, _, digest = entry
                if kind != LINK and digest in wanted and digest not in found:
                    with contextlib.suppress(OSError):
                        if hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest:
                            found[digest] = folder / name
    return found


def _newest(base: Path) -> list[Path]:
    found = []
    for entry in os.scandir(base):
        with contextlib.suppress(OSError):  # another submission has just removed it
            found.append((entry.stat().st_mtime, entry.path))
    return [Path(path) for _, path in sorted(found, reverse=True) if not os.path.basename(path).startswith(PART)]


def _store(path: Path, content: bytes, digest: str) -> None:
    if hashlib.sha256(content).hexdigest() != digest:
        raise RunError("a file of the code has arrived damaged: repeat the command")
    path.write_bytes(content)


def _make(path: Path, file: CodeFile, store: Path, here: Mapping[str, Path]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = here.get(file.digest, store / file.digest).read_bytes()
    if file.kind == LINK:
        path.symlink_to(os.fsdecode(content))
        return
    path.write_bytes(content)
    path.chmod(0o700 if file.kind == PROGRAM else 0o600)


def _prune(base: Path) -> None:
    for folder in [*_newest(base)[KEPT:], *base.glob(f"{PART}*")]:
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > UNUSED:
                shutil.rmtree(folder, ignore_errors=True)
