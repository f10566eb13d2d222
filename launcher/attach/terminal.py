"""Connects the user's terminal to a shell on a rank's node, over the network; see `launcher.attach.node_session`."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import sys
import termios
import tty
from collections.abc import Iterator

from launcher.attach.connect import connection_lost
from launcher.attach.node_session import data_message, data_of, exchange
from launcher.rendezvous.channel import Channel, ChannelError

RESIZE_INTERVAL = 0.2  # seconds between two looks at the size of the window


def connect_terminal(channel: Channel) -> int:
    """Sends keys and the window's size to the shell, and prints its output, until the shell ends; returns 0.

    Raises RunError: the connection was lost, or somebody on its way has changed messages.
    """
    keyboard, screen = sys.stdin.fileno(), sys.stdout.fileno()
    events, window = {keyboard: select.POLLIN}, None
    try:
        with contextlib.closing(channel), _raw(keyboard):
            while True:
                size = shutil.get_terminal_size()
                if size != window:
                    channel.send({"window": [size.lines, size.columns]})
                    window = size
                messages, ready = exchange(channel, {} if channel.unsent else events, timeout=RESIZE_INTERVAL)
                for message in messages:
                    if message.get("end"):
                        return 0
                    data = data_of(message)
                    while data:
                        data = data[os.write(screen, data) :]
                if keyboard in ready:
                    typed = os.read(keyboard, 1 << 12)
                    if not typed:  # a pipe that has ended: the shell gets Ctrl-D, and may still print something
                        events = {}
                    channel.send(data_message(typed or b"\x04"))
    except ChannelError as error:
        raise connection_lost(error) from None


@contextlib.contextmanager
def _raw(keyboard: int) -> Iterator[None]:
    # Switches a terminal to raw mode, so that every key, also Ctrl-C, is sent to the shell
    if not os.isatty(keyboard):
        yield
        return
    before = termios.tcgetattr(keyboard)
    tty.setraw(keyboard)
    try:
        yield
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
