"""Makes a process that has torch what a new Python with some arguments would be.

Such a process is a fork of the `server`, or a rank that its agent, one of these forks, has forked: where a rank would
execute Python for a user's program (`launcher.worker.user_script`), it goes on as that Python. Process id, parent and
process group stay, as with exec.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import ctypes
import faulthandler
import gc
import importlib
import importlib.abc
import importlib.machinery
import io
import logging
import os
import pkgutil
import runpy
import signal
import sys
import tempfile
import threading
import types
import weakref
from collections.abc import Collection, Mapping, Sequence
from multiprocessing import util
from pathlib import Path
from typing import Any, NoReturn

from tests.warm_python.client import ARGUMENTS, CATCHABLE, ENVIRONMENT, area, program

# A process with these variables would import something else, or something in another way.
OWN = ("LD_", "MKL_", "TORCH_LOGS", "TORCH_DISTRIBUTED_DEBUG", "PYTHON")
HARMLESS = ("PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE")
RANKS_PROGRAM, RANKS_MODULE = "/launcher/worker/user_script.py", "launcher.worker.user_script"
PYTHON_IGNORES = (signal.SIGPIPE, signal.SIGXFSZ)
_path = sys.path[1:]  # without what a process adds
_execve = os.execve


def can_be(arguments: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Returns whether a Python with these starts as this process did, and can show them in /proc."""
    folders = environment.get("PYTHONPATH", "").split(os.pathsep)
    return (
        not any(name.startswith(OWN) and name not in HARMLESS for name in environment)
        and not any(os.path.exists(f"{folder}/sitecustomize.py") for folder in folders)
        and _fits(ENVIRONMENT, _of_environment(environment))
        and _fits(ARGUMENTS, _of_arguments(arguments))
    )


def _of_environment(environment: Mapping[str, str]) -> bytes:
    return b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in environment.items())


def _of_arguments(arguments: Sequence[str]) -> bytes:
    return b"".join(os.fsencode(each) + b"\0" for each in arguments)


def _fits(field: int, data: bytes) -> bool:
    begin, end = area(field)
    return len(data) < end - begin


def _show(field: int, data: bytes) -> None:
    # in /proc/PID/environ or cmdline, of this process and its forks
    begin, end = area(field)
    ctypes.memmove(begin, data.ljust(end - begin, b"\0"), end - begin)


def become(arguments: Sequence[str], environment: Mapping[str, str], ignored: Collection[int]) -> None:
    """Gives this process what a new one would have; see `run`. ignored: signals that its parent ignores."""
    os.environ.clear()
    os.environ.update(environment)
    _show(ENVIRONMENT, _of_environment(environment))
    _show(ARGUMENTS, _of_arguments(arguments))
    for number in CATCHABLE:
        ignores = number in ignored or number in PYTHON_IGNORES
        signal.signal(number, signal.SIG_IGN if ignores else signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if signal.SIGINT not in ignored:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    unbuffered = "-u" in arguments[1:2] or bool(os.environ.get("PYTHONUNBUFFERED"))
    sys.stdout = sys.__stdout__ = _output(1, unbuffered, "strict")
    sys.stderr = sys.__stderr__ = _output(2, unbuffered, "backslashreplace")
    sys.executable, sys.orig_argv = arguments[0], list(arguments)
    sys.path[:] = [*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), *_path]
    tempfile.tempdir = None
    _set_threads()
    os.execve = _execute


def _output(number: int, unbuffered: bool, errors: str) -> io.TextIOWrapper:
    raw = io.FileIO(number, "w", closefd=False)
    if unbuffered:
        return io.TextIOWrapper(raw, "utf-8", errors, write_through=True)
    return io.TextIOWrapper(io.BufferedWriter(raw), "utf-8", errors, line_buffering=number == 2 or raw.isatty())


def _set_threads() -> None:
    # as libgomp does when it is loaded
    torch = sys.modules["torch"]
    threads = int(os.environ.get("OMP_NUM_THREADS") or len(os.sched_getaffinity(0)))
    (library,) = Path(str(torch.__file__)).parent.glob("lib/libgomp*")
    ctypes.CDLL(str(library)).omp_set_num_threads(threads)
    if torch.get_num_threads() != threads:  # it was set
        torch.set_num_threads(threads)


