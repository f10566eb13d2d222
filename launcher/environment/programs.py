"""The program that a run starts: which file, in which interpreter, with which set-up lines and arguments."""

from __future__ import annotations

import ast
import json
import os
import shlex
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.config import overrides
from launcher.config.schema import Function, Program
from launcher.errors import ConfigError, near
from launcher.fast_dataclasses import Struct
from launcher.paths import absolute

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

    from launcher.plan.plan import JobPlan


class SetupLine(Struct):
    """A shell line (or several that belong together) that the job script runs before the agents start."""

    line: str
    words: str  # what errors call the line: `line 2 of env.setup`


# -- Checks at submission that the packages of a run's trackers (TensorBoard, MLflow, W&B) are installed


def check(plan: JobPlan) -> tuple[str, ...]:
    """Returns notes on the trackers' packages that are missing; ConfigError: the job would certainly lack one."""
    missing = [name for name in plan.track if not _is_installed(name)]
    if not missing:
        return ()
    needs = f"track={missing[0]} needs the package {missing[0]}"
    fix = f"pip install 'launcher[{','.join(missing)}]'"
    if where := plan.env.container or plan.env.archive or plan.env.activate:
        return (f"{needs}, which is not installed here; {where} has to have it",)
    if plan.cluster.setup or plan.env.modules or plan.env.setup or "PYTHONPATH" in plan.cluster.environment:
        where = "cluster.setup, cluster.environment or env"
        return (f"{needs}, which is not installed here; unless {where} provides it: {fix}",)
    raise ConfigError(f"{needs}, which {plan.python} does not have: {fix}, or leave out the key track")


@lru_cache
def _is_installed(name: str) -> bool:
    spec = find_spec(name)
    return spec is not None and spec.origin is not None  # a mere folder has no origin; W&B makes one called `wandb`


# -- Checks the user's own environment (env.activate), whose Python runs the ranks, with the launcher on PYTHONPATH


NEEDED = ("torch", "numpy", "submitit")  # imported by launcher.agent, and needed by submitit and torch
OLDEST, NEWEST = (3, 10), (3, 13)  # versions of Python; Hydra 1.3 breaks on 3.14
TIMEOUT = 60.0  # seconds for a Python to start from a cold file system
QUERY = """
import importlib.util, json, sys
missing = [name for name in sys.argv[1:] if importlib.util.find_spec(name) is None]
print(json.dumps([list(sys.version_info[:2]), missing]))
"""
# The job script checks this first (launcher/job/begin.sh), since batch shells do not always have `module`.
MODULE = "type module >/dev/null 2>&1"
# Activates an environment by its path; $launcher_env is set before. `conda init` would need an interactive shell.
ACTIVATE = """\
if [ -d "$launcher_env/conda-meta" ]; then
  export PATH="$launcher_env/bin:$PATH" CONDA_PREFIX="$launcher_env" CONDA_DEFAULT_ENV="$launcher_env" CONDA_SHLVL=1
  unset PYTHONHOME
  for launcher_file in "$launcher_env"/etc/conda/activate.d/*.sh; do
    if [ -r "$launcher_file" ]; then . "$launcher_file"; fi
  done
  true
elif [ -r "$launcher_env/bin/activate" ]; then
  . "$launcher_env/bin/activate"
else
  echo "launcher: $(hostname) sees no environment in $launcher_env (env.activate)" >&2
  false
fi"""


def seen(key: str, name: str, do: str, *, here: bool) -> tuple[Path, tuple[str, ...]]:
    """Returns the absolute path of what a setting (`key`: `env.activate=`) names, or raises ConfigError.

    With a note if it cannot be checked: not even its parent folder is on this machine, and the run is not `here`.
    """
    path = absolute(name)
    if path.exists():
        return path, ()
    if path.parent.is_dir():
        raise ConfigError(f"{key}{name}: there is no {path.name} in {path.parent}: {do}")
    if here:
        raise ConfigError(f"{key}{path} is not there")
    return path, (f"{key}{name} is not visible on this machine, and was not checked: the nodes need it",)


