"""Runs a Python script or module as `python` itself would, and leaves word of how it failed.

    python -u script.py script PATH ARGUMENTS...
    python -u script.py module NAME ARGUMENTS...

It takes the place of a rank, in whatever interpreter the program wants (3.8 or later, without torch or the launcher):
only the standard library is imported, and nothing of it before the program's own `sys.path` is in place.
The rank's agent reads the last error where torch's `@record` would write it (TORCHELASTIC_ERROR_FILE).
"""

from __future__ import annotations

import sys

if __name__ == "__main__" and not getattr(sys.flags, "safe_path", False):
    del sys.path[0]  # this folder; the program's own comes instead

import builtins
import contextlib
import faulthandler
import importlib.machinery
import json
import os
import re
import runpy
import signal
import time
import traceback
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Cut = tuple[type[BaseException], BaseException, types.TracebackType | None]

_HERE = os.path.abspath(__file__)


def main(kind: str, target: str, *arguments: str) -> None:
    """Runs it. Its exit code is this process's."""
    told = json.loads(os.environ.pop("LAUNCHER_PROGRAM", "{}"))
    _prepare(told)
    try:
        (run_script if kind == "script" else run_module)(target, list(arguments))
    except SystemExit as leave:
        if isinstance(leave.code, str):
            _tell(f"sys.exit({leave.code!r})", "".join(traceback.format_exception(*_cut(leave))))
        raise
    except KeyboardInterrupt as error:
        sys.excepthook(*_cut(error))
        sys.exit(130)
    except BaseException as caught:
        ended = _debugged(caught)
        cut = _cut(ended)
        _tell(f"{type(ended).__name__}: {ended}", "".join(traceback.format_exception(*cut)))
        if told.get("symptoms") and re.search(told["symptoms"], str(ended)):
            sys.stderr.write(f"lost another rank: {ended}\n")  # it is the other's end that counts
            sys.stderr.flush()
            time.sleep(told["patience"])
        else:
            sys.excepthook(*cut)
        # The debugger was left, or the launcher says that the error would come again (launcher.errors.NO_RETRY).
        sys.exit(93 if type(ended).__name__ == "DebuggerQuit" or getattr(ended, "exit_code", None) == 93 else 1)


_debug: dict[str, Any] = {}  # what `launcher.node.debug` is told, and its watch once it is here


def _first_breakpoint(*arguments: Any, **options: Any) -> None:
    """breakpoint(), where nothing was known of a debugger: the launcher's comes now."""
    _load_debugger()
    sys.breakpointhook(*arguments, **options)  # nothing may follow


def _load_debugger() -> None:
    """Makes breakpoint() the launcher's, if this interpreter can import that."""
    sys.breakpointhook = sys.__breakpointhook__
    told = dict(_debug["told"])
    folder = told.pop("launcher")
    sys.path.append(folder)
    try:
        from launcher.node import debug

        _debug["watch"] = debug.install(**told)
    except (ImportError, SyntaxError) as error:
        sys.stderr.write(f"launcher: no breakpoints here: this Python cannot import the launcher ({error})\n")
        sys.breakpointhook = lambda *_, **__: None
    finally:
        sys.path.remove(folder)


def _debugged(error: BaseException) -> BaseException:
    """The error that ends the program, after the debugger has seen it."""
    watch = _debug.get("watch")
    if watch is None:
        return error
    try:
        watch.__exit__(type(error), error, _cut(error)[2])
    except Exception as instead:  # the user has typed q
        return instead.with_traceback(None)
    return error


def _prepare(told: dict[str, Any]) -> None:
    """What the agent shares with this process; nothing of it is for processes that the program starts."""
    if "debug" in told and "PYTHONBREAKPOINT" not in os.environ:
        _debug["told"] = told["debug"]
        if told["debug"]["ranks"]:
            _load_debugger()
        else:
            sys.breakpointhook = _first_breakpoint
    if "stacks" in told:  # for the agent, when this rank hangs
        faulthandler.register(signal.SIGQUIT, file=told["stacks"], all_threads=True, chain=False)
    for descriptor in told.get("descriptors", ()):
        with contextlib.suppress(OSError):
            os.set_inheritable(descriptor, False)


def run_script(path: str, arguments: list[str]) -> None:
    """As `python PATH ARGUMENTS...`."""
    sys.argv[:] = [path, *arguments]
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, os.path.dirname(os.path.realpath(path)))
    path = os.path.abspath(path)
    with open(path, "rb") as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    module = types.ModuleType("__main__")
    module.__file__ = path
    module.__loader__ = importlib.machinery.SourceFileLoader("__main__", path)
    module.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = module  # where pickle and multiprocessing's spawn look
    exec(code, module.__dict__)  # noqa: S102


def run_module(name: str, arguments: list[str]) -> None:
    """As `python -m NAME ARGUMENTS...`."""
    sys.argv[:] = [name, *arguments]
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, os.getcwd())
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def _cut(error: BaseException) -> Cut:
    """(type, error, its traceback without the frames above the program)."""
    frames = error.__traceback__
    ours = (_HERE, "<frozen runpy>", runpy.__file__)
    while frames is not None and frames.tb_frame.f_code.co_filename in ours:
        frames = frames.tb_next
    return type(error), error.with_traceback(frames), frames


def _tell(message: str, trace: str) -> None:
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path:
        return
    extra = {"py_callstack": trace, "timestamp": str(int(time.time()))}
    with contextlib.suppress(OSError):  # a full disk
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "w") as file:
            json.dump({"message": {"message": message, "extraInfo": extra}}, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
