"""What a workload adds to the checks before a submission, and the data sets that workloads name.

A hook finds the files that a workload needs, refuses configs that could not run, and lists the workload's data sets.
The launcher has no other code for a particular workload.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from launcher.errors import ConfigError, LauncherError
from launcher.fast_dataclasses import Struct
from launcher.paths import resource, user_config_dir

if TYPE_CHECKING:
    from launcher.config.schema import Config, Workload
    from launcher.plan.plan import JobPlan


Progress = Callable[[str, int, int], None]  # file name, bytes so far, total bytes


class Location(Protocol):
    """Where a data set is: its folder on this machine, and a text about how it got there."""

    @property
    def dir(self) -> Path: ...
    @property
    def how(self) -> str: ...


class DataSet(Protocol):
    """A data set that `launcher data` lists and fetches."""

    @property
    def name(self) -> str: ...

    def find(self, data_dir: Path | None) -> Location | None:
        """Finds the data set below `data_dir`, or in its usual folders; None: not there. ConfigError: it is damaged."""

    def fetch(self, data_dir: Path | None, mirrors: Sequence[str] | None, progress: Progress) -> Location:
        """Downloads it from the base URLs `mirrors`, by default its usual ones. Raises ConfigError: none had it."""


class WorkloadHook:
    """Base class of hooks. A subclass overrides the methods that it needs.

    One object serves all points of a sweep, so it may cache what it finds. Its module is imported on the login node;
    it should not import torch, because that would slow down submission.
    """

    def prepare(self, config: Config) -> tuple[Workload, Sequence[str]]:
        """Returns the workload's section of the config, completed with paths on this machine, and notes for the user.

        Raises ConfigError, which names the key and the fix: a file is missing, or keys contradict each other.
        """
        return config.workload, ()

    def check(self, plan: JobPlan) -> Sequence[str] | None:
        """Returns notes for the user, or None; raises ConfigError, with the key and the fix: the plan cannot run.

        The keys of the workload are in `plan.workload.params`, the number of ranks is `plan.world_size`.
        """

    def data_sets(self) -> Sequence[DataSet]:
        """Returns the data sets of this workload, for `launcher data`."""
        return ()


class Hook(Struct):
    """A workload's hook and its name (`module:Class`). Exceptions in the hook become ConfigErrors with that name."""

    name: str
    own: WorkloadHook

    def prepare(self, config: Config) -> tuple[Workload, tuple[str, ...]]:
        with _hook_errors(self.name):
            workload, notes = self.own.prepare(config)
            if type(workload) is not type(config.workload):
                raise TypeError(f"prepare() returned {workload!r:.80} instead of a {type(config.workload).__name__}")
            return workload, tuple(notes)

    def check(self, plan: JobPlan) -> tuple[str, ...]:
        with _hook_errors(self.name):
            return tuple(self.own.check(plan) or ())

    def data_sets(self) -> tuple[KnownDataSet, ...]:
        with _hook_errors(self.name):
            return tuple(KnownDataSet(self.name, each) for each in self.own.data_sets())


class KnownDataSet(Struct):
    """A data set and the name of its hook. Exceptions in the data set become ConfigErrors with the hook's name."""

    hook: str
    own: DataSet

    @property
    def name(self) -> str:
        return self.own.name

    def find(self, data_dir: Path | None) -> Location | None:
        with _hook_errors(self.hook):
            return self.own.find(data_dir)

    def fetch(self, data_dir: Path | None, mirrors: Sequence[str] | None, progress: Progress) -> Location:
        with _hook_errors(self.hook):
            return self.own.fetch(data_dir, mirrors, progress)


def load(name: str | None) -> Hook:
    """Imports the hook with a name (`module:Class`); for None, one that does nothing. Raises ConfigError."""
    if name is None:
        return Hook("", WorkloadHook())
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise ConfigError(f"workload.hook={name}: write it as package.module:Class")
    with _hook_errors(name):
        kind = getattr(importlib.import_module(module), attribute)
        if not (isinstance(kind, type) and issubclass(kind, WorkloadHook)):
            raise TypeError(f"{attribute} is no subclass of launcher.WorkloadHook")
        return Hook(name, kind())


@contextlib.contextmanager
def _hook_errors(name: str) -> Iterator[None]:
    # In it the working folder is last on Python's path
    folder = os.getcwd()
    added = folder not in sys.path
    if added:
        sys.path.append(folder)
    try:
        yield
    except LauncherError:
        raise
    except Exception as error:  # the user's own code may raise anything
        import traceback

        frames = [each for each in traceback.extract_tb(error.__traceback__) if Path(each.filename).is_file()]
        place = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames[1:] else ""
        if isinstance(error, ModuleNotFoundError) and f"{name.partition(':')[0]}.".startswith(f"{error.name}."):
            place = ". Submit in the folder that has it, or put that on PYTHONPATH"
        raise ConfigError(f"workload.hook={name}: {type(error).__name__}: {error}{place}") from error
    finally:
        if added:
            sys.path.remove(folder)


# -- Collects the data sets that the hooks of all workloads list, ours and the user's, for `launcher data` and `doctor`


# The line `hook: module:Class` of a workload's file. Loading a YAML parser would take longer than the whole command.
_HOOK = re.compile(r"""^hook:[ \t]*(["']?)([^\s"'#]+:[^\s"'#]+)\1[ \t]*(?:#.*)?$""", re.MULTILINE)


def data_sets_of_all() -> tuple[dict[str, KnownDataSet], tuple[str, ...]]:
    """Returns the data sets of all workloads by name, ours first, and the errors of hooks that could not be loaded."""
    known: dict[str, KnownDataSet] = {}
    problems = []
    folders = [folder / "workload" for folder in (resource("conf"), user_config_dir())]
    for path in (path for folder in folders for path in sorted(folder.glob("*.yaml"))):
        try:
            for each in load(_hook_in(path)).data_sets():
                known.setdefault(each.name, each)
        except LauncherError as error:
            problems.append(f"{path}: {error}")
    return known, tuple(problems)


def _hook_in(path: Path) -> str | None:
    try:
        found = _HOOK.search(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"it cannot be read: {error}") from None
    return found[2] if found else None