def run(arguments: Sequence[str]) -> NoReturn:
    """Runs the program of the arguments, and ends the process."""
    wanted = program(arguments)
    assert wanted is not None, arguments
    kept = _forget_modules()
    option, target, words = wanted
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main
    sys.argv = [option or target, *words]
    sys.path.insert(0, {"-c": "", "-m": os.getcwd()}.get(option, os.path.dirname(os.path.realpath(target))))
    code = 0
    try:
        if option == "-m":
            runpy._run_module_as_main(target)
        elif option == "-c":
            exec(compile(target, "<string>", "exec", dont_inherit=True), main.__dict__)
        else:
            main.__file__ = target
            main.__loader__ = importlib.machinery.SourceFileLoader("__main__", target)
            exec(compile(Path(target).read_bytes(), target, "exec", dont_inherit=True), main.__dict__)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if end.code is not None and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
    except BaseException as error:
        trace = error.__traceback__ and error.__traceback__.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        code = 1
        if isinstance(error, KeyboardInterrupt):
            sys.stdout.flush()
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
    _end(main, code)
    raise AssertionError(f"it has ended: {kept}")


def _end(main: types.ModuleType, code: int) -> None:
    # As the interpreter does, which also takes all modules apart: with torch's, that takes longer than the fork
    threading._shutdown()
    atexit._run_exitfuncs()
    if _threads() == 1:  # else some that need them still run
        main.__dict__.clear()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code & 0xFF)


def _forget_modules() -> list[types.ModuleType]:
    # Who calls this keeps them: their files have the numbers of the program's files by now
    return [sys.modules.pop(name) for name in [*_ours(), "__main__"]]


def _ours() -> list[str]:
    return [name for name in sys.modules if name.partition(".")[0] in ("tests", "launcher", "workloads")]


class _Imported(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    # Modules of a package that the server has imported, for forks that would import the package from the same folder

    def __init__(self, package: str) -> None:
        self._package = package
        ours = [name for name in _ours() if name.partition(".")[0] == package]
        self._modules = {name: sys.modules.pop(name) for name in ours}

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self._package:
            return None
        found = importlib.machinery.PathFinder.find_spec(name, path)
        if found is None or found.origin != self._modules[name].__file__:
            return None
        found.loader = self
        return found

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        run = sys.orig_argv  # a module that this process executes is not imported before
        sys.modules.update((name, module) for name, module in self._modules.items() if name not in run)
        return self._modules[spec.name]

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def import_ahead(packages: Collection[str]) -> None:
    """Imports all modules of these packages; a fork that imports them from the same folder has them at once."""
    for package in map(importlib.import_module, packages):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            if not module.name.endswith((".__main__", RANKS_MODULE)):  # they change sys.path
                importlib.import_module(module.name)
    sys.meta_path[:0] = [_Imported(name) for name in ("launcher", "workloads")]


def _threads() -> int:
    return sum(1 for _ in Path("/proc/self/task").iterdir())


def _execute(path: Any, arguments: Any, environment: Any) -> None:
    # Instead of os.execve, in forks of the server and in theirs
    ranks_program = path == sys.executable and arguments[1] == "-u" and arguments[2].endswith(RANKS_PROGRAM)
    if not ranks_program or _threads() > 1 or not can_be(arguments, environment):
        _execve(path, arguments, environment)
    ignored = _ignored()
    environment = dict(environment)
    _forget_files()
    sys.meta_path[:] = [each for each in sys.meta_path if not isinstance(each, _Imported)]  # the rank has used them
    faulthandler.disable()
    for number in CATCHABLE:
        with contextlib.suppress(RuntimeError):  # those of `disable`
            faulthandler.unregister(number)
    become(arguments, environment, ignored)
    sys.excepthook, sys.breakpointhook = sys.__excepthook__, sys.__breakpointhook__
    run(arguments)


def _ignored() -> list[int]:
    status = Path("/proc/self/status").read_text()
    (mask,) = (int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigIgn:"))
    return [number for number in CATCHABLE if mask >> (number - 1) & 1]


def _forget_files() -> None:
    # Closes what exec closes; nothing that has a file may end later, and close another one with its number
    atexit._clear()
    weakref.finalize._registry.clear()
    weakref.finalize._registered_with_atexit = False
    util._finalizer_registry.clear()
    for each in (logging.shutdown, util._exit_function):
        atexit.register(each)
    gc.collect()
    gc.freeze()
    for number in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        with contextlib.suppress(OSError):  # of the listing
            if not os.get_inheritable(number):
                os.close(number)
