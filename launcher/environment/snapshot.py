"""Copies the code of a repository into the run directory, so that a run uses the code as it was at submission.

The copy has the files that git tracks or would add (`git ls-files -co --exclude-standard`), as they are in the working
folder, with uncommitted changes. Files that .gitignore names (data, checkpoints, environments) are not copied.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from launcher import __version__
from launcher.config.schema import Config, Function, Program
from launcher.environment import programs
from launcher.environment.code_files import Tree, check, tree, within
from launcher.errors import ConfigError, RunError
from launcher.paths import PACKAGE
from launcher.plan.build import PlanFacts
from launcher.plan.plan import JobPlan, SnapshotCode
from launcher.runs.directory import Run, runs_dir_of

FOLDER = "code"  # name of the snapshot in the directory of a run or sweep
LIBRARY = "lib-"  # prefix of the folder (lib-VERSION, next to it) of our packages, for a Python that lacks them


def code_in(folder: str, runs_dir: str, limit: int) -> Tree:
    """Returns the files that a snapshot would have; raises ConfigError: they have more than `limit` bytes."""
    found = tree(folder, [runs_dir])
    check(found, limit)
    return found


def planned(config: Config, site: PlanFacts, found: Tree | None, before: JobPlan | None, folder: Path) -> PlanFacts:
    """Returns `site` with folders in the repository replaced by those in the run's snapshot; raises ConfigError.

    found: files of a new snapshot; None: the run uses the existing one of `before`, an earlier plan of it or its sweep.
    """
    if found is None:
        assert before is not None and before.code.snapshot is not None and before.code.repository is not None
        root, code, known = before.code.repository, before.code.snapshot, before.code.path
    else:
        _require_workload(config, site, found)
        root, code, known = str(found.root), str(folder), ()
    # `python -m launcher` puts the working folder first.
    module_path = sys.path[1:] if sys.path[:1] == [os.getcwd()] else sys.path
    named = config.cluster.environment.get("PYTHONPATH", os.environ.get("PYTHONPATH")) or ""
    imports = [os.path.realpath(path) for path in [*str(named).split(os.pathsep), *module_path] if path]
    ours = [path for path in imports if within(path, root) and not _of_python(path)]
    code_root, runs_dir = site.code_root, str(runs_dir_of(site.run_dir))
    if code_root is not None and not within(code_root, runs_dir):  # a folder of runs is in no snapshot
        code_root = moved(code_root, root, code)
    return replace(
        site,
        workdir=moved(os.path.realpath(site.workdir), root, code),
        code_root=code_root,
        code=SnapshotCode(code, root, tuple(dict.fromkeys([*(moved(path, root, code) for path in ours), *known]))),
    )


def _of_python(path: str) -> bool:
    return within(path, sys.prefix) or within(path, sys.base_prefix) or "site-packages" in Path(path).parts


def _require_workload(config: Config, site: PlanFacts, found: Tree) -> None:
    workload = config.workload
    if not isinstance(workload, (Program, Function)):
        return
    # Not complete: a module that does not exist was refused before, by `checked_program` or `checked_function`.
    place = replace(programs.here(config.cluster.environment, [], site.workdir), complete=False)
    key, file = programs.entry_file(workload, place)
    path = "" if file is None else _real(file)
    if within(path, str(found.root)) and not _of_python(path) and os.path.relpath(path, found.root) not in found.files:
        raise ConfigError(f"{key}: git ignores {path}: take it out of .gitignore, or leave env.snapshot out")


def workload_in(
    workload: Program | Function, place: programs.ModulePath, before: JobPlan
) -> tuple[Program | Function, programs.ModulePath]:
    """Returns a workload and its module path, with folders in the repository replaced by those in the snapshot."""
    assert before.code.repository is not None and before.code.snapshot is not None
    workdir = moved(os.path.realpath(place.workdir), before.code.repository, before.code.snapshot)
    path = path_in([*map(os.path.abspath, place.path)], before.code.repository, before.code.snapshot)
    place = replace(place, workdir=Path(workdir), path=tuple(dict.fromkeys([workdir, *before.code.path, *path])))
    if isinstance(workload, Program) and workload.script is not None:
        script = script_in(workload.script, replace(before, workdir=workdir))
        return replace(workload, script=script), place
    return workload, place


def notes(plan: JobPlan) -> tuple[str, ...]:
    """Returns a note for the user if the snapshot of a plan does not contain the script; else nothing."""
    script = plan.workload.params.get("script")
    if plan.code.snapshot is None or not script or _has(plan.code.snapshot, plan.workdir, script):
        return ()
    return (
        f"workload.script={script} is not in {plan.code.repository}, so in no snapshot: the job uses its later changes",
    )


def script_in(script: str, site: PlanFacts | JobPlan) -> str:
    """Returns a script's path in `site`'s snapshot: relative as it is, else absolute (also outside of it)."""
    if site.code.snapshot is None or site.code.repository is None:
        return script
    path = os.path.expanduser(script)
    folder = os.path.join(site.code.repository, os.path.relpath(site.workdir, site.code.snapshot))
    whole = _real(os.path.join(folder, path))
    inside = within(whole, site.code.repository)
    if not os.path.isabs(path):
        if inside and _has(site.code.snapshot, site.workdir, path):
            return script
        path = whole
    return moved(whole, site.code.repository, site.code.snapshot) if inside else path


def _has(code: str, workdir: str, script: str) -> bool:
    return within(os.path.normpath(os.path.join(workdir, script)), code)


def into_plan(plan: JobPlan) -> JobPlan:
    """Returns the plan with its script and PYTHONPATH in its snapshot, if any, instead of in the repository."""
    code, params, environment = plan.code, dict(plan.workload.params), dict(plan.cluster.environment)
    if code.snapshot is None or code.repository is None:
        return plan
    if params.get("script"):
        params["script"] = script_in(params["script"], plan)
    if path := environment.get("PYTHONPATH"):
        environment["PYTHONPATH"] = os.pathsep.join(path_in(path.split(os.pathsep), code.repository, code.snapshot))
    cluster = replace(plan.cluster, environment=environment)
    return replace(plan, workload=replace(plan.workload, params=params), cluster=cluster)


def path_in(folders: Sequence[str], root: str, code: str) -> list[str]:
    """Returns Python's module path, with the snapshot's folders instead of the repository's."""
    found = []
    for folder in folders:
        real = os.path.realpath(folder)
        ours = os.path.isabs(folder) and within(real, root) and not _of_python(real)
        found.append(moved(real, root, code) if ours else folder)  # a relative one is relative to the snapshot
    return found


