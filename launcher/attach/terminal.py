"""This terminal as that of a shell at the other end of a connection; see `launcher.attach.beside`."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import sys
import termios
import tty
from collections.abc import Iterator

from launcher.attach.beside import frame, window


def sit_at(connection: socket.socket) -> int:
    """Hands on what is typed, and shows what comes, until the other end closes.

    Returns:
        0.
    """
    keyboard, screen = sys.stdin.fileno(), sys.stdout.fileno()
    sources: list[int | socket.socket] = [connection, keyboard]
    with _raw(keyboard), _resizing(connection):
        while True:
            ready, _, _ = select.select(sources, [], [])
            if connection in ready:
                data = connection.recv(1 << 16)
                if not data:
                    return 0
                while data:
                    data = data[os.write(screen, data) :]
            if keyboard in ready:
                typed = os.read(keyboard, 1 << 12)
                if not typed:  # a pipe that has ended: the shell is told, and may still have something to say
                    sources.remove(keyboard)
                connection.sendall(frame(b"d", typed or b"\x04"))


@contextlib.contextmanager
def _raw(keyboard: int) -> Iterator[None]:
    """Every key is the other end's, Ctrl-C too."""
    if not os.isatty(keyboard):
        yield
        return
    before = termios.tcgetattr(keyboard)
    tty.setraw(keyboard)
    try:
        yield
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


@contextlib.contextmanager
def _resizing(connection: socket.socket) -> Iterator[None]:
    """Tells the size of this window now and whenever it changes."""

    def tell(*_: object) -> None:
        size = shutil.get_terminal_size()
        connection.sendall(window(size.lines, size.columns))

    tell()
    before = signal.signal(signal.SIGWINCH, tell)
    try:
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)
