"""One command of the launcher on a cluster behind ssh: a request goes there, output and frames come back.

OpenSSH's client is the transport: names, keys, jump hosts, 2FA and host keys are its own business. A control
connection of ours is kept for ten minutes, so that one login serves all commands. On ssh's command line is the path of
the launcher there and nothing else; the request follows on stdin, so that no value passes a shell.

| direction | what |
|---|---|
| to here | `\\x1eLAUNCHER\\n`, from the script that starts Python there: the connection stands |
| there | the request: one line of JSON with a random `mark`; what a frame asks for |
| to here | output, and frames between it: `\\x1e`, the mark, JSON, `\\n`. The output cannot know the mark |

The last frame is `{"exit": CODE}`. Without it the connection was lost.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import secrets
import selectors
import stat
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from launcher import __version__
from launcher.errors import ConfigError
from launcher.formatting import clean
from launcher.paths import user_cache_dir
from launcher.remote.clusters import RemoteCluster, Unreachable

PROTOCOL = 1  # of requests and frames; a launcher there of another one refuses by name
HELLO = b"\x1eLAUNCHER\n"
START = b"\x1e"
PERSIST = 600  # seconds for which the control connection is kept
CONNECT = 20.0  # seconds until the connection stands, unless ssh asks for a password
QUICK = 2.0  # the same where many clusters are asked at once: one that is down is known soon
LONGEST_SOCKET = (
    80  # characters of the control socket's path, to which ssh adds up to 24: the kernel takes 104 on a Mac
)
CHUNK = 1 << 16
_MOST_ERRORS = 1 << 16  # bytes of ssh's errors that are kept

Frame = Mapping[str, Any]


def arguments(cluster: RemoteCluster, *, prompts: bool, connect: float = CONNECT, terminal: bool = False) -> list[str]:
    """Returns the command line of ssh up to the host.

    prompts: whether ssh may ask for a password or for the host's key. terminal: whether the command gets a terminal.
    """
    options = {
        "BatchMode": "no" if prompts else "yes", "ConnectTimeout": str(max(1, round(connect))), "LogLevel": "ERROR",
        "ForwardAgent": "no", "ForwardX11": "no", "ClearAllForwardings": "yes", "PermitLocalCommand": "no",
        "RemoteCommand": "none", "Compression": "yes", "ServerAliveInterval": "15", "ServerAliveCountMax": "3",
        **_control(),
    }  # fmt: skip
    words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    return ["ssh", "-tt" if terminal else "-T", *words, "--", cluster.host]


def _control() -> dict[str, str]:
    # The folder of the control connections, or none: it must be the user's alone, and the socket's path be short
    folder = user_cache_dir() / "ssh"
    path = str(folder / ("x" * 40))
    if len(path) > LONGEST_SOCKET or "%" in path or " " in path:
        return {}
    folder.mkdir(0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        return {}
    return {"ControlMaster": "auto", "ControlPath": f"{folder}/%C", "ControlPersist": str(PERSIST)}


class Call:
    """A command there. `events` yields its output and frames until its end, `exit_code` is known then.

    The first frame is `{"hello": true}`: the caller sends the request, with the fields in `header`, that Python there
    reads when it has started. prompts: whether ssh may ask for a password. errors: gets what the command writes to
    stderr. timeout: seconds for all, of which QUICK until a host answers; None: no limit.
    """

    def __init__(
        self, cluster: RemoteCluster, *, prompts: bool = False, timeout: float | None = None,
        errors: Callable[[str], object] | None = None,
    ) -> None:  # fmt: skip
        self.cluster, self.connected = cluster, False
        self.exit_code: int | None = None
        self.has_run = False  # whether the run that the request names is there at the end
        self._mark = secrets.token_hex(16).encode()
        self._prompts, self._errors = prompts, errors or sys.stderr.write
        self._connect = CONNECT if timeout is None else QUICK
        began = time.monotonic()
        self._ends_by = None if timeout is None else began + timeout
        # The shell there may need a while until it starts our script; a password takes a person's time.
        self._stands_by = self._ends_by or (None if prompts else began + CONNECT)
        self._out, self._err = bytearray(), bytearray()
        words = [*arguments(cluster, prompts=prompts, connect=self._connect), cluster.command]
        try:
            self._process = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
            )
        except OSError as error:
            raise ConfigError(f"ssh cannot be started on this machine: {error.strerror}") from None
        self.header = {"protocol": PROTOCOL, "launcher": __version__, "mark": self._mark.decode()}

    def __enter__(self) -> Call:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection of this call. The command there goes on, unless it follows something."""
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert stream is not None
            with contextlib.suppress(OSError):
                stream.close()
        self._process.terminate()
        self._process.wait()

    def send(self, data: bytes) -> None:
        """Sends bytes; what is not taken because the connection is lost is noticed by `events`."""
        assert self._process.stdin is not None
        view = memoryview(data)
        with contextlib.suppress(OSError):
            while view:
                view = view[self._process.stdin.write(view) or 0 :]

    def answer(self, value: Mapping[str, Any]) -> None:
        """Sends the request, or the answer to a frame."""
        self.send(json.dumps(value).encode() + b"\n")

    def events(self) -> Iterator[bytes | Frame]:
        """Yields pieces of the output, and frames; raises Unreachable: no connection, no answer in time, or lost."""
        frame = START + self._mark
        for data in self._chunks():
            self._out += data
            if not self.connected:
                _, hello, rest = self._out.partition(HELLO)  # in front of it is what shells print at a login
                if not hello:
                    del self._out[: -len(HELLO)]
                    continue
                self.connected, self._out = True, bytearray(rest)
                self._flush_errors()
                yield {"hello": True}
            while self._out:
                at = self._out.find(START)
                if at:
                    text = self._out[: at if at > 0 else len(self._out)]
                    del self._out[: len(text)]
                    yield bytes(text)
                    continue
                if len(self._out) < len(frame) and frame.startswith(self._out):
                    break  # it may become a frame
                if not self._out.startswith(frame):
                    del self._out[:1]
                    yield START
                    continue
                end = self._out.find(b"\n")
                if end < 0:
                    break
                try:
                    value = dict(json.loads(self._out[len(frame) : end]))
                    code = int(value["exit"]) if "exit" in value else None
                except (ValueError, TypeError):
                    raise Unreachable(self._text("its answer cannot be understood")) from None
                del self._out[: end + 1]
                if code is not None:
                    self.exit_code, self.has_run = code, bool(value.get("run"))
                    self._flush_errors()
                    return
                if "refused" in value:
                    raise Unreachable(self._text(clean(str(value["refused"]))))
                if "err" in value:
                    self._errors(str(value["err"]))
                else:
                    yield value
        raise self._lost()

    def take(self, size: int, into: Callable[[bytes], object]) -> None:
        """Passes the next `size` bytes of the output on, between two frames; raises Unreachable."""
        left = size
        chunks = self._chunks()
        while left:
            if not self._out:
                data = next(chunks, None)
                if data is None:
                    raise self._lost()
                self._out += data
            part = bytes(self._out[:left])
            del self._out[: len(part)]
            into(part)
            left -= len(part)

    def _chunks(self) -> Iterator[bytes]:
        # Yields what comes on stdout until its end; passes stderr on
        assert self._process.stdout is not None and self._process.stderr is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not self._process.stderr.closed:
                selector.register(self._process.stderr, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select(self._pause()):
                    data = os.read(key.fd, CHUNK)
                    if key.fileobj is self._process.stderr:
                        if not data:
                            selector.unregister(self._process.stderr)
                        self._err += data
                        if self.connected:
                            self._flush_errors()
                        else:
                            del self._err[:-_MOST_ERRORS]
                    elif data:
                        yield data
                    else:
                        return

    def _pause(self) -> float | None:
        # Returns the seconds until it is too late; raises Unreachable if it is
        until = self._ends_by if self.connected or self._stands_by is None else self._stands_by
        if until is None:
            return None
        if (left := until - time.monotonic()) > 0:
            return left
        if self._ends_by is None:
            raise Unreachable(self._text(f"no connection within {CONNECT:g} s{self._login()}"))
        raise Unreachable(self._text(f"no answer within {self.cluster.timeout:g} s (`timeout` in {self.cluster.file})"))

    def _flush_errors(self) -> None:
        if self._err:
            self._errors(self._err.decode(errors="replace"))
            self._err.clear()

    def _text(self, problem: str) -> str:
        return f"{self.cluster.name} ({self.cluster.host}): {problem}"

    def _login(self) -> str:
        hint = f"; if it asks for a password, `launcher site login {self.cluster.name}` logs in"
        return "" if self._prompts else hint

    def _lost(self) -> Unreachable:
        if self.connected:
            self._flush_errors()
            return Unreachable(self._text("the connection was lost before the answer was complete"))
        assert self._process.stderr is not None
        code = self._process.wait()
        os.set_blocking(self._process.stderr.fileno(), False)
        with contextlib.suppress(OSError):
            self._err += os.read(self._process.stderr.fileno(), CHUNK)
        said = " ".join(clean(self._err.decode(errors="replace")).split())
        if code in (126, 127):
            return Unreachable(self._text(
                f"there is no launcher in {self.cluster.command}: `launcher site init {self.cluster.name} --ssh "
                f"{self.cluster.host} --force` installs it ({said})"
            ))  # fmt: skip
        hint = self._login() if code == 255 and "denied" in said else ""
        return Unreachable(self._text((said or f"ssh ended with {code}") + hint))


def in_terminal(cluster: RemoteCluster, request: Mapping[str, Any]) -> int:
    """Runs a command there with this terminal, and returns its exit code: an interactive shell, a debugger."""
    line = {"protocol": PROTOCOL, "launcher": __version__, "mark": "", **request}
    word = base64.urlsafe_b64encode(zlib.compress(json.dumps(line).encode())).decode()
    words = [*arguments(cluster, prompts=True, terminal=True), cluster.command, word]
    code = subprocess.run(words, check=False).returncode
    if code == 255:
        raise Unreachable(f"{cluster.name} ({cluster.host}): the connection was lost")
    return code


def log_in(cluster: RemoteCluster) -> int:
    """Opens the control connection, for which ssh may ask for a password; returns the exit code."""
    words: Sequence[str] = [*arguments(cluster, prompts=True), "true"]
    return subprocess.run(words, check=False, stdin=subprocess.DEVNULL).returncode