def checked(folder: str, given_as: str = "env.activate=", *, here: bool = False) -> tuple[str, tuple[str, ...]]:
    """Returns a venv's or conda environment's absolute path, and notes, as `seen`; raises ConfigError."""
    key = f"{given_as}{folder}"
    path, notes = seen(given_as, folder, "name the folder of an environment", here=here)
    if notes:
        return str(path), notes
    if path.is_file() and path.name == "activate":
        raise ConfigError(f"{key} is a script: name the environment's folder, {path.parents[1]}")
    if not (path / "conda-meta").is_dir() and not (path / "bin/activate").is_file():
        raise ConfigError(f"{key} is no environment: it has neither bin/activate (venv, uv) nor conda-meta (conda)")
    return str(path), _query(key, path)


def _query(key: str, path: Path) -> tuple[str, ...]:
    python = path / "bin/python"
    if not os.access(python, os.X_OK):
        raise ConfigError(f"{key}: it has no Python ({python}): install one into it")
    environ = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    try:
        done = subprocess.run(
            [str(python), "-c", QUERY, *NEEDED], cwd="/", env=environ, capture_output=True, text=True, timeout=TIMEOUT,
            check=True,
        )  # fmt: skip
        version, missing = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        return (f"{key}: its Python does not start here ({error}), and was not checked; it may start on the nodes",)
    if reason := problem(version, missing):
        fix = f": {python} -m pip install {' '.join(missing)}" if missing else ""
        raise ConfigError(f"{key} {reason}{fix}")
    return ()


def problem(version: Sequence[int], missing: Sequence[str]) -> str:
    """Returns why ranks cannot run with an interpreter, as text; empty: they can."""
    if not OLDEST <= tuple(version) <= NEWEST:
        names = [".".join(map(str, each)) for each in (version, OLDEST, NEWEST)]
        return f"has Python {names[0]}: the launcher runs with {names[1]} to {names[2]}"
    return f"lacks {', '.join(missing)}, which every run needs" if missing else ""


# -- Checks the user's programs and functions at submission, without executing or importing them
# A missing script, a syntax error or a wrong function name is reported at once, not after hours in a queue.


ELF = b"\x7fELF"


class ModulePath(Struct):
    """Where Python will look for modules in the job."""

    workdir: Path  # folder in which the job starts
    path: tuple[str, ...]  # folders of Python's module path, in order
    complete: bool = True  # whether `path` is the whole module path. Set-up lines may add folders to it in the job


def here(environment: Mapping[str, Any], setup: Sequence[str], folder: str | None = None) -> ModulePath:
    """Returns where Python looks for modules in a job of this folder; `setup` (lines, containers) may add to that."""
    folder = folder or os.getcwd()
    more = environment.get("PYTHONPATH", os.environ.get("PYTHONPATH")) or ""
    path = [folder, *str(more).split(os.pathsep), *sys.path]
    return ModulePath(Path(folder), tuple(dict.fromkeys(filter(None, path))), complete=not setup)


def checked_program(program: Program, place: ModulePath) -> Program:
    """Returns a checked program, with all arguments as strings in `args`; raises ConfigError with the fix."""
    if (program.script is None) == (program.module is None):
        both = "not both" if program.script else "none is given"
        raise ConfigError(f"workload=program needs workload.script=FILE.py or workload.module=NAME, and {both}")
    if program.python is not None:
        _require_interpreter(program)
    if program.script is not None:
        _check_script(program, place)
    elif program.python is None:  # another interpreter may find other modules
        _program(str(program.module), place)
    return replace(program, args=_arguments(program), flags={}, overrides={})


def checked_function(function: Function, place: ModulePath) -> Function:
    """Returns a checked function, with the target as `package.module:function`; raises ConfigError."""
    if function.target is None:
        raise ConfigError("workload=function needs workload.target=package.module:function, and none is given")
    module, name = _split(function.target)
    target = f"{module}:{name}"
    spec = _found(module, place, "workload.target")
    key = f"workload.target={function.target}"
    tree = _tree(spec, key)
    if spec is not None and spec.submodule_search_locations is not None:
        _refuse_module(spec, tree, name, key)
    if spec is not None and tree is not None:
        _check_call(tree, name, function.kwargs, key, str(spec.origin))
    return replace(function, target=target)


def entry_file(workload: Program | Function, place: ModulePath) -> tuple[str, str | None]:
    """Returns the setting of the workload's code (`workload.script=train.py`), its first file, or None; ConfigError."""
    if isinstance(workload, Function):
        module, _ = _split(str(workload.target))
        return f"workload.target={workload.target}", _file(_found(module, place, "workload.target"))
    if workload.script is not None:
        return f"workload.script={workload.script}", str(place.workdir / os.path.expanduser(workload.script))
    key = f"workload.module={workload.module}"
    return key, None if workload.python else _file(_program(str(workload.module), place))


