"""Runs a Python script or module as `python` itself would, and reports to the rank's agent how it failed.

    python -u user_script.py script PATH ARGUMENTS...
    python -u user_script.py module NAME ARGUMENTS...

A rank that runs a Python program executes this file, in whatever interpreter the program needs (Python 3.8 or later,
perhaps without torch or launcher). So it imports the standard library only, and only after it has removed its own
folder from `sys.path`.
Forked ranks (`shared_with_agent`) also use the functions that turn an error into a report and recognise a lost rank.
"""

from __future__ import annotations

import sys

if __name__ == "__main__" and not getattr(sys.flags, "safe_path", False):
    del sys.path[0]  # this folder; run_script and run_module add the program's

import builtins
import contextlib
import faulthandler
import importlib.machinery
import json
import opcode
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
ABOVE = (_HERE, "<frozen runpy>", runpy.__file__)  # files with the frames that call a program; cut from its traceback
LONGEST_MESSAGE, LONGEST_TRACEBACK = 1 << 14, 1 << 18  # most characters of each in a report
# Errors of a wrong config, and what raises errors of wrong arguments
REFUSED = {("hydra.errors", "ConfigCompositionException"), ("hydra.errors", "OverrideParseException"),
           ("argparse", "ArgumentParser")}  # fmt: skip
FINAL = ("LauncherError", "WorkloadError")  # names of error classes that a retry would raise again,
NOT_FINAL = "UnavailableError"  # except this one: a file cannot be read now
# Functions whose errors do not name the file that they read, and their argument that is the file.
READERS = {("torch.serialization", "load"): "f", ("safetensors.torch", "load_file"): "filename"}


def main(kind: str, target: str, *arguments: str) -> None:
    """Runs the program, and reports its error to the agent. The process exits with the code that the program sets."""
    settings = json.loads(os.environ.pop("LAUNCHER_PROGRAM", "{}"))
    _prepare(settings)
    descriptor, owner = settings.get("report", -1), os.getpid()
    try:
        (run_script if kind == "script" else run_module)(target, list(arguments))
    except SystemExit as leave:
        if report := shared_with_agent(leave, settings.get("lost_peer", "")):
            write_report(descriptor, owner, {"error": report}, settings.get("delay", 0.0))
        raise
    except KeyboardInterrupt as error:
        sys.excepthook(*cut(error, ABOVE))
        sys.exit(130)
    except BaseException as caught:
        ended = _debug_error(caught)
        report = error_report(ended, cut(ended, ABOVE), settings.get("lost_peer", ""))
        sys.excepthook(*cut(ended, ABOVE))
        write_report(descriptor, owner, {"error": report}, settings.get("delay", 0.0))
        code = getattr(ended, "exit_code", None)  # of launcher's errors: see launcher.errors
        sys.exit(93 if type(ended).__name__ == "DebuggerQuit" else code if code in (75, 93) else 1)


def error_report(error: BaseException, shown: Cut, lost_peer_words: str) -> dict[str, Any]:
    """Returns the report of an error in JSON types: the fields of `shared_with_agent.WorkerError`, and `time`."""
    lost = lost_peer(error, lost_peer_words)
    return {
        "code": "lost peer" if lost else "usage" if _refuses_usage(error) else "raised",
        "type": type(error).__name__,
        "message": _bounded(_text(error), LONGEST_MESSAGE),
        "traceback": _bounded("".join(traceback.format_exception(*shown)), LONGEST_TRACEBACK),
        "lost_peer": lost,
        "final": is_final(error),
        "reading": _reading(error.__traceback__),
        "time": time.time(),
    }


