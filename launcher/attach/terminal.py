"""Connects the user's terminal to a shell on a rank's node, over the network; see `launcher.attach.node_session`."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import sys
import termios
import tty
from collections.abc import Iterator
from multiprocessing.connection import wait

from launcher.attach.node_session import frame, window


def connect_terminal(connection: socket.socket) -> int:
    """Sends keys to the shell and prints its output until the connection is closed; returns 0."""
    keyboard, screen = sys.stdin.fileno(), sys.stdout.fileno()
    sources: list[int | socket.socket] = [connection, keyboard]
    with _raw(keyboard), _resizing(connection):
        while True:
            ready = wait(sources)
            if connection in ready:
                data = connection.recv(1 << 16)
                if not data:
                    return 0
                while data:
                    data = data[os.write(screen, data) :]
            if keyboard in ready:
                typed = os.read(keyboard, 1 << 12)
                if not typed:  # a pipe that has ended: the shell gets Ctrl-D, and may still print something
                    sources.remove(keyboard)
                connection.sendall(frame(b"d", typed or b"\x04"))


@contextlib.contextmanager
def _raw(keyboard: int) -> Iterator[None]:
    """Switches a terminal to raw mode, so that every key, also Ctrl-C, is sent to the shell."""
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
    """Sends the size of this terminal's window now, and whenever it changes inside the `with` block."""

    def send_size(*_: object) -> None:
        size = shutil.get_terminal_size()
        connection.sendall(window(size.lines, size.columns))

    send_size()
    before = signal.signal(signal.SIGWINCH, send_size)
    try:
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)
