"""The code as it was at submission: a copy of the files of a repository, in the run directory.

What git has, or would have (`git ls-files -co --exclude-standard`), is copied as it stands in the working folder,
changes that nobody has committed included. What .gitignore names (data, checkpoints, environments) is not.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from launcher import __version__
from launcher.config.schema import Config, Function, Program
from launcher.environment import programs
from launcher.errors import ConfigError, RunError
from launcher.files.os_errors import NOT_ON_PATH
from launcher.formatting import format_size, plural, rough_size
from launcher.paths import PACKAGE
from launcher.runs.directory import Run
from launcher.spec.plan import JobPlan, Site
from launcher.units import parse_size

LIBRARY = "lib-"  # beside it, with a version: the launcher's own packages, for a Python that does not have them
FOLDER = "code"  # in the directory of a run or sweep
SHOWN = 5  # files that are named when it is too large
PATIENCE = 60.0  # seconds for one git command


@dataclass(frozen=True)
class Tree:
    """What a snapshot has: the repository's folder, the files seen from it, and the bytes of each."""

    root: Path
    files: dict[str, int]

    @property
    def size(self) -> int:
        return sum(self.files.values())


def tree(folder: str, without: Sequence[str] = ()) -> Tree:
    """What a snapshot of the repository around a folder would have.

    Args:
        folder: any folder of it.
        without: folders that are left out (those of runs).

    Raises:
        ConfigError: the folder is in no git repository, or git fails.
    """
    root = Path(_git(folder, "rev-parse", "--show-toplevel").removesuffix("\n"))
    inner = [each for each in map(os.path.realpath, without) if within(each, str(root)) and each != str(root)]
    left_out = tuple(each + os.sep for each in inner)
    files = {}
    for name in _names(root, ""):
        path = root / name
        try:
            status = path.lstat()
        except OSError:  # deleted, and git was not told
            continue
        where = os.path.join(os.path.realpath(path.parent), path.name)
        if (stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)) and not where.startswith(left_out):
            files[name] = status.st_size
    return Tree(root, files)


def _names(root: Path, prefix: str) -> Iterator[str]:
    """The names of its files; those of repositories within it (submodules among them) as well."""
    listed = _git(str(root / prefix), "ls-files", "--cached", "--others", "--exclude-standard", "-z").split("\0")
    for name in dict.fromkeys(filter(None, listed)):
        inner = os.path.join(prefix, name)
        path = root / inner
        if not path.is_dir() or path.is_symlink():
            yield inner
        elif (path / ".git").exists():  # else a submodule that was never fetched
            yield from _names(root, os.path.normpath(inner))


def _git(folder: str, *arguments: str) -> str:
    key = "env.snapshot=true"
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, text=True, errors="surrogateescape",
            timeout=PATIENCE, check=False,
        )  # fmt: skip
    except NOT_ON_PATH:
        raise ConfigError(f"{key} asks git for the files to copy, and git is not on this machine's PATH") from None
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{key}: git {arguments[0]} in {folder} did not end within {PATIENCE:g} s") from None
    if done.returncode == 0:
        return done.stdout
    if "not a git repository" in done.stderr:
        raise ConfigError(
            f"{key}: {folder} is in no git repository: `git init` there (what .gitignore names is not copied), or "
            "leave env.snapshot out"
        )
    raise ConfigError(f"{key}: git {arguments[0]} in {folder} failed: {done.stderr.strip()}")


def check(found: Tree, limit: int) -> None:
    """
    Raises:
        ConfigError: it is larger than `limit` bytes; the largest files are named.
    """
    if found.size <= limit:
        return
    largest = sorted(found.files, key=lambda name: -found.files[name])[:SHOWN]
    lines = "\n".join(f"  {rough_size(found.files[name]):>8}  {name}" for name in largest)
    raise ConfigError(
        f"env.snapshot=true: the code in {found.root} is {rough_size(found.size)} ({plural(len(found.files), 'file')}),"
        f" and env.snapshot_limit={format_size(limit)}. The largest:\n{lines}\n"
        "Name in .gitignore what is no code (and `git rm --cached` what git has of it), or raise env.snapshot_limit"
    )


