"""Profiles of clusters behind ssh (`ssh: me@login`), and which runs are known to be there.

Such a profile says only how to get there. What is in a profile otherwise (partition, account, setup) is in one on the
other side, which composes the config of each run.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher import io_bounds
from launcher.config.errors import in_yaml
from launcher.config.overrides import key_of
from launcher.config.profiles import default, own_folder
from launcher.errors import ConfigError, LauncherError, near
from launcher.fast_dataclasses import Struct
from launcher.files import safe_io
from launcher.files.json_types import misfit
from launcher.paths import default_runs_dir, user_data_dir

TIMEOUT = 10.0  # seconds for an answer to `status` where the profile has no `timeout`
LONGEST_TIMEOUT = 3600
COMMAND = ".local/share/launcher/there/launcher"  # what `site init --ssh` installs, from the home folder there
_PLAIN = re.compile(r"[A-Za-z0-9_./+~-]+")  # a path that no shell changes
TYPES = {"ssh": str, "command": str, "profile": str, "secrets": list[str], "exclude": list[str], "timeout": float}


class RemoteCluster(Struct):
    name: str  # as in cluster=NAME
    file: Path  # of the profile
    host: str  # what ssh connects to: [USER@]HOST, or a name of ~/.ssh/config
    command: str = COMMAND  # the launcher there: its path, from the home folder
    profile: str = ""  # name of the profile there; empty: the same
    secrets: tuple[str, ...] = ()  # environment variables of this machine whose values submissions have there
    exclude: tuple[str, ...] = ()  # files of the code that are not sent: patterns of `fnmatch`
    timeout: float = TIMEOUT  # seconds for an answer to `status`

    @property
    def place(self) -> tuple[str, str]:
        return self.host, self.command

    @property
    def folder(self) -> Path:
        return user_data_dir() / "remote" / self.name


def remote_clusters() -> dict[str, RemoteCluster]:
    """Returns the user's profiles of clusters behind ssh, by name; raises ConfigError."""
    folder, found = own_folder(), {}
    for path in sorted(folder.glob("*.yaml")) if folder.is_dir() else ():
        with contextlib.suppress(OSError):
            if re.search(r"^ssh:", text := path.read_text(errors="replace"), re.MULTILINE):
                found[path.stem] = parsed(path, text)
    return found


def named(name: str) -> RemoteCluster:
    known = remote_clusters()
    if name not in known:
        raise ConfigError(f"{name!r} is no cluster behind ssh.{near(name, known)} `site init NAME --ssh HOST` adds one")
    return known[name]


def parsed(path: Path, text: str) -> RemoteCluster:
    """Returns the cluster of a profile's text. Raises ConfigError: it has another key, or a value is wrong."""
    import yaml

    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(in_yaml(error, path)) from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: it must have lines of the form KEY: VALUE")
    if wrong := next((key for key in values if key not in TYPES), None):
        raise ConfigError(
            f"{path}: a profile with `ssh` has no key {wrong!r}.{near(str(wrong), TYPES)} It says only how to get "
            f"there ({', '.join(TYPES)}); all else is set in the profile on that side"
        )
    if problem := next(filter(None, (misfit(value, TYPES[key], key) for key, value in values.items())), None):
        raise ConfigError(f"{path}: {problem}")
    host, command, timeout = values["ssh"], values.get("command", COMMAND), values.get("timeout", TIMEOUT)
    if not host or host.startswith("-") or re.search(r"\s|[\x00-\x1f]", host):
        raise ConfigError(f"{path}: ssh: {host!r} is not [USER@]HOST, nor a name of ~/.ssh/config")
    if not _PLAIN.fullmatch(command):
        raise ConfigError(f"{path}: command: {command!r} is not a path of letters, digits and _ - + . /")
    if not 0 < timeout <= LONGEST_TIMEOUT:
        raise ConfigError(f"{path}: timeout: {timeout} is not a number of seconds, at most {LONGEST_TIMEOUT}")
    return RemoteCluster(
        path.stem, path, host, command, values.get("profile", ""), tuple(values.get("secrets", ())),
        tuple(values.get("exclude", ())), float(timeout),
    )  # fmt: skip


def chosen(words: Iterable[str]) -> RemoteCluster | None:
    """Returns the cluster behind ssh that the overrides of a submission choose; None: another cluster."""
    clusters = remote_clusters()
    if not clusters:
        return None
    name = default()
    for word in words:
        if word == "--":
            break
        if key_of(word) == "cluster":
            name = word.partition("=")[2].strip("'\"")
    if "," in name and (among := [each for each in name.split(",") if each in clusters]):
        raise ConfigError(f"cluster={name}: {among[0]} is behind ssh, and a sweep has one such cluster: name it alone")
    return clusters.get(name)