def _file(spec: ModuleSpec | None) -> str | None:
    return spec.origin if spec is not None and spec.has_location else None


def _program(module: str, place: ModulePath) -> ModuleSpec | None:
    spec = _found(module, place, "workload.module")
    if spec is not None and spec.submodule_search_locations is not None:
        return _found(f"{module}.__main__", place, "workload.module")
    return spec


def _check_script(program: Program, place: ModulePath) -> None:
    key = f"workload.script={program.script}"
    path = place.workdir / os.path.expanduser(str(program.script))
    try:
        is_folder = stat.S_ISDIR(path.stat().st_mode)
    except PermissionError:
        raise ConfigError(f"{key}: you may not enter the folder that it is in: have its permissions changed") from None
    except (OSError, ValueError):  # ValueError: a NUL in it
        is_folder = False
    if is_folder:
        raise ConfigError(f"{key} is a folder: name the file in it (or, for a package, workload.module)")
    if not path.exists():
        folder = path.parent
        if not folder.is_dir():
            raise ConfigError(f"{key}: there is no folder {folder} (paths are relative to {place.workdir})")
        files = [each.name for each in folder.iterdir() if each.is_file()]
        module = f" It is a module: run --module {program.script}" if _is_module(str(program.script), place) else ""
        raise ConfigError(f"{key}: there is no file {path.name} in {folder}.{near(path.name, files)}{module}")
    if not path.is_file():
        raise ConfigError(f"{key} is no ordinary file")
    if not os.access(path, os.R_OK):
        raise ConfigError(f"{key} cannot be read: chmod u+r {path}")
    if is_executable(path):
        _check_executable(program, path, key)
        return
    if path.suffix != ".py" and not _is_text(path):
        raise ConfigError(f"{key} is neither a Python file nor executable: chmod u+x {path}")
    if program.python is None:  # another interpreter may have another syntax
        try:
            _parsed(path, key)
        except ConfigError as error:
            if path.suffix == ".py":
                raise
            raise ConfigError(f"{error}. If it is no Python file: chmod u+x {path}") from None


def _is_module(name: str, place: ModulePath) -> bool:
    try:
        return _found(name, replace(place, complete=True), "workload.module") is not None
    except ConfigError:
        return False


def _check_executable(program: Program, path: Path, key: str) -> None:
    for name in ("python", "fork"):
        if getattr(program, name):
            raise ConfigError(f"workload.{name} is for Python files, and {key} is an executable: leave it out")
    with path.open("rb") as file:
        begin = file.read(4)
    if not begin.startswith((b"#!", ELF)):
        raise ConfigError(f"{key} is executable, but neither a program nor a script that begins with #!/bin/bash")


def _is_text(path: Path) -> bool:
    try:
        return "\0" not in path.read_text()
    except UnicodeDecodeError:
        return False


def _require_interpreter(program: Program) -> None:
    path = Path(os.path.expanduser(str(program.python)))
    if program.fork:
        raise ConfigError("workload.fork=true runs in the launcher's own Python: leave workload.python out")
    if not path.is_absolute():
        raise ConfigError(f"workload.python={program.python}: give the whole path of the interpreter")
    if path.exists() and not os.access(path, os.X_OK):  # it may be there on the compute nodes only
        raise ConfigError(f"workload.python={program.python} cannot be executed: name bin/python of an environment")


def interpreter(program: Program, *, here: bool) -> tuple[str, ...]:
    """Returns a note if workload.python is not on this machine; raises ConfigError if the run is `here`."""
    if program.python is None or absolute(program.python).exists():
        return ()
    if here:
        seen("workload.python=", program.python, "name the interpreter of an environment", here=here)
    return (f"workload.python={program.python} is not on this machine, and was not checked: the nodes need it",)


def _arguments(program: Program) -> list[str]:
    try:
        given = words(program.args)
    except ValueError as error:
        raise ConfigError(
            f"workload.args: {error}. Write `launcher run train.py -- --lr 0.1`, a list (workload.args='[--lr,0.1]'), "
            "or a text (\"workload.args='--lr 0.1'\")"
        ) from None
    try:
        flags = options(program.flags)
    except ValueError as error:
        raise ConfigError(f"workload.flags: {error}") from None
    end = given.index("--") if "--" in given else len(given)  # the last of several options wins
    return [*given[:end], *flags, *given[end:], *_overrides(program.overrides)]