def planned(config: Config, site: Site, found: Tree | None, before: JobPlan | None, folder: Path) -> Site:
    """The site of a run whose code is a snapshot.

    Args:
        config: the config.
        site: of the folder that the user is in.
        found: what the snapshot will have; None: that of `before` is used.
        before: the plan that the run or its sweep has had.
        folder: of a new snapshot.

    Raises:
        ConfigError: it would be too large, or without the workload's code.
    """
    if found is None:
        assert before is not None and before.code is not None and before.repository is not None
        root, code, known = before.repository, before.code, before.code_path
    else:
        check(found, parse_size(config.env.snapshot_limit))
        _require_workload(config, site, found)
        root, code, known = str(found.root), str(folder), ()
    found_by_name = sys.path[1:] if sys.path[:1] == [os.getcwd()] else sys.path  # `python -m launcher` puts that there
    named = config.cluster.environment.get("PYTHONPATH", os.environ.get("PYTHONPATH")) or ""
    imports = [os.path.realpath(path) for path in [*str(named).split(os.pathsep), *found_by_name] if path]
    ours = [path for path in imports if within(path, root) and not _of_python(path)]
    code_root = site.code_root
    if code_root is not None and not within(code_root, _runs_dir(site.run_dir)):  # where no copy has anything
        code_root = moved(code_root, root, code)
    return replace(
        site,
        workdir=moved(os.path.realpath(site.workdir), root, code),
        code_root=code_root,
        code=code,
        repository=root,
        code_path=tuple(dict.fromkeys([*(moved(path, root, code) for path in ours), *known])),
    )


def _of_python(path: str) -> bool:
    """Whether a folder is an interpreter's own, of which a repository may have one."""
    return within(path, sys.prefix) or within(path, sys.base_prefix) or "site-packages" in Path(path).parts


def _require_workload(config: Config, site: Site, found: Tree) -> None:
    """The script, or the file of the module or function, is copied if it is one of the repository."""
    workload = config.workload
    if not isinstance(workload, (Program, Function)):
        return
    place = replace(programs.here(config.cluster.environment, [], site.workdir), sure=False)  # what is nowhere was told
    key, file = programs.begins_with(workload, place)
    path = "" if file is None else _real(file)
    if within(path, str(found.root)) and not _of_python(path) and os.path.relpath(path, found.root) not in found.files:
        raise ConfigError(
            f"{key}: git ignores {path}, so a snapshot does not have it (env.snapshot=true): take it out of "
            ".gitignore, or leave env.snapshot out"
        )


def seen(
    workload: Program | Function, place: programs.Place, before: JobPlan
) -> tuple[Program | Function, programs.Place]:
    """What a job begins with, and where it looks, in the snapshot of a plan that goes on: not in the repository."""
    assert before.repository is not None and before.code is not None
    workdir = moved(os.path.realpath(place.workdir), before.repository, before.code)
    path = path_in([*map(os.path.abspath, place.path)], before.repository, before.code)
    place = replace(place, workdir=Path(workdir), path=tuple(dict.fromkeys([workdir, *before.code_path, *path])))
    if isinstance(workload, Program) and workload.script is not None:
        script = script_in(workload.script, replace(before, workdir=workdir))
        return replace(workload, script=script), place
    return workload, place


def notes(plan: JobPlan) -> tuple[str, ...]:
    """What the user should know of a plan with a snapshot."""
    script = plan.params.get("script")
    if plan.code is None or not script or _has(plan.code, plan.workdir, script):
        return ()
    return (f"workload.script={script} is not in {plan.repository}, so in no snapshot: the job runs it as it is then",)


def script_in(script: str, site: Site | JobPlan) -> str:
    """Where a program's script is in a snapshot; one with a relative path is found by it."""
    if site.code is None or site.repository is None:
        return script
    path = os.path.expanduser(script)
    folder = os.path.join(site.repository, os.path.relpath(site.workdir, site.code))
    whole = _real(os.path.join(folder, path))
    inside = within(whole, site.repository)
    if not os.path.isabs(path):
        if inside and _has(site.code, site.workdir, path):
            return script
        path = whole
    return moved(whole, site.repository, site.code) if inside else path


def _has(code: str, workdir: str, script: str) -> bool:
    return within(os.path.normpath(os.path.join(workdir, script)), code)


def into_plan(plan: JobPlan) -> JobPlan:
    """The plan with the folders of its snapshot, if it has one, in place of the repository's."""
    if plan.code is None:
        return plan
    params = dict(plan.params)
    if params.get("script"):
        params["script"] = script_in(params["script"], plan)
    return replace(plan, params=params, environment=environment_in(plan.environment, plan))


def environment_in(environment: Mapping[str, str | None], plan: JobPlan) -> dict[str, str | None]:
    """Variables of a profile as they are for a snapshot: PYTHONPATH has its folders and not the repository's."""
    path = environment.get("PYTHONPATH")
    if not path or plan.code is None or plan.repository is None:
        return dict(environment)
    return {**environment, "PYTHONPATH": os.pathsep.join(path_in(path.split(os.pathsep), plan.repository, plan.code))}


def path_in(folders: Sequence[str], root: str, code: str) -> list[str]:
    """Where Python looks for modules, with a snapshot's folders for those of the repository."""
    found = []
    for folder in folders:
        real = os.path.realpath(folder)
        ours = os.path.isabs(folder) and within(real, root) and not _of_python(real)
        found.append(moved(real, root, code) if ours else folder)  # a relative one begins in the snapshot anyway
    return found


def _real(path: str) -> str:
    """A path without links among the folders above it; it may be one itself."""
    return os.path.normpath(os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path)))


