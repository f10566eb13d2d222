"""The side of a cluster behind ssh: runs one command for `launcher.remote.ssh`, which describes what passes.

    python -I -m launcher.cli.ssh_serve [REQUEST]

The request comes on stdin, or as an argument if the command has a terminal. Its fields:

| field | meaning |
|---|---|
| arguments | of the launcher, as they would be typed here |
| columns | width of the terminal there |
| follows | whether the command ends when the connection does, such as `logs -f`; any other is completed |
| asks | whether somebody can answer a question |
| secrets | values of environment variables, by name |
| output | whether the command writes one file (`-o FILE`), which is sent |
| paths | absolute paths in the arguments that exist there, as typed (`~/data`): they must exist here |
| code | the code to run: digest of its list, folder in it; null: none |
| run | id of the run or sweep that is submitted |
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import importlib
import io
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, TextIO, cast

from launcher import __version__, io_bounds
from launcher.environment.code_files import FILE, LINK, PROGRAM, SENT, CodeFile, digest_of, sent_folder
from launcher.errors import BAD_INPUT, FAILED, ConfigError, LauncherError, RunError, explain
from launcher.paths import SENDING, default_runs_dir
from launcher.remote.ssh import PROTOCOL, START

# Its module is not imported as another is: `python -m launcher` runs it.
MODULE = "launcher.__main__"
PATIENCE = 5.0  # seconds that a command which follows something has to end after the connection did


class Output(io.TextIOBase):
    """A stream to the other side. When the connection is lost, it drops what is written, and the command goes on.

    side: what is written becomes frames of it (`err`), so that it keeps its place among the output; None: it is output.
    """

    encoding = "utf-8"

    def __init__(self, file: IO[bytes], side: Side | None = None) -> None:
        self._file, self._side, self._lost, self._lock = file, side, False, threading.Lock()

    @property
    def buffer(self) -> Output:
        return self

    def write(self, text: str | bytes) -> int:
        if self._side is not None:
            self._side.tell(err=text if isinstance(text, str) else text.decode(errors="replace"))
            return len(text)
        data = text if isinstance(text, bytes) else text.encode(errors="surrogateescape")
        with self._lock:
            try:
                if not self._lost:
                    self._file.write(data)
                    self._file.flush()
            except OSError:
                self._lost = True
        return len(text)

    def fileno(self) -> int:
        return self._file.fileno()


class Side:
    def __init__(self, out: Output, mark: str) -> None:
        self.out, self._start = out, START + mark.encode()
        self.given = sys.stdin.buffer  # a command gets another stdin

    def tell(self, **frame: Any) -> None:
        self.out.write(self._start + json.dumps(frame).encode() + b"\n")

    def ask(self, **frame: Any) -> dict[str, Any]:
        """Returns the answer to a frame; raises LauncherError: the connection is lost."""
        self.tell(**frame)
        line = self.given.readline()
        if not line.endswith(b"\n"):
            raise LauncherError("the connection was lost: nothing was submitted")
        found: dict[str, Any] = json.loads(line)
        return found

    def exactly(self, size: int) -> bytes:
        """Returns the next `size` bytes; raises LauncherError: the connection is lost."""
        if len(data := self.given.read(size)) < size:
            raise LauncherError("the connection was lost: nothing was submitted")
        return data


class Asking(io.TextIOBase):
    """Stdin of a command: a question is passed on to the user at the other side."""

    def __init__(self, side: Side, asks: bool) -> None:
        self._side, self._asks = side, asks

    def isatty(self) -> bool:
        return self._asks

    def readline(self, _: int = -1) -> str:  # type: ignore[override]
        return str(self._side.ask(ask=True).get("answer", ""))


def launcher(words: list[str]) -> int:
    code: int = importlib.import_module(MODULE).main(words)
    return code


def main(arguments: Sequence[str]) -> int:
    if arguments:
        return _in_terminal(arguments[0])
    request = json.loads(sys.stdin.buffer.readline() or b"null")
    if request is None:
        return FAILED
    side = Side(Output(sys.stdout.buffer), request["mark"])
    if request["protocol"] != PROTOCOL:
        older = "there" if request["protocol"] > PROTOCOL else "here"
        side.tell(refused=(
            f"the launcher there is {__version__}, and here {request['launcher']}, which do not understand each other: "
            f"the one {older} is older; `site init NAME --ssh HOST --force` installs this one there"
        ))  # fmt: skip
        return FAILED
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    sys.stdout = cast("TextIO", side.out)
    sys.stderr = cast("TextIO", Output(sys.stderr.buffer, side))
    try:
        exit_code = _run(request, side)
    except LauncherError as error:
        print(f"launcher: {error}", file=sys.stderr)
        exit_code = error.exit_code
    except OSError as error:
        if (words := explain(error)) is None:
            raise
        print(f"launcher: {words}", file=sys.stderr)
        exit_code = FAILED
    run = request.get("run")
    side.tell(exit=exit_code, run=bool(run) and os.path.lexists(default_runs_dir() / str(run)))
    return exit_code


def _run(request: Mapping[str, Any], side: Side) -> int:
    words = [str(each) for each in request["arguments"]]
    _prepare(request)
    if absent := [path for path in request.get("paths", ()) if not os.path.lexists(os.path.expanduser(path))]:
        raise ConfigError(
            f"{absent[0]} is on the machine where you typed this, and not on this cluster: data is never sent. Copy "
            "it, and name its path there"
        )
    if (sent := request.get("code")) is not None:
        if request.get("run"):
            _require_same_code(default_runs_dir() / str(request["run"]) / "code", sent["digest"])
        folder = folder_of(sent["digest"]) or _receive(sent["digest"], side)
        (inner := folder / sent["folder"]).mkdir(parents=True, exist_ok=True)  # git knows no empty folders
        os.chdir(inner)
    if request.get("follows"):
        threading.Thread(target=_end_with_connection, daemon=True).start()
    else:
        sys.stdin = cast("TextIO", Asking(side, bool(request.get("asks"))))
    if not request.get("output"):
        return launcher(words)
    with _folder_to_send() as folder_of_file:
        path = Path(folder_of_file, "file")
        exit_code = launcher([*words, "-o", str(path)])
        if exit_code == 0:
            with path.open("rb") as file:
                side.tell(file=os.fstat(file.fileno()).st_size)
                while data := file.read(1 << 20):
                    side.out.write(data)
        return exit_code


def _folder_to_send() -> tempfile.TemporaryDirectory[str]:
    with contextlib.suppress(OSError):  # /tmp of a login node may be too small for a checkpoint
        return tempfile.TemporaryDirectory(prefix=SENDING, dir=default_runs_dir())
    return tempfile.TemporaryDirectory(prefix=SENDING)


def _require_same_code(folder: Path, digest: str) -> None:
    # The plan of a repeated submission is compared where it is made
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        if json.loads((folder / SENT).read_text())["digest"] != digest:
            name = folder.parent.name
            raise ConfigError(f"{name} is there already with other code: choose another run_id, or sweep.id")


def _prepare(request: Mapping[str, Any]) -> None:
    sys.argv[:] = ["launcher"]  # for commands that are shown in hints
    os.environ["COLUMNS"] = str(int(request.get("columns") or 80))
    os.environ.update({str(name): str(value) for name, value in (request.get("secrets") or {}).items()})


def _receive(digest: str, side: Side) -> Path:
    facts = side.ask(list=digest)

    def fetch(missing: Sequence[str]) -> Callable[[int], bytes]:
        side.tell(contents=missing)
        return side.exactly

    return receive(facts, digest, fetch)


def _end_with_connection() -> None:
    with contextlib.suppress(OSError):
        while os.read(0, 1 << 16):
            pass
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(PATIENCE)
    os._exit(BAD_INPUT)


def _in_terminal(word: str) -> int:
    request = json.loads(zlib.decompress(base64.urlsafe_b64decode(word)))
    if request["protocol"] != PROTOCOL:
        print(f"launcher: the launcher there is {__version__}, and here {request['launcher']}", file=sys.stderr)
        return FAILED
    sys.argv[:] = ["launcher"]
    return launcher([str(each) for each in request["arguments"]])


# -- The code of a submission: a folder for the digest of its list, made as a whole or not at all
#
# Runs copy it (env.snapshot), so these folders are a cache.


KEPT = 10  # newest folders of code, whose files need not be sent again
UNUSED = 86_400.0  # seconds without a submission after which another folder is removed
PART = ".part-"  # prefix of folders that are being made


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
        if len(text) > io_bounds.CODE_LIST_BYTES:
            raise RunError(
                f"too many files of code: the list of all {len(files)} has {len(text):,} bytes: send fewer (`exclude`)"
            )
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
