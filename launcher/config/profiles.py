"""Finds and saves profiles of clusters. The user's take precedence over ours of the same name."""

from __future__ import annotations

import re
from pathlib import Path

from launcher.errors import ConfigError, RunError, near
from launcher.fast_dataclasses import Struct
from launcher.files import safe_io
from launcher.paths import resource, user_config_dir

SCHEMA = "/hydra/schema/cluster"  # base profiles (slurm, pbs, ...) start from it, and other profiles from those


class Profile(Struct):
    name: str  # name of the profile, as in cluster=NAME
    path: Path  # file of the profile
    own: bool  # whether the file is the user's; otherwise it is in our conf/
    scheduler: str  # name of the scheduler; empty: not known


def own_folder() -> Path:
    return user_config_dir() / "cluster"


def profiles() -> list[Profile]:
    """Returns all profiles that `cluster=NAME` accepts, sorted by name."""
    files: dict[str, tuple[Path, bool]] = {}
    for folder, own in ((resource("conf") / "cluster", False), (own_folder(), True)):
        if folder.is_dir():
            files.update((path.stem, (path, own)) for path in sorted(folder.glob("*.yaml")))
    return [Profile(name, path, own, _scheduler(name, files)) for name, (path, own) in sorted(files.items())]


def bases() -> set[str]:
    """Returns the names of the base profiles (slurm, pbs, ...). They fit any site; other profiles start from them."""
    return {path.stem for path in (resource("conf") / "cluster").glob("*.yaml") if SCHEMA in path.read_text()}


def default() -> str:
    """Returns the name of the profile that runs use without cluster=NAME; empty: not known."""
    for path in (user_config_dir() / "user.yaml", resource("conf") / "config.yaml"):
        try:
            text = path.read_text(errors="replace")
        except OSError:
            continue
        if match := re.search(r"^(?: *- )?(?:override /)?cluster: *[\"']?([\w.+-]+)", text, re.MULTILINE):
            return match[1]
    return ""


def find(name: str) -> Profile:
    known = {each.name: each for each in profiles()}
    if name not in known:
        raise ConfigError(f"there is no profile {name!r}.{near(name, known)} Known: {', '.join(known)}")
    return known[name]


def _scheduler(name: str, files: dict[str, tuple[Path, bool]]) -> str:
    for _ in range(10):  # a profile may be based on itself by mistake
        if name not in files:
            return ""
        try:
            text = files[name][0].read_text(errors="replace")
        except OSError:
            return ""
        if match := re.search(r"^ *scheduler: *(\w+)", text, re.MULTILINE):
            return match[1]
        match = re.search(r"^defaults: *\[ *([\w.+/-]+)", text, re.MULTILINE) or re.search(
            r"^defaults:[^\n]*\n *- ([\w.+/-]+)", text, re.MULTILINE
        )
        if match is None:
            return ""
        name = match[1]
    return ""


def require_free(name: str, *, force: bool) -> Path:
    """Returns the file of a new profile. Raises ConfigError (bad name) or RunError (it exists, and no `force`)."""
    if name in bases():
        raise ConfigError(f"{name} is a profile on which others are based: choose another name (`site init NAME`)")
    if not re.fullmatch(r"[A-Za-z0-9_][\w.+-]*", name):
        raise ConfigError(f"{name!r} cannot be the name of a profile: use letters, digits and _ - + .")
    path = own_folder() / f"{name}.yaml"
    if path.exists() and not force:
        raise RunError(f"{path} exists already: `--force` replaces it, `--print` only shows the new one")
    return path


def save(name: str, text: str, *, force: bool) -> Path:
    """Writes a profile into the user's folder, and returns its path; force: replaces one; ConfigError, RunError."""
    path = require_free(name, force=force)
    try:
        safe_io.make_folder(path.parent)
        return safe_io.replace(path, text.encode()) if force else safe_io.create(path, text.encode())
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror}; `--print` shows it instead") from None
