"""Turns an OSError into a line for the user: which file or program, what the system refused, and what to do.

An error that only a defect of the launcher can cause (EBADF, EINVAL, ...) gets no such line, so that its traceback is
shown.
"""

from __future__ import annotations

import errno
import os

from launcher.files.shared_files import TRANSIENT

OTHER_FOLDER = "or use a folder elsewhere (runs_dir=DIR, or LAUNCHER_RUNS_DIR)"
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
    """Returns one line for the user: the file, the system's error, and what to do.

    | the error | advice in the line |
    |---|---|
    | a full disk, a quota | make room, or use another folder |
    | permissions, a read-only disk | have them changed, or use another folder |
    | a limit of this process or machine | raise the limit |
    | a file server or host that does not respond | try later |
    | a file that is gone or of another type, if the error names it | look at the file |
    | any other: a defect of the launcher | None: no line |
    """
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
