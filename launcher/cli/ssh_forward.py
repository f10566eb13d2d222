"""Commands for clusters behind ssh: which command lines go there; the rows of `status` from there."""

from __future__ import annotations

import codecs
import concurrent.futures
import contextlib
import importlib
import io
import json
import re
import sys
import time
from argparse import Namespace
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from launcher import __version__
from launcher.cli.commands import function
from launcher.config import profiles
from launcher.errors import DONE, ConfigError, LauncherError
from launcher.files import safe_io
from launcher.formatting import brief, rough_size, write_output
from launcher.remote import clusters, ssh
from launcher.remote.clusters import RemoteCluster, Unreachable
from launcher.remote.ssh import SentCode, call, in_terminal, profile_of, rows_of


def forward(command: str, arguments: Namespace, words: Sequence[str]) -> int | None:
    """Runs a command on the clusters of the runs that it names; None: all are on this machine, or it names none.

    Of the runs that it names, those of this machine stay in `arguments`, if there are others.
    """
    if command == "doctor":
        cluster = clusters.remote_clusters().get(arguments.cluster or profiles.default())
        more = ["--json"] if arguments.as_json else []
        return None if cluster is None else call(cluster, ["doctor", f"--cluster={profile_of(cluster)}", *more])
    if command == "prune" and arguments.cluster is not None:
        cluster = clusters.named(arguments.cluster)
        skipped = iter(words)
        rest = [
            word for word in skipped
            if not word.startswith("--cluster=") and not (word == "--cluster" and next(skipped))
        ]  # fmt: skip
        return call(cluster, [command, *rest])
    given = getattr(arguments, "names", None) or getattr(arguments, "name", None) or []
    names = [given] if isinstance(given, str) else list(given)
    places = {name: clusters.locate(name) for name in names}
    groups: dict[RemoteCluster | None, list[str]] = {}
    for name in names:
        groups.setdefault(places[name][0], []).append(name)
    if not any(groups):
        return None
    one_list = len(groups) > 1 and getattr(arguments, "as_json", False)
    codes, rows = list[int](), list[Any]()
    for cluster, mine in groups.items():
        printed = io.StringIO()
        try:
            with contextlib.redirect_stdout(printed) if one_list else contextlib.nullcontext():
                if cluster is None:
                    arguments.names = mine
                    codes.append(function(command)(arguments))
                else:
                    others = [each for each in names if each not in mine]
                    there = _renamed(words, {name: places[name][1] for name in mine}, others)
                    codes.append(_forward(cluster, command, arguments, places[mine[0]][1], there))
            rows += rows_of(printed.getvalue() or "[]", cluster.name if cluster else "this machine")
        except LauncherError as error:
            if len(groups) == 1:
                raise
            print(f"launcher: {error}", file=sys.stderr)
            codes.append(error.exit_code)
    if one_list:
        print(json.dumps(rows, indent=1))
    return max(codes)


def _renamed(words: Sequence[str], names: Mapping[str, str], without: Collection[str]) -> list[str]:
    at = words.index("--") if "--" in words else len(words)
    kept = [word for word in words[:at] if word not in without]
    for number, word in enumerate(kept):
        option, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
        kept[number] = option + equals + names.get(value, value)
    return [*kept, *words[at:]]


def _forward(cluster: RemoteCluster, command: str, arguments: Namespace, name: str, words: Sequence[str]) -> int:
    # name: of the run there; of several, of the first
    action = getattr(arguments, "action", "")
    terminal = sys.stdin is not None and sys.stdin.isatty()
    if command == "attach" and (arguments.what or ("shell" if terminal else "stack")) != "stack":
        return in_terminal(cluster, {"arguments": [command, *words]})
    if command == "report" or (command, action) == ("checkpoint", "extract"):
        return _fetch(cluster, command, arguments, name, words)
    if getattr(arguments, "csv", None) not in (None, "-"):
        return _fetch_table(cluster, arguments.csv, [command, *words])
    new_code = command == "resume" and arguments.new_snapshot
    code = partial(SentCode.here, cluster, words) if new_code else None
    follows = any(getattr(arguments, name, False) for name in ("follow", "watch")) or "wait" in (command, action)
    submits = command == "resume" or (command, action) == ("sweep", "rerun")
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")  # pieces may end within a character

    def output(data: bytes) -> None:
        write_output(decoder.decode(data).encode(errors="surrogateescape"))

    show = output if command == "logs" else None
    return call(cluster, [command, *words], follows=follows, prompts=submits, code=code, show=show)