def _overrides(values: Mapping[str, Any], prefix: str = "") -> list[str]:
    found = []
    for name, value in values.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping):
            found += _overrides(value, f"{key}.")
        else:
            found.append(f"{key}={overrides.element(value)}")
    return found


def _parsed(path: Path, key: str) -> ast.Module:
    try:
        return ast.parse(path.read_bytes(), str(path))
    except OSError as error:
        raise ConfigError(f"{key}: {path} cannot be read: {error.strerror}") from None
    except SyntaxError as error:
        line = f" {error.text.strip()!r}" if error.text else ""
        raise ConfigError(f"{key} is not valid Python: {path}, line {error.lineno}:{line}: {error.msg}") from None
    except ValueError as error:  # a zero byte
        raise ConfigError(f"{key} is not valid Python: {path}: {error}") from None


def _split(target: str) -> tuple[str, str]:
    module, colon, name = target.partition(":")
    if not colon:
        module, _, name = target.rpartition(".")
    if not (module and name and all(part.isidentifier() for part in f"{module}.{name}".split("."))):
        raise ConfigError(f"workload.target={target!r} is not package.module:function")
    return module, name


def _found(name: str, place: ModulePath, key: str) -> ModuleSpec | None:
    path: Sequence[str] | None = None
    spec = None
    parts = name.split(".")
    if not all(part.isidentifier() for part in parts):
        raise ConfigError(f"{key}={name!r} is no name of a module (without .py, dots between its parts)")
    for number in range(len(parts)):
        whole, parent = ".".join(parts[: number + 1]), ".".join(parts[:number])
        spec = _spec(whole, place.path if path is None else path, top=path is None)
        if spec is None:
            if not place.complete:
                return None
            where = f"{parent} ({', '.join(path)})" if path else f"{place.workdir} and on Python's path"
            siblings = [f"{parent}.{each}" if parent else each for each in _modules([*(path or [str(place.workdir)])])]
            raise ConfigError(
                f"{key}={name}: there is no module {whole} in {where}.{near(whole, siblings)}"
                + ("" if path else " Submit in the folder that has it, or put that on PYTHONPATH")
            )
        if number + 1 < len(parts):
            if spec.submodule_search_locations is None:
                raise ConfigError(f"{key}={name}: {whole} is a module ({spec.origin}), no package with others in it")
            path = list(spec.submodule_search_locations)
    return spec


def _spec(name: str, path: Sequence[str], *, top: bool) -> ModuleSpec | None:
    # Searches the last part of the name: with the whole name, a parent namespace package would have to be imported.
    if found := PathFinder.find_spec(name.rpartition(".")[2], list(path)):
        found.name = name
        return found
    for finder in sys.meta_path:  # built-in modules, editable installs
        find = getattr(finder, "find_spec", None)
        if find is not None and finder is not PathFinder and (found := find(name, None if top else list(path))):
            return found
    return None


def _modules(folders: Sequence[str]) -> Iterator[str]:
    for folder in folders:
        if os.path.isdir(folder):
            for entry in os.scandir(folder):
                if entry.name.endswith(".py") or entry.is_dir():
                    yield entry.name.removesuffix(".py")


def _tree(spec: ModuleSpec | None, key: str) -> ast.Module | None:
    return _parsed(Path(spec.origin), key) if spec and spec.origin and spec.origin.endswith(".py") else None


def _refuse_module(package: ModuleSpec, tree: ast.Module | None, name: str, key: str) -> None:
    first, _, _ = name.partition(".")
    names, _ = _names(tree.body) if tree is not None else ({}, False)
    imported = names.get(first)
    if imported is not None and not (isinstance(imported, ast.ImportFrom) and imported.module is None):
        return  # `from . import train` alone may be a module
    folders = list(package.submodule_search_locations or ())
    inner = _spec(f"{package.name}.{first}", folders, top=False)
    if inner is not None:
        body = _tree(inner, key)
        functions = [each.name for each in body.body if isinstance(each, ast.FunctionDef)] if body is not None else []
        example = f"{inner.name}:{'main' if 'main' in functions or not functions else functions[0]}"
        has = f". It has {', '.join(functions)}" if functions else ""
        raise ConfigError(f"{key} is a module: name a function in it, as in workload.target={example}{has}")
    if tree is None and package.origin is None:
        modules = list(_modules(folders))
        raise ConfigError(f"{key}: there is no {first} in the folder {', '.join(folders)}.{near(first, modules)}")


