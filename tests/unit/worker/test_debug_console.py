"""The socket between a rank's debugger and a terminal: prompts, terminals that leave, come and replace."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from launcher.worker.debugger import Console, private_folder


@pytest.fixture
def console() -> Iterator[Console]:
    folder = private_folder()
    made = Console(folder)
    yield made
    made.end()
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()


class Terminal:
    """The other end, as a test plays it."""

    def __init__(self, path: str | Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(60)
        self._socket.connect(str(path))
        self._file: IO[Any] = self._socket.makefile("rw")

    def send(self, **message: Any) -> None:
        self._file.write(json.dumps(message) + "\n")
        self._file.flush()

    def raw(self, text: str) -> None:
        self._file.write(text)
        self._file.flush()

    def receive(self) -> dict[str, Any] | None:
        line = self._file.readline()
        return json.loads(line) if line else None

    def leave(self) -> None:
        self._file.close()
        self._socket.close()


def asks(console: Console, *prompts: str) -> Callable[[], list[str]]:
    """A debugger that asks for lines, in a thread; returns them when it is called."""
    lines: list[str] = []

    def ask() -> None:
        for prompt in prompts:
            console.write(prompt)
            lines.append(console.readline())

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()

    def end() -> list[str]:
        thread.join(60)
        assert not thread.is_alive()
        return lines

    return end


def test_what_has_a_line_break_is_text_and_the_rest_is_the_prompt(console: Console) -> None:
    end = asks(console, "> train.py(3)\n(Pdb) ", "(Pdb) ")
    terminal = Terminal(console.path)
    assert terminal.receive() == {"text": "> train.py(3)\n"}
    assert terminal.receive() == {"prompt": "(Pdb) "}
    terminal.send(line="n")
    assert terminal.receive() == {"prompt": "(Pdb) "}
    terminal.send(line="p 'ä\u2028'")
    assert end() == ["n\n", "p 'ä\u2028'\n"]
    terminal.leave()


def test_a_terminal_that_leaves_may_come_back_and_sees_where_it_is(console: Console) -> None:
    end = asks(console, "> train.py(3)\n(Pdb) ", "3\n(Pdb) ")
    first = Terminal(console.path)
    assert first.receive() == {"text": "> train.py(3)\n"}
    first.leave()
    again = Terminal(console.path)
    assert again.receive() == {"text": "> train.py(3)\n"}
    assert again.receive() == {"prompt": "(Pdb) "}
    again.send(line="p x")
    again.receive()
    again.leave()
    third = Terminal(console.path)
    assert third.receive() == {"text": "> train.py(3)\n(Pdb) p x\n3\n"}
    assert third.receive() == {"prompt": "(Pdb) "}
    third.send(line="c")
    assert end() == ["p x\n", "c\n"]
    console.runs(steps=False)
    assert third.receive() == {"runs": True}
    third.leave()


def test_a_rank_with_more_open_files_than_select_takes_has_a_console() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 1200:
        pytest.skip("no more than 1,200 files may be open here")
    folder = private_folder()
    with contextlib.ExitStack() as held:
        held.callback(shutil.rmtree, folder)
        held.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        while (descriptor := os.dup(0)) < 1023:
            held.callback(os.close, descriptor)
        held.callback(os.close, descriptor)
        console = Console(folder)
        held.callback(console.end)
        asked = asks(console, "(Pdb) ")
        terminal = Terminal(console.path)
        assert terminal.receive()
        assert console.attended()
        terminal.send(line="c")
        assert asked() == ["c\n"]


def test_a_second_terminal_takes_over(console: Console) -> None:
    end = asks(console, "(Pdb) ")
    first = Terminal(console.path)
    assert first.receive() == {"prompt": "(Pdb) "}
    second = Terminal(console.path)
    assert second.receive() == {"prompt": "(Pdb) "}
    assert first.receive() == {"bye": "another terminal has taken over"}
    assert first.receive() is None
    second.send(line="c")
    assert end() == ["c\n"]
    first.leave()
    second.leave()


def test_nonsense_is_ignored(console: Console) -> None:
    end = asks(console, "(Pdb) ")
    terminal = Terminal(console.path)
    terminal.receive()
    terminal.raw('this is no JSON\n[1]\n{"other": 1}\n')
    terminal.send(line="q")
    assert end() == ["q\n"]
    terminal.leave()


def test_a_flood_without_a_line_break_is_cut_off(console: Console) -> None:
    end = asks(console, "(Pdb) ")
    flood = Terminal(console.path)
    flood.receive()
    with pytest.raises(OSError):
        for _ in range(100):
            flood.raw("x" * (1 << 16))
    terminal = Terminal(console.path)
    terminal.receive()
    terminal.send(line="c")
    assert end() == ["c\n"]
    terminal.leave()


def test_it_is_noticed_that_a_terminal_has_left(console: Console) -> None:
    end = asks(console, "(Pdb) ")
    terminal = Terminal(console.path)
    terminal.receive()
    terminal.send(line="c")
    end()
    assert console.attended()
    terminal.leave()
    assert not console.attended()


def test_nobody_else_gets_to_the_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    for place in (tmp_path, long):
        monkeypatch.setattr("tempfile.tempdir", str(place))
        folder = private_folder()
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert len(str(folder)) <= 90
        console = Console(folder)
        console.end()
        (folder / Path(console.path).name).unlink()
        folder.rmdir()