def _fetch(cluster: RemoteCluster, command: str, arguments: Namespace, name: str, words: Sequence[str]) -> int:
    # The command writes a file there, which becomes one here
    safe_io.make_folder(cluster.folder)
    path = Path(arguments.output or cluster.folder / (re.sub(r"[^\w.+-]", "-", name) + ".html"))
    if command != "report" and (arguments.output is None or path.exists()):
        why = "needs -o FILE" if arguments.output is None else f"-o {path}: it exists already"
        raise ConfigError(f"checkpoint extract of a run on {cluster.name}: {why}")
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise ConfigError(f"-o {path}: it is a folder, or in none")
    # The other side adds an `-o` of its own, which counts as the last one
    exit_code = call(cluster, [command, *(word for word in words if word != "--open")], output=path)
    if exit_code == DONE:
        print(f"wrote {path} ({rough_size(path.stat().st_size)})")
        if getattr(arguments, "show", False):
            importlib.import_module("launcher.cli.report").open_page(path)
    return exit_code


def _fetch_table(cluster: RemoteCluster, path: str, words: Sequence[str]) -> int:
    printed = list[bytes]()
    exit_code = call(cluster, [*words, "--csv=-"], show=printed.append)
    if exit_code == DONE:
        try:
            Path(path).write_bytes(b"".join(printed))
        except OSError as error:
            raise ConfigError(f"--csv {path}: the file cannot be written ({error.strerror})") from None
        print(f"wrote {path}")
    return exit_code


def log_in(name: str) -> int:
    """Opens the connection to a cluster behind ssh, which may ask for a password; raises ConfigError."""
    cluster = clusters.named(name)
    failed = ssh.log_in(cluster) != DONE
    print(f"{cluster.host}: the login failed" if failed else f"logged in to {cluster.host}")
    return int(failed)


def set_up(name: str, text: str, activate: Sequence[str], python: str | None, options: Sequence[str]) -> None:
    """Installs the launcher on a cluster, writes a profile there (options: of `site init`), and checks it."""
    from launcher.remote import install

    cluster = clusters.parsed(profiles.own_folder() / f"{name}.yaml", text)
    made = install.wheel()
    found = install.chosen_python(cluster, activate, python)
    print(f"python   {found.text}, {f'torch {found.torch}' if found.torch else 'without torch'}", flush=True)
    install.install(cluster, found, activate, made)
    print(f"launcher {__version__} in ~/{cluster.command}", flush=True)
    said: list[str] = []
    quiet = partial(call, cluster, prompts=True, show=lambda _: None, errors=said.append)
    there = profile_of(cluster)
    checked = [f"--cluster={there}"]
    if quiet(["site", "show", there]) == DONE:
        print(f"profile  {there} is there already; `launcher doctor --cluster {name}` compares it with the scheduler")
    elif quiet(["site", "init", there, *options]) == DONE:
        print(f"profile  {there} written there")
    else:
        print("missing  a profile there: write one there, or name one that is there as `profile` here")
        print(f"         {said[-1].strip()}")
        checked = []
    if not found.torch:
        print("missing  torch in this Python there: set env.activate in the profile there to an environment with it")
    call(cluster, ["doctor", *checked])


def submit(words: Sequence[str], name: str = "") -> int | None:
    """Submits a run or sweep to the cluster behind ssh that the words, as typed, choose; None: they choose another."""
    if (made := ssh.submit(words, name)) is None:
        return None
    if made.exit_code or not made.waits:
        return made.exit_code
    try:
        return call(made.cluster, ["wait", made.run_id], follows=True)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"{made.run_id} goes on: `launcher cancel {made.run_id}` ends it") from None


# -- The rows of `status`: all clusters are asked at once; one that does not answer is shown as it was seen last


BETWEEN = 15.0  # seconds between two questions to a cluster of `status --watch`