def _check_call(tree: ast.Module, name: str, kwargs: Mapping[str, Any], key: str, origin: str) -> None:
    first = name.partition(".")[0]
    names, open_ended = _names(tree.body)
    if first not in names:
        if open_ended:  # it has `from x import *`, or a __getattr__
            return
        raise ConfigError(f"{key}: there is no {first} in {origin}.{near(first, names)}")
    node = names[first]
    if "." in name or not isinstance(node, ast.FunctionDef) or node.decorator_list:
        return
    arguments = node.args
    if arguments.posonlyargs:
        raise ConfigError(f"{key}: {name}() takes arguments by position (before `/`): give them names")
    named = [*arguments.args, *arguments.kwonlyargs]
    known = [each.arg for each in named]
    unknown = [each for each in kwargs if each not in known]
    if unknown and arguments.kwarg is None:
        raise ConfigError(
            f"workload.kwargs.{unknown[0]}: {name}() in {origin} takes no argument {unknown[0]!r}."
            f"{near(unknown[0], known)} It takes {', '.join(known) or 'none'}"
        )
    plain = arguments.args[: len(arguments.args) - len(arguments.defaults)]
    by_name = [each for each, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if value is None]
    missing = [each.arg for each in [*plain, *by_name] if each.arg not in kwargs]
    if missing:
        raise ConfigError(
            f"{key}: {name}() needs {', '.join(missing)}: add "
            + " ".join(f"workload.kwargs.{each}=..." for each in missing)
        )


def _names(body: Sequence[ast.stmt]) -> tuple[dict[str, ast.stmt], bool]:
    # Statements within if, try and with are included
    names: dict[str, ast.stmt] = {}
    open_ended = False
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names[node.name] = node
            open_ended |= node.name == "__getattr__"
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                open_ended |= alias.name == "*"
                names[(alias.asname or alias.name).partition(".")[0]] = node
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                names |= {each.id: node for each in ast.walk(target) if isinstance(each, ast.Name)}
        else:
            for field in ("body", "orelse", "finalbody", "handlers"):
                for inner in getattr(node, field, []):
                    deeper, more = _names(inner.body if isinstance(inner, ast.ExceptHandler) else [inner])
                    names |= deeper
                    open_ended |= more
    return names, open_ended


# -- The arguments of a program, from the keys of workload=program


def words(given: str | Sequence[Any]) -> list[str]:
    """Returns a program's arguments as strings, from values or a shell-like string; ValueError: null, lists, quotes."""
    if isinstance(given, str):
        return shlex.split(given)
    if not isinstance(given, (list, tuple)):
        raise ValueError(f"{given!r} is neither a list nor a text")
    found = []
    for number, each in enumerate(given, 1):
        if each is None:
            raise ValueError(f"argument {number} is null, which is not text: leave it out, or quote it ('null')")
        if not isinstance(each, (str, int, float)):
            raise ValueError(f"argument {number}, {each!r}, is neither text nor a number")
        found.append(str(each).lower() if isinstance(each, bool) else str(each))
    return found


def options(flags: Mapping[str, Any]) -> list[str]:
    """Returns named arguments as options of a program.

    | value | arguments |
    |---|---|
    | `lr: 0.1` | `--lr 0.1` |
    | `b: 32` (a name of one letter) | `-b 32` |
    | `amp: true` | `--amp` |
    | `amp: false`, `amp: null` | none |
    | `sizes: [1, 2]` | `--sizes 1 2` |

    Raises ValueError: a value has another type.
    """
    found = []
    for name, value in flags.items():
        if value is None or value is False:
            continue
        found.append(f"{'-' if len(name) == 1 else '--'}{name}")
        if isinstance(value, Mapping):
            raise ValueError(f"{name} is a section: only workload.overrides has names with a dot in them")
        if value is not True:
            found += words(value if isinstance(value, list) else [value])
    return found


def is_executable(path: Path) -> bool:
    """Returns whether a file can be executed without an interpreter: it has the x bit, and its name has no `.py`."""
    return path.suffix != ".py" and os.access(path, os.X_OK)