def is_final(error: BaseException) -> bool:
    """Returns whether a retry would fail too: a workload or the launcher has refused what was asked for."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return not names.isdisjoint(FINAL) and NOT_FINAL not in names


def _refuses_usage(error: BaseException) -> bool:
    trace = _innermost(error.__traceback__)
    raiser = None if trace is None else type(trace.tb_frame.f_locals.get("self"))
    known = {(kind.__module__, kind.__name__) for kind in (*type(error).__mro__, *(raiser.__mro__ if raiser else ()))}
    return not known.isdisjoint(REFUSED)


def shared_with_agent(leave: SystemExit, lost_peer_words: str, above: tuple[str, ...] = ABOVE) -> dict[str, Any] | None:
    """Returns the report of a rank that leaves by `sys.exit`; the first row that applies decides.

    | sys.exit of | while an exception was handled | report |
    |---|---|---|
    | a text (exit code 1) | any | of the text |
    | 0, 75, or 2 (a usage error by convention: the agent finds it among what was printed) | any | None |
    | another code | yes, as Hydra does after any error | of the exception, as `error_report` |
    | | no | None |
    """
    if isinstance(leave.code, str):
        report = error_report(leave, cut(leave, above), "")
        return {**report, "code": "sys.exit", "message": _bounded(f"sys.exit({leave.code!r})", LONGEST_MESSAGE)}
    cause = None if leave.__suppress_context__ else leave.__context__
    if leave.code in (None, 0, 2, 75) or not isinstance(cause, Exception):
        return None
    return error_report(cause, cut(cause, above), lost_peer_words)


def lost_peer(error: BaseException, words: str) -> bool:
    """Returns whether an error means that another rank is gone. The error's type and where it was raised decide.

    | type | raised | text | lost peer |
    |---|---|---|---|
    | torch.distributed's DistNetworkError | anywhere | any | yes |
    | another error of torch.distributed (DistBackendError, DistStoreError) | anywhere | of a lost connection | yes |
    | RuntimeError itself | in torch.distributed, or in autograd's engine (by DDP) | of a lost connection | yes |
    | RuntimeError itself | by native code that the user's code calls (`work.wait()`) | gloo's lost connection | yes |
    | RuntimeError itself | by a `raise` in the user's code | any | no |
    | any other, such as ConnectionRefusedError or URLError | anywhere | any | no |
    | any other, `raise ... from` one of those above | anywhere | any | yes |

    The text is checked in addition, since torch has one type for many causes: tensors of different shapes are a
    RuntimeError of torch.distributed as well.
    """
    seen = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        if _is_lost_peer(cause, words):
            return True
        cause = cause.__cause__
    return False


def _is_lost_peer(error: BaseException, words: str) -> bool:
    trace = error.__traceback__
    names = {kind.__name__ for kind in type(error).__mro__ if kind.__module__.startswith("torch.")}
    if "DistNetworkError" in names:
        return True
    text = _text(error)
    if not words or not re.search(words, text):
        return False
    if any(name.startswith("Dist") for name in names):
        return True
    gloos = re.match(r"\[[^\]\s]*gloo/[^\]\s]*:\d+\] ", text)
    return type(error) is RuntimeError and (_in_collective(trace) or (gloos is not None and _raised_natively(trace)))


def _in_collective(trace: types.TracebackType | None) -> bool:
    inner = False
    while trace is not None:
        module = str(trace.tb_frame.f_globals.get("__name__", ""))
        if module != "torch" and not module.startswith("torch."):
            inner = False
        elif module.startswith(("torch.distributed", "torch.autograd")):
            inner = True
        trace = trace.tb_next
    return inner


def _raised_natively(trace: types.TracebackType | None) -> bool:
    # Returns whether native code raised the error, and not a `raise` statement in the innermost Python frame
    if (inner := _innermost(trace)) is None:
        return False
    code, at = inner.tb_frame.f_code.co_code, inner.tb_lasti
    return 0 <= at < len(code) and code[at] != opcode.opmap["RAISE_VARARGS"]


def _innermost(trace: types.TracebackType | None) -> types.TracebackType | None:
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace


def _reading(trace: types.TracebackType | None) -> str:
    while trace is not None:
        frame = trace.tb_frame
        argument = READERS.get((str(frame.f_globals.get("__name__")), frame.f_code.co_name))
        if argument is not None:
            file = frame.f_locals.get(argument)
            path = getattr(file, "name", None) if hasattr(file, "read") else file
            return _bounded(os.fsdecode(path), LONGEST_MESSAGE) if isinstance(path, (str, bytes, os.PathLike)) else ""
        trace = trace.tb_next
    return ""


def cut(error: BaseException, above: tuple[str, ...]) -> Cut:
    """Returns type, error and traceback, now without the outermost frames of files that start with one in `above`."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(above):
        frames = frames.tb_next
    return type(error), error.with_traceback(frames), frames


