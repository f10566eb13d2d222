"""Commands and submissions on a cluster behind ssh: a request goes there, output and frames come back.

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
import codecs
import contextlib
import fnmatch
import json
import os
import re
import secrets
import selectors
import shutil
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from launcher import __version__
from launcher.config.overrides import key_of
from launcher.environment.code_files import CodeFile, Tree, check, commit_of, digest_of, listed, read_file, tree, within
from launcher.errors import ConfigError
from launcher.files import folder_checks, safe_io
from launcher.formatting import clean, plural, rough_size
from launcher.paths import default_runs_dir, new_id, user_cache_dir
from launcher.redaction import secrets_in
from launcher.remote import clusters
from launcher.remote.clusters import RemoteCluster, Unreachable
from launcher.units import parse_memory

PROTOCOL = 1  # of requests and frames; a launcher there of another one refuses by name
HELLO = b"\x1eLAUNCHER\n"
START = b"\x1e"
PERSIST = 600  # seconds for which the control connection is kept
CONNECT = 20.0  # seconds until the connection stands, unless ssh asks for a password
LONGEST_SOCKET = 80  # characters of the control socket's path, to which ssh adds up to 24 (the kernel takes 104)
CHUNK = 1 << 16
_MOST_ERRORS = 1 << 16  # bytes of ssh's errors that are kept
LARGE = 1 << 20  # bytes of code; that more are sent is said
LIMIT = "100M"  # of the code, unless env.snapshot_limit is among the overrides
PRINTS = ("--cfg", "--help", "-h", "--info", "-i", "--hydra-help")

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
    # The folder of the control connections, or none: it must be the user's own, and the socket's path be short
    short = Path(os.environ.get("XDG_RUNTIME_DIR") or "/tmp", f"launcher-{os.getuid()}")  # noqa: S108
    for folder in (user_cache_dir() / "ssh", short):
        path = str(folder / ("x" * 40))
        if len(path) > LONGEST_SOCKET or "%" in path or " " in path:
            continue
        with contextlib.suppress(OSError):
            folder.mkdir(0o700, parents=True, exist_ok=True)
            if folder_checks.is_own(folder):
                return {"ControlMaster": "auto", "ControlPath": f"{folder}/%C", "ControlPersist": str(PERSIST)}
    return {}


class Call:
    """A command there. `events` yields its output and frames until its end, `exit_code` is known then.

    The first frame is `{"hello": true}`: the caller sends the request, with the fields in `header`, that Python there
    reads when it has started. prompts: whether ssh may ask for a password. errors: gets what the command writes to
    stderr. timeout: seconds for all, the connection too; None: no limit.
    """

    def __init__(
        self, cluster: RemoteCluster, *, prompts: bool = False, timeout: float | None = None,
        errors: Callable[[str], object] | None = None,
    ) -> None:  # fmt: skip
        self.cluster, self.connected = cluster, False
        self.has_request = False  # whether the other side may have got it
        self.exit_code: int | None = None
        self.has_run = False  # whether the run that the request names is there at the end
        self._mark = secrets.token_hex(16).encode()
        self._prompts, self._errors = prompts, errors or sys.stderr.write
        began = time.monotonic()
        self._ends_by = None if timeout is None else began + timeout
        # The shell there may need a while until it starts our script; a password takes a person's time.
        self._stands_by = self._ends_by or (None if prompts else began + CONNECT)
        self._out, self._err = bytearray(), bytearray()
        words = [*arguments(cluster, prompts=prompts, connect=timeout or CONNECT), cluster.command]
        try:
            self._process = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
            )
        except OSError as error:
            raise ConfigError(f"ssh cannot be started on this machine: {error.strerror}") from None
        self._chunks = self._read()
        self.header = {"protocol": PROTOCOL, "launcher": __version__, "mark": self._mark.decode()}

    def __enter__(self) -> Call:
        return self

    def __exit__(self, *_: object) -> None:
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
        for data in self._chunks:
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
        while left:
            if not self._out:
                if (data := next(self._chunks, None)) is None:
                    raise self._lost()
                self._out += data
            part = bytes(self._out[:left])
            del self._out[: len(part)]
            into(part)
            left -= len(part)

    def _read(self) -> Iterator[bytes]:
        # Yields what comes on stdout until its end; passes stderr on
        assert self._process.stdout is not None and self._process.stderr is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
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
    """Opens the control connection, for which ssh may ask for a password; returns the exit code.

    Raises ConfigError: the connection could not be kept.
    """
    if not _control():
        raise ConfigError(
            f"ssh cannot share a connection: {user_cache_dir()} has a long path, or one with a space or %, or others"
            " can write there. Set LAUNCHER_CACHE_DIR to a folder of your own with a short path"
        )
    words: Sequence[str] = [*arguments(cluster, prompts=True), "true"]
    return subprocess.run(words, check=False, stdin=subprocess.DEVNULL).returncode


# -- one command


def profile_of(cluster: RemoteCluster) -> str:
    return cluster.profile or cluster.name


def call(
    cluster: RemoteCluster, words: Sequence[str], *, follows: bool = False, prompts: bool = False,
    timeout: float | None = None, code: Callable[[], SentCode] | None = None, run: str = "", output: Path | None = None,
    show: Callable[[bytes], object] | None = None, errors: Callable[[str], object] | None = None,
    begun: Callable[[Call], object] = lambda _: None,
) -> int:  # fmt: skip
    """Runs a command there, and returns its exit code.

    follows, run: fields of the request. prompts: whether it submits something: it gets the secrets, and ssh may ask for
        a password. timeout, errors: see `Call`. code: finds the code that the command needs, while Python starts there.
    output: file here that gets the one that the command writes. show: gets the command's output; None: it is printed.
    begun: gets the call, which tells afterwards how far it came.
    Raises ConfigError (`code`), or Unreachable: it is not known how the command ended.
    """
    sent: SentCode | None = None
    request = {
        "arguments": list(words), "follows": follows, "output": output is not None, "run": run,
        "columns": shutil.get_terminal_size().columns, "asks": prompts and sys.stdin is not None and sys.stdin.isatty(),
    }  # fmt: skip
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    with Call(cluster, prompts=prompts, timeout=timeout, errors=errors) as made:
        begun(made)
        for event in made.events():
            if not isinstance(event, bytes) and "hello" in event:
                sent = code() if code else None
                secrets = secrets_of(cluster, words) if prompts else {}
                made.has_request = True
                made.answer({**made.header, **request, "secrets": secrets, **(sent.request if sent else {})})
            elif not isinstance(event, bytes):
                try:
                    _answer(made, event, sent, output, asks=bool(request["asks"]))
                except (KeyError, TypeError, ValueError) as error:
                    raise Unreachable(f"{cluster.name}: its answer cannot be understood: {error!r}") from None
            elif show is not None:
                show(event)
            elif output is None:
                sys.stdout.write(decoder.decode(event))
                sys.stdout.flush()
    assert made.exit_code is not None
    return made.exit_code


def _answer(made: Call, frame: Mapping[str, Any], sent: SentCode | None, output: Path | None, asks: bool) -> None:
    # The other side gets what the command needs, and nothing else
    if "ask" in frame:
        if not asks:
            raise Unreachable(f"{made.cluster.name}: it asks a question where nobody can answer")
        made.answer({"answer": sys.stdin.readline()})
    elif "file" in frame and output is not None:
        part = output.with_name(safe_io.temporary_name(output.name))
        try:
            with part.open("xb") as file:
                made.take(int(frame["file"]), file.write)
            part.replace(output)
        finally:
            part.unlink(missing_ok=True)
    elif sent is not None and "list" in frame:
        made.answer({"commit": commit_of(str(sent.tree.root)), "files": sent.files})
    elif sent is not None and "contents" in frame:
        sent.send(frame["contents"], made.send)


def rows_of(text: str | bytes, where: str) -> list[Any]:
    """Returns what `status --json` has printed, of one sweep too, as a list; raises Unreachable: it is no JSON."""
    try:
        found = json.loads(text)
        return found if isinstance(found, list) else [dict(found)]  # of one sweep, it is an object
    except (ValueError, TypeError) as error:
        raise Unreachable(f"{where}: its answer cannot be understood: {error}") from None


# -- submissions and their code
#
# A list of the code's files (names, sizes, SHA-256) is known by its own digest. If the other side has a folder of this
# digest, nothing else is sent. Otherwise it gets the list, and asks for the contents that it lacks (cli/ssh_serve.py).


@dataclass(frozen=True)
class SentCode:
    """The code of a submission, as it is in the working folder."""

    tree: Tree
    files: Mapping[str, CodeFile]
    request: Mapping[str, Any] = field(repr=False)  # its fields of the request

    @classmethod
    def here(cls, cluster: RemoteCluster, words: Sequence[str]) -> SentCode:
        """Returns the code of the working folder's repository.

        Raises ConfigError: there is no repository, it is too large (env.snapshot_limit), or an argument names one of
            its files that is not sent.
        """
        keys, key = keys_of(words), f"cluster={cluster.name}"
        try:
            limit = parse_memory(keys.get("env.snapshot_limit", LIMIT))
        except ValueError as error:
            raise ConfigError(f"env.snapshot_limit: {error}") from None
        found = tree(os.getcwd(), [str(default_runs_dir())], key)
        found = Tree(found.root, {
            name: size for name, size in found.files.items()
            if not any(fnmatch.fnmatch(name, each) or within(name, each.rstrip("/")) for each in cluster.exclude)
        })  # fmt: skip
        check(found, limit, key)  # before anything is read
        files, left_out = listed(found)
        for name in left_out:
            print(f"note: {name} is not sent: it is a link out of {found.root}", file=sys.stderr)
        absolute = []
        for path in _paths(words):
            if os.path.isabs(os.path.expanduser(path)):
                absolute.append(path)
            elif os.path.isfile(path) and _inside(path, found.root) not in files:
                raise ConfigError(
                    f"{path} exists, but is not sent to {cluster.name}: git ignores it, it is outside of {found.root}, "
                    f"or `exclude` of {cluster.file} names it. Copy it there yourself, and name its path there"
                )
        place = {"digest": digest_of(files), "folder": _inside(".", found.root)}
        return cls(found, files, {"code": place, "paths": absolute})

    def send(self, wanted: Sequence[str], into: Callable[[bytes], object]) -> None:
        """Sends the contents with these digests, and says how much that is if it takes a while.

        Raises ConfigError: a file has changed since, or cannot be read any more.
        """
        by_digest = {file.digest: (name, file.size) for name, file in self.files.items()}
        if (size := sum(by_digest[digest][1] for digest in wanted)) > LARGE:
            print(f"sending {plural(len(wanted), 'file')} ({rough_size(size)})", file=sys.stderr)
        for digest in wanted:
            name, size = by_digest[digest]
            with contextlib.suppress(OSError):
                sent = read_file(self.tree.root, name, into, size)
                if sent is not None and sent.digest == digest:
                    continue
            raise ConfigError(f"{self.tree.root / name} was changed while the code was sent: repeat the command")


def secrets_of(cluster: RemoteCluster, words: Sequence[str]) -> dict[str, str]:
    """Returns the secrets that a submission has there; raises ConfigError: one that the profile names is not set."""
    given = re.findall(r"!?[\w*?]+", keys_of(words).get("env.secrets", ""))
    secrets = secrets_in(os.environ, (*cluster.secrets, *given))
    if missing := [name for name in cluster.secrets if name.isidentifier() and name not in secrets]:
        raise ConfigError(f"{cluster.file}: secrets: {missing[0]} is not set in this environment")
    return secrets


def _inside(path: str, root: Path) -> str:
    return os.path.relpath(os.path.realpath(path), os.path.realpath(root))


def _paths(words: Sequence[str]) -> Iterator[str]:
    # Yields what may be paths of this machine: existing ones, as a word, as a value, or in a list
    for word in words:
        for path in dict.fromkeys((word, word.partition("=")[2], *re.split(r"[][,{}'\"=]", word))):
            whole = os.path.expanduser(path)
            if path.strip("./") and os.path.lexists(whole) and ("/" in path or os.path.isfile(whole)):
                yield path


def keys_of(words: Sequence[str]) -> dict[str, str]:
    """Returns the values of overrides by their keys, as they are written but for quotes around them."""
    return {key_of(word): word.partition("=")[2].strip("'\"") for word in words if "=" in word}


class RemoteSubmission(NamedTuple):
    cluster: RemoteCluster
    run_id: str
    exit_code: int  # of the command there
    waits: bool = False  # whether the user waits for its end


REPEAT = "Repeat the command with {}: it takes the job that is there, or submits it if there is none"


def submit(
    words: Sequence[str], command: str = "", show: Callable[[bytes], object] | None = None,
    errors: Callable[[str], object] | None = None,
) -> RemoteSubmission | None:  # fmt: skip
    """Submits a run or sweep to the cluster behind ssh that the arguments choose; None: they choose another.

    words: as they are typed: overrides, flags, `--` and the arguments of a program. command: `run`, or empty.
    show, errors: as for `call`. Raises ConfigError, or Unreachable: nobody knows whether it was submitted.
    """
    at = words.index("--") if "--" in words else len(words)
    given, behind = list(words[:at]), list(words[at:])
    cluster = clusters.chosen(given)
    if cluster is None or {"-h", "--help"} & set(given):
        return None
    keys = keys_of(given)
    if keys.get("env.snapshot", "").lower() == "false":
        raise ConfigError(f"env.snapshot=false: runs on {cluster.name} always use a copy of the code: leave it out")
    id_key = "sweep.id" if {"-m", "--multirun"} & set(given) else "run_id"
    run_id = keys.get(id_key) or _new_id(given, keys, command)
    rest = [word for word in given if key_of(word) not in ("cluster", "wait", id_key) or "=" not in word]
    more = [f"cluster={profile_of(cluster)}", "env.snapshot=true"]
    code = partial(SentCode.here, cluster, words)
    head = [command] if command else []
    if keys.get("dry_run", "").lower() == "true" or any(word.startswith(PRINTS) for word in given):
        words = [*head, *rest, *more, *behind]
        return RemoteSubmission(
            cluster, run_id, call(cluster, words, prompts=True, code=code, show=show, errors=errors)
        )
    known = id_key in keys and run_id in clusters.noted(cluster)  # an earlier command may have submitted it
    clusters.note(cluster, run_id)
    words = [*head, *rest, *more, "wait=false", f"{id_key}={run_id}", *behind]
    begun: list[Call] = []
    try:
        exit_code = call(
            cluster, words, prompts=True, code=code, run=run_id, show=show, errors=errors, begun=begun.append
        )
    except (KeyboardInterrupt, Exception) as error:
        if not (begun and begun[0].has_request) or isinstance(error, ConfigError):
            if not known:
                clusters.note(cluster, run_id, gone=True)
            raise
        if isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt(f"interrupted. {REPEAT.format(f'{id_key}={run_id}')}") from None
        if isinstance(error, Unreachable):
            raise Unreachable(f"{error}.\n{REPEAT.format(f'{id_key}={run_id}')}") from None
        raise
    if exit_code and not begun[0].has_run:
        clusters.note(cluster, run_id, gone=True)
    return RemoteSubmission(cluster, run_id, exit_code, keys.get("wait", "").lower() == "true")


def _new_id(given: Sequence[str], keys: Mapping[str, str], command: str) -> str:
    script = next((word for word in given if not word.startswith("-") and "=" not in word), "") if command else ""
    name = keys.get("name") or Path(script).stem or keys.get("workload") or "run"
    return new_id(re.sub(r"[^A-Za-z0-9_.+-]", "_", name.strip("'\"")).lstrip("-+.") or "run")