def within(path: str, folder: str) -> bool:
    """Whether a path is a folder's or below it. Pure."""
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def moved(path: str, root: str, code: str) -> str:
    """A path in the repository as it is in the snapshot; any other stays, and so does one of the snapshot."""
    for origin in (code, os.path.realpath(code), root):  # runs, and so the snapshot, may be in the repository
        if within(path, origin):
            return os.path.normpath(os.path.join(code, os.path.relpath(path, origin)))
    return path


def take(plan: JobPlan) -> None:
    """Makes the snapshot of a plan, if it has one that is not there yet.

    Raises:
        ConfigError: it would be too large by now, or cannot be written.
    """
    library = Path(plan.code_root or "/")
    if library.name.startswith(LIBRARY) and not library.is_dir():
        _copy_launcher(library)
    if plan.code is None or plan.repository is None or os.path.isdir(plan.code):
        return
    found = tree(plan.submitted_in, [_runs_dir(plan.run_dir)])
    check(found, plan.snapshot_limit)
    code = Path(plan.code)
    try:
        with _whole(code, f".{code.name}-{os.getpid()}") as part:
            for name in found.files:
                _copy(found.root, name, part)
            os.makedirs(part / os.path.relpath(plan.workdir, plan.code), exist_ok=True)  # it may have no files
    except OSError as error:
        raise ConfigError(f"env.snapshot=true: {code} cannot be written: {error.strerror}: {error.filename}") from None


@contextlib.contextmanager
def _whole(folder: Path, name: str) -> Iterator[Path]:
    """A private folder beside another, which takes that one's place once it is filled: it is there whole, or not."""
    part = folder.with_name(name)
    previous = os.umask(0o077)
    try:
        part.mkdir()
        yield part
        part.rename(folder)
    except OSError:
        shutil.rmtree(part, ignore_errors=True)
        raise
    finally:
        os.umask(previous)


def library_of(run: Run) -> Path:
    """Where the launcher itself is for a run, as it is now: the run goes on with a newer one after an upgrade."""
    return folder_of(run, another=False).with_name(f"{LIBRARY}{__version__}")


def _copy_launcher(library: Path) -> None:
    """Our own packages, as they are installed here, for another Python that has its own site-packages."""
    try:
        with _whole(library, f".code-lib-{os.getpid()}") as part:
            for package in (PACKAGE, PACKAGE.parent / "workloads"):
                shutil.copytree(package, part / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    except OSError as error:
        raise ConfigError(f"{library} cannot be written: {error}") from None


def _runs_dir(run_dir: str) -> str:
    """Where the directory of a run or of its sweep is."""
    path = Path(run_dir)
    return str(path.parents[1] if path.name.isdecimal() else path.parent)


def _copy(root: Path, name: str, target: Path) -> None:
    """One file, with its times and executable bits; a link stays one, to the copy if it led into the original."""
    source, copy = root / name, target / name
    copy.parent.mkdir(parents=True, exist_ok=True)
    if source.is_symlink():
        link = str(source.readlink())
        leads = _real(str(source.parent / link))
        if os.path.isabs(link) and within(link, str(root)):
            link = os.path.relpath(link, source.parent)
        elif not os.path.isabs(link) and not within(leads, str(root)):
            link = leads  # seen from the copy it would lead elsewhere
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
    """Where a run's snapshot is to be: points of a sweep share one. `another` is the run's own: code, code-1, ..."""
    if not another:
        return (run.path.parent if run.path.name.isdecimal() else run.path) / FOLDER
    number = sum(entry.is_dir() for entry in run.path.glob(f"{FOLDER}*"))
    return run.path / (f"{FOLDER}-{number}" if number else FOLDER)


def before_of(run: Run) -> JobPlan | None:
    """The plan with the snapshot that a run goes on with: its own, or its sweep's; None: there is none.

    Raises:
        RunError: it is gone.
    """
    plan = run.plan() if run.recorded() else _of_sweep(run)
    if plan is None or plan.code is None:
        return None
    if not os.path.isdir(plan.code):
        raise RunError(f"{plan.code}, the snapshot of {run.id}, is gone: `resume {run.id} --new-snapshot` takes one")
    return plan


def _of_sweep(run: Run) -> JobPlan | None:
    if not run.path.name.isdecimal():
        return None
    points = (Run(each) for each in run.path.parent.glob("[0-9]*") if each.name.isdecimal())
    other = next((point for point in points if point.recorded()), None)
    return None if other is None else other.first_plan()  # `resume --new-snapshot` takes one for that point alone


def facts(plan: JobPlan) -> dict[str, object]:
    """For the record: how many files and bytes the snapshot has."""
    if plan.code is None:
        return {}
    sizes = [path.lstat().st_size for path in Path(plan.code).rglob("*") if path.is_symlink() or path.is_file()]
    return {"snapshot": {"files": len(sizes), "bytes": sum(sizes), "of": plan.repository}}
