"""The code as it was at submission: a copy of the files of a repository, in the run directory.

What git has, or would have (`git ls-files -co --exclude-standard`), is copied as it stands in the working folder,
changes that nobody has committed included. What .gitignore names (data, checkpoints, environments) is not.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from launcher.config import Config, Program
from launcher.errors import ConfigError, RunError
from launcher.paths import PACKAGE
from launcher.plan import JobPlan, Site
from launcher.runs import Run
from launcher.units import format_size, parse_size, rough_size

LIBRARY = "lib"  # beside it: the launcher's own packages, for a Python that does not have them
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
    except FileNotFoundError:
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
        f"env.snapshot=true: the code in {found.root} is {rough_size(found.size)} ({len(found.files):,} files), and "
        f"env.snapshot_limit={format_size(limit)}. The largest:\n{lines}\n"
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
        ConfigError: it would be too large, or without the workload's script.
    """
    if found is None:
        assert before is not None and before.code is not None and before.repository is not None
        root, code = before.repository, before.code
    else:
        check(found, parse_size(config.env.snapshot_limit))
        _require_script(config, site, found)
        root, code = str(found.root), str(folder)
    found_by_name = sys.path[1:] if sys.path[:1] == [os.getcwd()] else sys.path  # `python -m launcher` puts that there
    paths = [*os.environ.get("PYTHONPATH", "").split(os.pathsep), *found_by_name]
    imports = [os.path.realpath(path) for path in paths if path and not _of_python(path)]
    return replace(
        site,
        workdir=moved(os.path.realpath(site.workdir), root, code),
        code_root=None if site.code_root is None else moved(site.code_root, root, code),
        code=code,
        repository=root,
        code_path=tuple(dict.fromkeys(moved(path, root, code) for path in imports if within(path, root))),
    )


def _of_python(path: str) -> bool:
    """Whether a folder is an interpreter's own, of which a repository may have one."""
    return within(path, sys.prefix) or within(path, sys.base_prefix) or "site-packages" in Path(path).parts


def _require_script(config: Config, site: Site, found: Tree) -> None:
    workload = config.workload
    if not isinstance(workload, Program) or workload.script is None:
        return
    path = os.path.join(os.path.realpath(site.workdir), os.path.expanduser(workload.script))
    path = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
    if within(path, str(found.root)) and os.path.relpath(path, found.root) not in found.files:
        raise ConfigError(
            f"workload.script={workload.script}: git ignores it, so a snapshot does not have it (env.snapshot=true): "
            "take it out of .gitignore, or leave env.snapshot out"
        )


def script_in(script: str, site: Site) -> str:
    """Where a program's script is in a snapshot; one with a relative path is found by it."""
    path = os.path.expanduser(script)
    if site.code is None or site.repository is None or not os.path.isabs(path):
        return script
    return moved(path, site.repository, site.code)


def within(path: str, folder: str) -> bool:
    """Whether a path is a folder's or below it. Pure."""
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def moved(path: str, root: str, code: str) -> str:
    """A path in the repository as it is in the snapshot; any other stays. Pure."""
    return os.path.normpath(os.path.join(code, os.path.relpath(path, root))) if within(path, root) else path


def take(plan: JobPlan) -> None:
    """Makes the snapshot of a plan, if it has one that is not there yet.

    Raises:
        ConfigError: it would be too large by now, or cannot be written.
    """
    if plan.code_root is not None and Path(plan.code_root).name == LIBRARY and not os.path.isdir(plan.code_root):
        _copy_launcher(Path(plan.code_root))
    if plan.code is None or plan.repository is None or os.path.isdir(plan.code):
        return
    found = tree(plan.submitted_in, [runs_dir_of(plan)])
    check(found, plan.snapshot_limit)
    code = Path(plan.code)
    part = code.with_name(f".{code.name}-{os.getpid()}")  # of one that was killed meanwhile there is no `code`
    previous = os.umask(0o077)
    try:
        part.mkdir()
        for name in found.files:
            _copy(found.root, name, part)
        os.makedirs(part / os.path.relpath(plan.workdir, plan.code), exist_ok=True)  # it may have no files
        part.rename(code)
    except OSError as error:
        shutil.rmtree(part, ignore_errors=True)
        raise ConfigError(f"env.snapshot=true: {code} cannot be written: {error.strerror}: {error.filename}") from None
    finally:
        os.umask(previous)


def _copy_launcher(library: Path) -> None:
    """Our own packages, as they are installed here, for another Python that has its own site-packages."""
    part = library.with_name(f".code-lib-{os.getpid()}")
    previous = os.umask(0o077)
    try:
        for package in (PACKAGE, PACKAGE.parent / "workloads"):
            shutil.copytree(package, part / package.name, ignore=shutil.ignore_patterns("__pycache__"))
        part.rename(library)
    except OSError as error:
        shutil.rmtree(part, ignore_errors=True)
        raise ConfigError(f"{library} cannot be written: {error}") from None
    finally:
        os.umask(previous)


def runs_dir_of(plan: JobPlan) -> str:
    """Where the directory of the plan's run or sweep is."""
    path = Path(plan.run_dir)
    return str(path.parents[1] if path.name.isdecimal() else path.parent)


def _copy(root: Path, name: str, target: Path) -> None:
    """One file, with its times and executable bits; a link stays one, to the copy if it led to the original."""
    source, copy = root / name, target / name
    copy.parent.mkdir(parents=True, exist_ok=True)
    if source.is_symlink():
        link = str(source.readlink())
        if os.path.isabs(link) and within(link, str(root)):
            link = os.path.relpath(link, source.parent)
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
    plan = _recorded(run)
    if plan is None or plan.code is None:
        return None
    if not os.path.isdir(plan.code):
        raise RunError(f"{plan.code}, the snapshot of {run.id}, is gone: `resume {run.id} --new-snapshot` takes one")
    return plan


def _recorded(run: Run) -> JobPlan | None:
    if run.recorded():
        return run.plan()
    if not run.path.name.isdecimal():
        return None
    points = (Run(each) for each in run.path.parent.glob("[0-9]*") if each.name.isdecimal())
    first = next((point for point in points if point.recorded()), None)  # of the same sweep
    return None if first is None else first.plan()


def facts(plan: JobPlan) -> dict[str, object]:
    """For the record: how many files and bytes the snapshot has."""
    if plan.code is None:
        return {}
    sizes = [path.lstat().st_size for path in Path(plan.code).rglob("*") if path.is_symlink() or path.is_file()]
    return {"snapshot": {"files": len(sizes), "bytes": sum(sizes), "of": plan.repository}}