# -- what is known of the runs there: those submitted from here, and the rows of the last answer to `status`


def note(cluster: RemoteCluster, run_id: str, *, gone: bool = False) -> None:
    """Records that a run or sweep is submitted to a cluster; before that, so that it is known whatever happens then.

    gone: records instead that it was not submitted.
    """
    safe_io.make_folder(cluster.folder)
    line = json.dumps({"run": run_id, "time": 0 if gone else time.time()}) + "\n"
    safe_io.append(cluster.folder / "runs.jsonl", line)


def noted(cluster: RemoteCluster) -> dict[str, float]:
    """Returns runs and sweeps that were submitted from here, at most io_bounds.REMOTE_RUNS_BYTES, with times."""
    found: dict[str, float] = {}
    for entry in safe_io.json_lines(cluster.folder / "runs.jsonl", io_bounds.REMOTE_RUNS_BYTES):
        with contextlib.suppress(ValueError, KeyError, TypeError):
            found[str(entry["run"])] = float(entry["time"])
    return {run: when for run, when in found.items() if when}


def save_seen(cluster: RemoteCluster, rows: Sequence[Mapping[str, Any]]) -> None:
    """Keeps an answer to `status`, if that is possible."""
    with contextlib.suppress(OSError):
        safe_io.make_folder(cluster.folder)
        text = json.dumps({"time": time.time(), "rows": list(rows)})
        safe_io.replace(cluster.folder / "status.json", text.encode())


def last_seen(cluster: RemoteCluster) -> tuple[float | None, list[Mapping[str, Any]]]:
    """Returns when `status` was answered last, in seconds since the epoch, and its rows; None: never."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        data = json.loads(safe_io.read_whole(cluster.folder / "status.json", io_bounds.QUERY_BYTES))
        return float(data["time"]), [row for row in data["rows"] if isinstance(row.get("run"), str)]
    return None, []


def known_runs(cluster: RemoteCluster) -> set[str]:
    """Returns the runs and sweeps that are known to be on a cluster, submitted from here or seen there."""
    return {*noted(cluster), *(str(row["run"]) for row in last_seen(cluster)[1])}


def locate(name: str) -> tuple[RemoteCluster | None, str]:
    """Returns the cluster behind ssh that has a run, and the run's name there; None: it is looked for on this machine.

    name: CLUSTER:RUN, or an id or unique prefix as for runs of this machine, which come first; `latest` is the newest
        run that was submitted from here. Raises ConfigError: several runs fit.
    """
    clusters = remote_clusters()
    if not clusters:
        return None, name
    head, colon, rest = name.partition(":")
    if colon and head in clusters and rest:
        return clusters[head], rest
    base, slash, point = name.partition("/")
    here = default_runs_dir()
    if name == "latest":
        times = [(when, run, each) for each in clusters.values() for run, when in noted(each).items()]
        when, run, cluster = max(times, key=lambda each: each[0], default=(0.0, "", None))
        with contextlib.suppress(OSError):
            if (here / name).lstat().st_mtime >= when:
                return None, name
        return (cluster, run) if cluster else (None, name)
    if (slash and os.path.exists(os.path.expanduser(name))) or os.path.exists(here / base):
        return None, name
    known = {name: known_runs(cluster) for name, cluster in clusters.items()}
    exact = _one_of_each_place([(clusters[each], base) for each, runs in known.items() if base in runs])
    if len(exact) > 1:
        several = ", ".join(f"{each.name}:{name}" for each, _ in exact)
        raise ConfigError(f"{name!r} is a run of several clusters: write {several}")
    if exact:
        return exact[0][0], name
    if not base or (here.is_dir() and any(each.name.startswith(base) for each in here.iterdir())):
        return None, name
    fits = _one_of_each_place([
        (clusters[each], run) for each, runs in known.items() for run in runs if run.startswith(base)
    ])  # fmt: skip
    if len(fits) > 1:
        raise ConfigError(f"{name!r} fits {len(fits)} runs: {', '.join(run for _, run in fits[:5])}")
    return (fits[0][0], fits[0][1] + slash + point) if fits else (None, name)


def _one_of_each_place(found: Sequence[tuple[RemoteCluster, str]]) -> list[tuple[RemoteCluster, str]]:
    # Profiles that lead to one launcher (one for each partition, say) see the same runs: the one that submitted a run
    # from here has its secrets
    submitted = {cluster: noted(cluster) for cluster in {cluster for cluster, _ in found}}
    by_noted = sorted(found, key=lambda each: each[1] in submitted[each[0]])
    return list({(cluster.place, run): (cluster, run) for cluster, run in by_noted}.values())


class Unreachable(LauncherError):
    """A cluster behind ssh did not answer, or the connection was lost."""

    code = "unreachable"
