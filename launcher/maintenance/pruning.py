"""Which old runs and sweeps may be removed, and removing them.

| the run or sweep | is removed |
|---|---|
| is live, or waits (of a sweep: one of its points) | no |
| nobody knows its state now: the scheduler, or the file server, does not answer | no |
| cannot be read, or has a point that cannot | no |
| is needed by another one that is not over: it waits for it (`after`), or names a file in it (`baseline`, ...) | no |
| is being submitted now, or belongs to another user | no |
| its last news is younger than was asked for, or nobody knows when it was | no |
| otherwise, if its state is one of those asked for | yes, as a whole: no point is removed alone |

What a run keeps outside of its directory (`checkpoint.dir`, the code of a repository, data) stays.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from launcher.errors import RunError
from launcher.files import locks
from launcher.files.ownership import is_own, require_own
from launcher.files.shared_files import exists, list_names, read_text, unwrap
from launcher.monitoring.live import DAMAGE, Damaged, look, look_at_each, read, readable
from launcher.monitoring.sweep import DAMAGED, LIVE, WAITING, SweepLive, counts, look_at
from launcher.runs import live_index, lookup, sweep_directory
from launcher.runs.directory import SUBMITTING, Run
from launcher.runs.sweep_directory import Sweep
from launcher.spec.plan import JobPlan
from launcher.submission.dependencies import FOLLOWERS

REMOVED = ".removed-"  # in front of the name of what is being removed


@dataclass(frozen=True)
class Old:
    """A run or a sweep.

    Attributes:
        path: its directory.
        states: the states of its points, or its own; `damaged` and `unknown` among them.
        news: when it last told of something, in seconds since the epoch; None: nobody knows.
        needed_by: ids of those that are not over and wait for it, or use it.
        words: why it cannot be read; empty: it can.
    """

    path: Path
    states: frozenset[str]
    news: float | None
    needed_by: tuple[str, ...] = ()
    words: str = ""

    @property
    def id(self) -> str:
        return self.path.name


def kept_because(old: Old, before: float, states: Collection[str]) -> str | None:
    """Why it stays, by the table above; None: it may be removed. Pure.

    Args:
        old: the run or sweep.
        before: its last news must be older, in seconds since the epoch.
        states: those in which one may be; a sweep: in which all of its points may be.
    """
    if old.words or DAMAGED in old.states or not old.states:
        return old.words or "it cannot be read"
    if found := sorted(old.states & {*LIVE, WAITING}):
        return f"it is {found[0]}"
    if old.needed_by:
        return f"{', '.join(old.needed_by)} {'needs' if len(old.needed_by) == 1 else 'need'} it"
    if not old.states <= {*states}:
        return f"it is {sorted(old.states - {*states})[0]}"
    if old.news is None:
        return "nobody knows how old it is"
    return None if old.news < before else "it is younger"


def survey(runs_dir: Path) -> list[Old]:
    """All runs and sweeps of a folder, and those that it has links to, oldest news first.

    Raises:
        UnavailableError: the folder cannot be read now.
    """
    live = SweepLive()  # acts upon what it hears, so nothing is shared
    folders = [Path(path) for path in lookup.newest(runs_dir)]
    runs = [Run(path) for path in folders if lookup.may_have(str(path), lookup.RECORDS["run"])]
    found: list[Old] = []
    users: list[tuple[str, JobPlan]] = []  # of those that are not over
    for each in look_at_each(runs, live):
        if isinstance(each, Damaged):
            found.append(Old(each.run.path, frozenset(), None, words=each.words))
            continue
        found.append(Old(each.run.path, frozenset({each.state.value}), each.story.moved or None))
        users += [] if each.state.over else [(each.run.id, each.plan)]
    for sweep in (Sweep(path) for path in folders if lookup.may_have(str(path), sweep_directory.RECORD)):
        made = readable(Run(sweep.path), lambda sweep=sweep: _of_sweep(sweep, live))  # type: ignore[misc]
        if isinstance(made, Damaged):
            found.append(Old(sweep.path, frozenset(), None, words=made.words))
            continue
        found.append(made[0])
        users += made[1]
    paths = [each.path for each in found]
    needed = needs(users, paths)
    for old in found:
        needed.setdefault(old.path, []).extend([] if old.words else _waiting_for(old.path, live, paths))
    found = [Old(each.path, each.states, each.news, tuple(needed.get(each.path, ())), each.words) for each in found]
    return sorted(found, key=lambda each: each.news or 0.0)


def _waiting_for(folder: Path, live: SweepLive, known_ones: Collection[Path] = ()) -> list[str]:
    """Ids of those that were submitted to begin after a run or sweep, or one of its points, and are not over.

    Args:
        folder: of the run or sweep.
        live: asks schedulers.
        known_ones: runs and sweeps that are not looked at.

    Raises:
        UnavailableError: nobody can tell who they are now. One whose state nobody can tell counts as not over.
    """
    found: list[str] = []
    for path in _followers(folder):
        if {path, path.parent}.isdisjoint(known_ones):
            users = readable(Run(path), lambda path=path: _not_over(path, live))  # type: ignore[misc]
            if isinstance(users, Damaged):
                found += [path.name] if users.is_transient else []
            else:
                found += needs(users, [folder]).get(folder, [])
    return found


def _followers(folder: Path) -> list[Path]:
    sweep = Sweep(folder)
    homes = [folder, *(point.run.path for point in sweep.points())] if sweep.recorded() else [folder]
    files = [home / FOLLOWERS / name for home in homes for name in unwrap(list_names(home / FOLLOWERS)) or ()]
    return [Path((unwrap(read_text(file)) or "").strip()) for file in files if not file.name.startswith(".")]


def _not_over(path: Path, live: SweepLive) -> list[tuple[str, JobPlan]]:
    """The id and the plan of a run, or of each point of a sweep, that is not over."""
    if Sweep(path).recorded():
        return _of_sweep(Sweep(path), live)[1]
    if not Run(path).recorded():
        return []
    seen = look(Run(path), live)
    return [] if seen.state.over else [(seen.run.id, seen.plan)]


def needs(users: Iterable[tuple[str, JobPlan]], folders: Collection[Path]) -> dict[Path, list[str]]:
    """Which of these folders plans refer to, each with the ids of those whose plans do. Pure but for links."""
    known_paths = {os.path.realpath(path): path for path in folders}
    found: dict[Path, list[str]] = {}
    for name, plan in users:
        named = [each.partition(":")[2] for each in plan.after]
        named += [value for value in plan.params.values() if isinstance(value, str) and value.startswith("/")]
        named += [plan.checkpoint_dir, plan.workdir, *filter(None, [plan.code])]
        for text in named:
            path = Path(os.path.realpath(text))
            for folder in (path, *path.parents):
                owner = known_paths.get(str(folder))
                if owner is not None and owner.name != name.partition("/")[0] and name not in found.get(owner, []):
                    found.setdefault(owner, []).append(name)
    return found


def _of_sweep(sweep: Sweep, live: SweepLive) -> tuple[Old, list[tuple[str, JobPlan]]]:
    seen = look_at(sweep, live)
    news = [read(each.point.run).moved for each in seen if each.point.run.recorded()]
    waiting = [each.point.run for each in seen if not each.over and each.point.run.recorded()]
    old = Old(sweep.path, frozenset(counts(seen)), max(news, default=0.0) or None)
    return old, [(run.id, run.plan()) for run in waiting]


def size_of(folder: Path) -> int:
    """Bytes on disk of all files in a folder."""
    total = 0
    for root, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(root, name)).st_blocks * 512
    return total


def remove(old: Old, runs_dir: Path, before: float, states: Collection[str]) -> str | None:
    """Removes a run or sweep, having looked once more while nobody can submit it; why it stays, or None.

    Args:
        old: what `survey` found.
        runs_dir: where it was found; its link there goes too.
        before, states: see `kept_because`.
    """
    path = old.path
    try:
        require_own(path, "remove it")
    except RunError as error:
        return str(error)
    with contextlib.ExitStack() as stack:
        for name in (SUBMITTING, ".points") if unwrap(exists(path / sweep_directory.RECORD)) else (SUBMITTING,):
            if not stack.enter_context(locks.try_acquire(path / name)):
                return "it is being submitted"
        if why := kept_because(_again(old), before, states):
            return why
        aside = path.with_name(f"{REMOVED}{path.name}")
        path.rename(aside)
    for folder in {runs_dir, path.parent}:
        live_index.remove(folder, path.name, surely=True)
        for link in (folder / path.name, folder / "latest"):
            if link.is_symlink() and not link.exists():
                link.unlink(missing_ok=True)
    shutil.rmtree(aside)
    return None


def finish(runs_dir: Path) -> int:
    """Removes what an earlier removal has left in a folder when it was interrupted; bytes that this has freed."""
    freed = 0
    for name in unwrap(list_names(runs_dir)) or ():
        left = runs_dir / name
        if name.startswith(REMOVED) and is_own(left):
            freed += size_of(left)
            shutil.rmtree(left)
    return freed


def _again(old: Old) -> Old:
    """The run or sweep as it is now, and also needed by those that have come to wait for it since."""
    live, path = SweepLive(), old.path
    try:
        if unwrap(exists(path / sweep_directory.RECORD)):
            now = _of_sweep(Sweep(path), live)[0]
        else:
            seen = look(Run(path), live)
            now = Old(path, frozenset({seen.state.value}), seen.story.moved or None)
        return replace(now, needed_by=tuple(dict.fromkeys([*old.needed_by, *_waiting_for(path, live)])))
    except DAMAGE as error:
        return Old(path, frozenset(), None, words=str(error))