# Fields of a row that are computed with.
NUMBERS = (
    "nodes", "spares", "attempt", "step", "steps", "percent", "needs", "elapsed", "left", "checkpoint",
    "checkpoint_age", "updated",
)  # fmt: skip
TEXTS = ("job", "kind", "before", "cause")
WAIT = {"rank", "host", "where", "seconds"}  # of an entry of `breakpoints`


@dataclass(frozen=True)
class Answer:
    cluster: RemoteCluster
    rows: tuple[dict[str, Any], ...]
    problem: str = ""  # why it has not answered; then the rows are what was seen last
    seen: float | None = None  # when that was, in seconds since the epoch; None: never

    @property
    def text(self) -> str:
        when = "nothing is known of its runs"
        if self.seen is not None:
            when = f"its runs are as of {brief(time.time() - self.seen)} ago"
        return f"This is incomplete: {self.problem}; {when}."


class RemoteRows:
    """The rows of all clusters behind ssh, asked at the same time, at most every BETWEEN seconds.

    While a cluster is asked again, it has the rows of its last answer.
    """

    def __init__(self, options: Sequence[str]) -> None:
        # Several profiles may lead to one launcher, which has the same runs for all.
        self._clusters = list({each.place: each for each in clusters.remote_clusters().values()}.values())
        self._words = ["status", "--json", *options]
        self._asked: list[concurrent.futures.Future[Answer]] = []
        self._last: list[Answer] = []
        self._when = float("-inf")

    def ask(self) -> None:
        complete = all(each.done() for each in self._asked)
        if self._clusters and complete and time.monotonic() - self._when > BETWEEN:
            self._when, self._last = time.monotonic(), self.answers()
            pool = concurrent.futures.ThreadPoolExecutor(len(self._clusters))
            self._asked = [pool.submit(self._answer, each) for each in self._clusters]
            pool.shutdown(wait=False)  # as `with` would not: other runs are read meanwhile

    def answers(self) -> list[Answer]:
        before: Sequence[Answer | None] = self._last or [None] * len(self._asked)
        pairs = zip(self._asked, before, strict=True)
        return [asked.result() if last is None or asked.done() else last for asked, last in pairs]

    def _answer(self, cluster: RemoteCluster) -> Answer:
        errors, text = list[str](), list[bytes]()
        try:
            if call(cluster, self._words, timeout=cluster.timeout, show=text.append, errors=errors.append):
                raise Unreachable(f"{cluster.name}: {' '.join(''.join(errors).split())}")
            rows = list(filter(_sound, json.loads(b"".join(text))))
        except (Unreachable, ConfigError, OSError, ValueError, TypeError, KeyError) as error:
            seen, rows = clusters.last_seen(cluster)
            return Answer(cluster, tuple(_as_seen_last(row, cluster) for row in rows), str(error), seen)
        clusters.save_seen(cluster, rows)
        return Answer(cluster, tuple(_of_cluster(row, cluster) for row in rows))


def _sound(row: Any) -> bool:
    # What is computed with a row must not fail because of what another machine has sent
    if not isinstance(row, dict) or not all(isinstance(row.get(key), str) for key in ("run", "state")):
        return False
    points, waits = row.get("points") or {}, row.get("breakpoints") or []
    return (
        all(isinstance(row.get(key), int | float | None) for key in NUMBERS)
        and all(isinstance(row.get(key), str | None) for key in TEXTS)
        and isinstance(points, dict) and all(isinstance(each, int) for each in points.values())
        and isinstance(waits, list) and all(isinstance(each, dict) and each.keys() >= WAIT for each in waits)
    )  # fmt: skip


def _of_cluster(row: Mapping[str, Any], cluster: RemoteCluster) -> dict[str, Any]:
    # other commands for clusters need no states
    from launcher.monitoring.sweep_status import CANCELLING, LIVE, ORPHANED, WAITING

    states = {row.get("state")} if row.get("points") is None else set(row["points"])
    over = not {*LIVE, WAITING, CANCELLING, ORPHANED} & states
    return {**row, "cluster": cluster.name, "remote": True, "over": over, "settled": True}


def _as_seen_last(row: Mapping[str, Any], cluster: RemoteCluster) -> dict[str, Any]:
    # A run that was not over is in an unknown state
    shown = _of_cluster(row, cluster)
    if not shown["over"] and shown.get("points") is None and shown["state"] != "unknown":
        shown |= {"before": shown["state"], "state": "unknown"}
    return shown
