"""The side of a cluster behind ssh: runs one command for `launcher.remote.command`, which describes what passes.

    python -I -m launcher.cli.far [REQUEST]

The request comes on stdin, or as an argument if the command has a terminal. Its fields:

| field | meaning |
|---|---|
| arguments | of the launcher, as they would be typed here |
| columns | width of the terminal there |
| follows | whether the command ends when the connection does, such as `logs -f`; any other is completed |
| asks | whether somebody can answer a question |
| secrets | values of environment variables, by name |
| output | whether the command writes one file (`-o FILE`), which is sent |
| paths | absolute paths in the arguments that exist there: they must exist here |
| code | the code to run: digest of its list, folder in it; null: none |
| run | id of the run or sweep that is submitted |
"""

from __future__ import annotations

import base64
import contextlib
import importlib
import json
import os
import signal
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, TextIO, cast

from launcher import __version__
from launcher.environment.repository import SENT
from launcher.errors import BAD_INPUT, FAILED, ConfigError, LauncherError
from launcher.files.shared_files import explain
from launcher.paths import default_runs_dir
from launcher.remote import code
from launcher.remote.command import PROTOCOL, START

# Its module is not imported as another is: `python -m launcher` runs it.
MODULE = "launcher.__main__"
PATIENCE = 5.0  # seconds that a command which follows something has to end after the connection did


class Output:
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

    def writelines(self, lines: Sequence[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return False

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


class Asking:
    """Stdin of a command: a question is passed on to the user at the other side."""

    def __init__(self, side: Side, asks: bool) -> None:
        self._side, self._asks = side, asks

    def isatty(self) -> bool:
        return self._asks

    def readline(self, _: int = -1) -> str:
        return str(self._side.ask(ask=True).get("answer", ""))

    def fileno(self) -> int:
        raise OSError("no terminal")


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
    if absent := [path for path in request.get("paths", ()) if not os.path.lexists(path)]:
        raise ConfigError(
            f"{absent[0]} is on the machine where you typed this, and not on this cluster: data is never sent. Copy "
            "it, and name its path there"
        )
    if (sent := request.get("code")) is not None:
        if request.get("run"):
            _require_same_code(default_runs_dir() / str(request["run"]) / "code", sent["digest"])
        folder = code.folder_of(sent["digest"]) or _receive(sent["digest"], side)
        (inner := folder / sent["folder"]).mkdir(parents=True, exist_ok=True)  # git knows no empty folders
        os.chdir(inner)
    if request.get("follows"):
        threading.Thread(target=_end_with_connection, daemon=True).start()
    else:
        sys.stdin = cast("TextIO", Asking(side, bool(request.get("asks"))))
    if not request.get("output"):
        return launcher(words)
    with tempfile.TemporaryDirectory() as folder_of_file:
        path = Path(folder_of_file, "file")
        exit_code = launcher([*words, "-o", str(path)])
        if exit_code == 0:
            with path.open("rb") as file:
                side.tell(file=os.fstat(file.fileno()).st_size)
                while data := file.read(1 << 20):
                    side.out.write(data)
        return exit_code


def _require_same_code(folder: Path, digest: str) -> None:
    # The plan of a repeated submission is compared where it is made
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        if json.loads((folder / SENT).read_text())["digest"] != digest:
            raise ConfigError(f"{folder.parent.name} is there already with other code: choose another run_id")


def _prepare(request: Mapping[str, Any]) -> None:
    sys.argv[:] = ["launcher"]  # for commands that are shown in hints
    os.environ["COLUMNS"] = str(int(request.get("columns") or 80))
    os.environ.update({str(name): str(value) for name, value in (request.get("secrets") or {}).items()})


def _receive(digest: str, side: Side) -> Path:
    facts = side.ask(list=digest)

    def fetch(missing: Sequence[str]) -> Callable[[int], bytes]:
        side.tell(contents=missing)
        return side.exactly

    return code.receive(facts, digest, fetch)


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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