def _real(path: str) -> str:
    return os.path.normpath(os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path)))


def moved(path: str, root: str, code: str) -> str:
    """Returns the path in the snapshot `code` for a path in the repository `root`; any other path unchanged."""
    for origin in (code, os.path.realpath(code), root):  # the snapshot first: it may be within the repository
        if within(path, origin):
            return os.path.normpath(os.path.join(code, os.path.relpath(path, origin)))
    return path


def take(plan: JobPlan) -> None:
    """Copies a plan's snapshot, and our packages, unless they are there; ConfigError: too large, or unwritable."""
    library = Path(plan.code_root or "/")
    if library.name.startswith(LIBRARY) and not library.is_dir():
        _copy_launcher(library)
    if plan.code.snapshot is None or plan.code.repository is None or os.path.isdir(plan.code.snapshot):
        return
    found = code_in(plan.submitted_in, str(runs_dir_of(plan.run_dir)), plan.env.snapshot_limit)
    code = Path(plan.code.snapshot)
    try:
        with _whole(code, f".{code.name}-{os.getpid()}") as part:
            for name in found.files:
                _copy(found.root, name, part)
            os.makedirs(part / os.path.relpath(plan.workdir, plan.code.snapshot), exist_ok=True)  # it may be empty
    except OSError as error:
        raise ConfigError(f"env.snapshot=true: {code} cannot be written: {error.strerror}: {error.filename}") from None


@contextlib.contextmanager
def _whole(folder: Path, name: str) -> Iterator[Path]:
    part = folder.with_name(name)
    previous = os.umask(0o077)
    try:
        part.mkdir()
        yield part
        try:
            part.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another submission of this run has made it
                raise
    finally:
        shutil.rmtree(part, ignore_errors=True)
        os.umask(previous)


def library_of(run: Run) -> Path:
    """Returns the folder with a copy of the launcher's packages for a run. Its name contains the launcher's version."""
    return folder_of(run, another=False).with_name(f"{LIBRARY}{__version__}")


def _copy_launcher(library: Path) -> None:
    try:
        with _whole(library, f".code-lib-{os.getpid()}") as part:
            for package in (PACKAGE, PACKAGE.parent / "workloads"):
                shutil.copytree(package, part / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    except OSError as error:
        raise ConfigError(f"{library} cannot be written: {error}") from None


def _copy(root: Path, name: str, target: Path) -> None:
    # A symbolic link is copied as a link. If its target is in the repository, the copy's target is in the snapshot.
    source, copy = root / name, target / name
    copy.parent.mkdir(parents=True, exist_ok=True)
    if source.is_symlink():
        link = str(source.readlink())
        destination = _real(str(source.parent / link))
        if os.path.isabs(link) and within(link, str(root)):
            link = os.path.relpath(link, source.parent)
        elif not os.path.isabs(link) and not within(destination, str(root)):
            link = destination  # a relative link out of the repository would lead elsewhere from the copy
        copy.symlink_to(link)
        return
    try:
        shutil.copyfile(source, copy)
        status = source.stat()
    except FileNotFoundError:  # deleted since it was listed
        copy.unlink(missing_ok=True)
        return
    copy.chmod(stat.S_IMODE(status.st_mode) & 0o700)
    os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))


def folder_of(run: Run, *, another: bool) -> Path:
    """Returns the folder of a run's snapshot: its sweep's, or with `another` a new one of its own (code-1)."""
    if not another:
        return (run.path.parent if run.path.name.isdecimal() else run.path) / FOLDER
    paths = (run.path / (f"{FOLDER}-{number}" if number else FOLDER) for number in itertools.count())
    return next(path for path in paths if not path.exists())  # the user may have removed some


def earlier_plan(run: Run, of_sweep: Callable[[Path], JobPlan | None]) -> JobPlan | None:
    """Returns the plan with the existing snapshot of a run or its sweep, or None; RunError: its folder is gone.

    of_sweep: `plan_of_sweep`, perhaps with a cache.
    """
    plan = run.plan() if run.recorded() else of_sweep(run.path.parent) if run.path.name.isdecimal() else None
    if plan is None or plan.code.snapshot is None:
        return None
    if not os.path.isdir(plan.code.snapshot):
        raise RunError(
            f"{plan.code.snapshot}, the snapshot of {run.id}, is gone: `resume {run.id} --new-snapshot` takes one"
        )
    return plan


def plan_of_sweep(sweep: Path) -> JobPlan | None:
    """Returns the plan of one of the points in a sweep's directory that have a record; None: there are none."""
    points = (Run(each) for each in sweep.glob("[0-9]*") if each.name.isdecimal())
    other = next((point for point in points if point.recorded()), None)
    return None if other is None else other.first_plan()  # later plans of a point may have a snapshot of their own
