"""What a workload brings to its submission: a class that the key `workload.hook` names, asked on the login node.

It finds what the workload needs, refuses what could not run, and knows the workload's data sets. Of a single workload
the launcher knows nothing else.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from launcher.errors import ConfigError, LauncherError
from launcher.paths import resource, user_config_dir

if TYPE_CHECKING:
    from launcher.config.schema import Config, Workload
    from launcher.spec.plan import JobPlan

# The line of a workload's file; a YAML parser takes longer to load than everything else that `launcher data` needs.
_HOOK = re.compile(r"""^hook:[ \t]*(["']?)([^\s"'#]+:[^\s"'#]+)\1[ \t]*(?:#.*)?$""", re.MULTILINE)

Progress = Callable[[str, int, int], None]  # file name, bytes so far, bytes in all


class Place(Protocol):
    """Where a data set is on this machine, and in words how it got there."""

    @property
    def dir(self) -> Path: ...
    @property
    def how(self) -> str: ...


class DataSet(Protocol):
    """A data set that `launcher data` lists and fetches."""

    @property
    def name(self) -> str: ...

    def find(self, data_dir: Path | None) -> Place | None:
        """Where it is, verified, below `data_dir` or (None) where it belongs; None: it is not there.

        Raises:
            ConfigError: it is damaged.
        """

    def fetch(self, data_dir: Path | None, mirrors: Sequence[str] | None, progress: Progress) -> Place:
        """Gets it from the internet: from the base URLs `mirrors`, or (None) from its own.

        Raises:
            ConfigError: none of them had it.
        """


class WorkloadHook:
    """What a workload brings to its submission; each method may be left out.

    One object answers for a whole submission, so it may keep what it has found for the other points of a sweep. Its
    module is imported on the login node: without torch, if a submission is to stay fast.
    """

    def prepare(self, config: Config) -> tuple[Workload, Sequence[str]]:
        """The workload's keys, with what was found on this machine in them, and notes for whoever submits.

        Raises:
            ConfigError: something is not there, or the keys do not go together; the text names the key and the fix.
        """
        return config.workload, ()

    def check(self, plan: JobPlan) -> Sequence[str] | None:
        """Checks that the plan can run; returns notes for the user.

        The workload's keys are `plan.workload.params`, its ranks `plan.world_size`.

        Raises:
            ConfigError: it could not; the text names the key and the fix.
        """

    def data_sets(self) -> Sequence[DataSet]:
        """What `launcher data` lists for this workload."""
        return ()


@dataclass(frozen=True)
class Hook:
    """A workload's hook under its name, which is blamed for what goes wrong in it."""

    name: str
    own: WorkloadHook

    def prepare(self, config: Config) -> tuple[Workload, tuple[str, ...]]:
        with _blamed(self.name):
            workload, notes = self.own.prepare(config)
            if type(workload) is not type(config.workload):
                raise TypeError(f"prepare() returned {workload!r:.80}, and no {type(config.workload).__name__}")
            return workload, tuple(notes)

    def check(self, plan: JobPlan) -> tuple[str, ...]:
        with _blamed(self.name):
            return tuple(self.own.check(plan) or ())

    def data_sets(self) -> tuple[Source, ...]:
        with _blamed(self.name):
            return tuple(Source(self.name, each) for each in self.own.data_sets())


@dataclass(frozen=True)
class Source:
    """A data set, and the hook that is blamed for it."""

    hook: str
    own: DataSet

    @property
    def name(self) -> str:
        return self.own.name

    def find(self, data_dir: Path | None) -> Place | None:
        with _blamed(self.hook):
            return self.own.find(data_dir)

    def fetch(self, data_dir: Path | None, mirrors: Sequence[str] | None, progress: Progress) -> Place:
        with _blamed(self.hook):
            return self.own.fetch(data_dir, mirrors, progress)


def load(name: str | None) -> Hook:
    """The hook that `workload.hook` names as `module:class`; None: one that asks nothing.

    Raises:
        ConfigError: there is none, or it cannot be imported.
    """
    if name is None:
        return Hook("", WorkloadHook())
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise ConfigError(f"workload.hook={name}: write it as package.module:Class")
    with _blamed(name):
        kind = getattr(importlib.import_module(module), attribute)
        if not (isinstance(kind, type) and issubclass(kind, WorkloadHook)):
            raise TypeError(f"{attribute} is no subclass of launcher.WorkloadHook")
        return Hook(name, kind())


def data_sets() -> tuple[dict[str, Source], tuple[str, ...]]:
    """The data sets of all workloads by name, ours first, and what is wrong with hooks that could not be asked."""
    known: dict[str, Source] = {}
    problems = []
    for path in (path for folder in (resource("conf"), user_config_dir()) for path in _files(folder / "workload")):
        try:
            for each in load(_hook_in(path)).data_sets():
                known.setdefault(each.name, each)
        except LauncherError as error:
            problems.append(f"{path}: {error}")
    return known, tuple(problems)


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.yaml"))


def _hook_in(path: Path) -> str | None:
    """The hook in a workload's file; what such a file inherits is listed for the workload that it is from.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        found = _HOOK.search(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"it cannot be read: {error}") from None
    return found[2] if found else None


@contextlib.contextmanager
def _blamed(name: str) -> Iterator[None]:
    """Inside, Python finds the modules of the working folder too, after all others, as it does in the job.

    Raises:
        ConfigError: what was raised inside, with the key and the place.
    """
    folder = os.getcwd()
    added = folder not in sys.path
    if added:
        sys.path.append(folder)
    try:
        yield
    except LauncherError:
        raise
    except Exception as error:  # the user's own code may raise anything
        # Lazily: only an error needs it
        import traceback

        frames = [each for each in traceback.extract_tb(error.__traceback__) if Path(each.filename).is_file()]
        place = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames[1:] else ""
        raise ConfigError(f"workload.hook={name}: {type(error).__name__}: {error}{place}") from error
    finally:
        if added:
            sys.path.remove(folder)
