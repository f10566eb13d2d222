"""Errors with a text for the user, that of an OSError too, and the exit codes of commands and attempts."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterable

DONE = 0
FAILED = 1  # the run failed, or a command could not do what it was asked
BAD_INPUT = 2  # nothing was submitted, nothing was left behind
DECLINED = 3  # the user declined a submission (`confirm_above`), of which nothing is left
RESUME = 75  # the attempt stopped early and can be resumed; or a file that a command needs cannot be read now
NO_RETRY = 93  # the attempt failed, and a retry would fail too
INTERRUPTED = 130  # from the keyboard
UNAVAILABLE = "unavailable"  # code of a stop reason: a file that the attempt needs could not be read


class LauncherError(Exception):
    """An error that the user can fix; its text names what is wrong, where it was set, and what to do."""

    exit_code = FAILED
    code = ""  # the kind of error, for programs


class ConfigError(LauncherError):
    """A value in the configuration cannot be used. Nothing was submitted. key: the one whose value it is, if one is."""

    exit_code = BAD_INPUT

    def __init__(self, text: str = "", *, key: str = "") -> None:
        super().__init__(text)
        self.key = key


class SubmissionError(LauncherError):
    """The scheduler did not take the job."""


class RunError(LauncherError):
    """A run directory is missing, damaged, or not safe to use."""


class NoRunError(RunError):
    """What the user named is no run or sweep, or fits several."""

    exit_code = BAD_INPUT


class UnavailableError(RunError, OSError):
    """A file that the run's machines share cannot be read now. Whether it exists, and what it holds, is unknown.

    Where callers cannot retry, an attempt exits with RESUME. It is an OSError too, for callers which ignore every one.
    """

    exit_code = RESUME
    code = UNAVAILABLE


def near(word: str, known: Iterable[str], *, keys: bool = False) -> str:
    """Returns ` Did you mean a or b?` with the entries of `known` that are most similar to `word`; empty: none is.

    keys: they are config keys, and a key is compared with those of its section, if there is such a section.
    """
    from difflib import get_close_matches

    low = word.lstrip("-").lower()
    names = {each.lstrip("-").lower(): each for each in known}
    section, _, last = low.rpartition(".") if keys else ("", "", low)
    inside = {each.rpartition(".")[2]: each for each in names if section and each.rpartition(".")[0] == section}
    matches = (
        [names[low]] if low in names
        else [names[inside[each]] for each in get_close_matches(last, inside, n=3, cutoff=0.6)]
        or [names[each] for each in get_close_matches(low, () if inside else names, n=3, cutoff=0.6)]
        or [names[each] for each in names if each.startswith((f"{low}_", f"{low}-"))][:3]
        or [names[each] for each in names if each.endswith(f".{last if inside else low}")][:3]
    )  # fmt: skip
    return f" Did you mean {' or '.join(matches)}?" if matches else ""


def program() -> str:
    """Returns `launcher` or `python -m launcher`, whichever the user has called, for commands shown in hints."""
    name = os.path.basename(sys.argv[0])
    return name if name == "launcher" else "python -m launcher"


TRANSIENT = frozenset({
    getattr(errno, "EREMOTEIO", errno.EIO),  # Linux only
    errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EINTR, errno.EBUSY, errno.ENOLINK,
    errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED, errno.ENOTCONN, errno.ESHUTDOWN, errno.EHOSTDOWN,
    errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH, errno.ENODEV, errno.EMFILE, errno.ENFILE, errno.ENOMEM,
    errno.ENOBUFS, errno.EPROTO, errno.EBADF,
})  # fmt: skip


def is_transient(error: BaseException) -> bool:
    """Returns whether an error is transient, so that the same read may succeed later."""
    return isinstance(error, UnavailableError) or (isinstance(error, OSError) and error.errno in TRANSIENT)


# -- Turns an OSError into a line for the user: which file or program, what the system refused, and what to do
#
# An error that only a defect of the launcher can cause (EBADF, EINVAL, ...) gets no such line, so that its traceback is
# shown.


OTHER_FOLDER = "or use a folder elsewhere (for runs: runs_dir=DIR, or LAUNCHER_RUNS_DIR)"
LIMITS = {
    errno.EMFILE: "this process may have no more open files: raise `ulimit -n`",
    errno.ENFILE: "this machine has no more open files: end something, or use another one",
    errno.ENOMEM: "this machine has no memory left for you: end something, or use another one",
    errno.EAGAIN: "you may start no more processes here: end some, or raise `ulimit -u`",
    errno.EFBIG: "files may not become that large: raise `ulimit -f`",
}
FULL = {
    errno.ENOSPC: f"make room there (`df -h` shows the disks), {OTHER_FOLDER}",
    errno.EDQUOT: f"remove something of yours there (`quota -s` shows what you may use), {OTHER_FOLDER}",
}
REFUSED = {
    errno.EACCES: f"have its permissions changed (`ls -ld` shows them), {OTHER_FOLDER}",
    errno.EPERM: f"have its permissions changed (`ls -ld` shows them), {OTHER_FOLDER}",
    errno.EROFS: f"that file system is read-only: have it mounted otherwise, {OTHER_FOLDER}",
}
CHANGED = dict.fromkeys(
    (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY, errno.ELOOP, errno.ENAMETOOLONG,
     errno.ENXIO, errno.ENOEXEC, errno.ETXTBSY),
    "it was removed, or is something else than was expected: look at it, and repeat the command",
)  # fmt: skip
LATER = dict.fromkeys(
    TRANSIENT - {errno.EBADF}, "nothing answers there now: repeat the command later, or ask who runs that server"
)
CURES = {**CHANGED, **LATER, **REFUSED, **FULL, **LIMITS}

NOT_ON_PATH = (FileNotFoundError, PermissionError)


def explain(error: OSError) -> str | None:
    """Returns one line for the user: the file, the system's error, and what to do; None: a defect of the launcher."""
    number = error.errno
    if number is None:
        return None if not isinstance(error, (TimeoutError, ConnectionError)) else f"{error or 'no answer'}: try later"
    cure = CURES.get(number)
    if cure is None or (number in CHANGED and error.filename is None):
        return None
    where = "the output of this command or a file" if error.filename is None else _path(error.filename)
    if error.filename2 is not None:
        where += f", {_path(error.filename2)}"
    return f"{where}: {os.strerror(number)} ({errno.errorcode[number]}): {cure}"


def _path(name: str | bytes | int) -> str:
    return f"descriptor {name}" if isinstance(name, int) else os.fsdecode(name)