def write_report(descriptor: int, owner: int, report: dict[str, Any], delay: float = 0.0) -> None:
    """Writes a report for the agent (-1: nowhere); `delay`: so that the report of a lost peer comes first."""
    if report.get("error", {}).get("lost_peer"):
        time.sleep(delay)
    if descriptor < 0 or os.getpid() != owner:
        return
    data = json.dumps(report).encode()
    with contextlib.suppress(OSError):  # the agent still gets the exit code
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, data, 0)


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as instead:
        return f"<its text cannot be made: {type(instead).__name__}>"


def _bounded(text: str, most: int) -> str:
    text = text.encode("utf-8", "backslashreplace").decode()
    if len(text) <= most:
        return text
    return f"{text[: most // 2]}\n[... {len(text) - most} characters left out ...]\n{text[-most // 2 :]}"


_debug: dict[str, Any] = {}  # "arguments" of `debugger.install`, and what it returns ("watch") once it is called


def _first_breakpoint(*arguments: Any, **options: Any) -> None:
    _load_debugger()
    sys.breakpointhook(*arguments, **options)  # must be the last statement


def _load_debugger() -> None:
    # Installs launcher's debugger if this interpreter can import launcher; otherwise breakpoint() does nothing
    sys.breakpointhook = sys.__breakpointhook__
    arguments = dict(_debug["arguments"])
    folder = arguments.pop("launcher")
    sys.path.append(folder)
    try:
        from launcher.worker import debugger

        _debug["watch"] = debugger.install(**arguments)
    except (ImportError, SyntaxError) as error:
        sys.stderr.write(f"launcher: no breakpoints here: this Python cannot import the launcher ({error})\n")
        sys.breakpointhook = lambda *_, **__: None
    finally:
        sys.path.remove(folder)


def _debug_error(error: BaseException) -> BaseException:
    watch = _debug.get("watch")
    if watch is None:
        return error
    try:
        watch.__exit__(type(error), error, cut(error, ABOVE)[2])
    except Exception as instead:  # the user has typed q
        return instead.with_traceback(None)
    return error


def _prepare(settings: dict[str, Any]) -> None:
    if "debug" in settings and "PYTHONBREAKPOINT" not in os.environ:
        _debug["arguments"] = settings["debug"]
        if settings["debug"]["ranks"]:
            _load_debugger()
        else:
            sys.breakpointhook = _first_breakpoint
    if not faulthandler.is_enabled():
        faulthandler.enable(file=2)  # a segmentation fault leaves its stacks in the log
    if "stacks" in settings:  # the agent requests stacks when this rank hangs
        faulthandler.register(signal.SIGQUIT, file=settings["stacks"], all_threads=True, chain=False)
    for descriptor in settings.get("descriptors", ()):
        with contextlib.suppress(OSError):
            os.set_inheritable(descriptor, False)


def run_script(path: str, arguments: list[str]) -> None:
    """Runs a script in this process, as `python PATH ARGUMENTS...` would."""
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
    sys.modules["__main__"] = module  # pickle and multiprocessing's spawn look the program up there
    exec(code, module.__dict__)  # noqa: S102


def run_module(name: str, arguments: list[str]) -> None:
    """Runs a module in this process, as `python -m NAME ARGUMENTS...` would."""
    sys.argv[:] = [name, *arguments]
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, os.getcwd())
    runpy.run_module(name, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
