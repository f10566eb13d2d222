"""Commands for clusters behind ssh: which command lines go there, with the code that a submission needs."""

from __future__ import annotations

import codecs
import importlib
import os
import re
import shutil
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher import __version__
from launcher.cli.screen import write_output
from launcher.config.hydra_text import key_of
from launcher.config.keys import opened
from launcher.config.profiles import own_folder
from launcher.environment.repository import Tree, check, commit_of, tree
from launcher.errors import BAD_INPUT, DECLINED, DONE, ConfigError
from launcher.files import run_files
from launcher.formatting import plural, rough_size
from launcher.paths import default_runs_dir
from launcher.redaction import secrets_in
from launcher.remote import clusters, code, connection
from launcher.remote.clusters import RemoteCluster, Unreachable
from launcher.remote.connection import Call, in_terminal
from launcher.runs.directory import new_id
from launcher.units import parse_size

if TYPE_CHECKING:
    from argparse import Namespace

    from launcher.remote.code import CodeFile

# Commands about runs, and the attributes of their arguments that name these. All names of `ALIKE` are of one cluster.
RUNS = {
    "status": ("names",), "cancel": ("names",), "report": ("names", "baseline"), "sweep": ("name",),
    **dict.fromkeys(
        ("logs", "resume", "attach", "wait", "topology", "why", "post-mortem", "checkpoint"), ("name",)
    ),
}  # fmt: skip
ALIKE = ("report",)
LARGE = 1 << 20  # bytes of code; that more are sent is said
LIMIT = "100M"  # of the code, unless env.snapshot_limit is among the overrides
NOTHING_SUBMITTED = (BAD_INPUT, DECLINED)
PRINTS = ("--cfg", "--help", "-h", "--info", "-i", "--hydra-help")


# -- commands about runs


def forward(command: str, arguments: Namespace, words: Sequence[str]) -> int | None:
    """Runs a command on the clusters of the runs that it names; None: all are on this machine, or it names none.

    Of the runs that it names, those of this machine stay in `arguments`, if there are others.
    """
    if command == "doctor" and arguments.cluster is not None:
        cluster = clusters.remote_clusters().get(arguments.cluster)
        if cluster is None:
            return None
        return call(cluster, ["doctor", f"--cluster={_profile(cluster)}", *(["--json"] if arguments.as_json else [])])
    attributes = RUNS.get(command, ())
    names = [each for attribute in attributes for each in _listed(getattr(arguments, attribute))]
    places = {name: clusters.locate(name) for name in names}
    groups: dict[RemoteCluster | None, list[str]] = {}
    for name in names:
        groups.setdefault(places[name][0], []).append(name)
    if not any(groups):
        return None
    if command in ALIKE and len(groups) > 1:
        raise ConfigError(f"{command}: {' and '.join(names)} are not on one cluster: name runs of one")
    codes = []
    for cluster, mine in groups.items():
        if cluster is None:
            arguments.names = mine
            continue
        others = [each for each in names if each not in mine]
        codes.append(
            _forward(cluster, command, arguments, _renamed(words, {name: places[name][1] for name in mine}, others))
        )
    if None not in groups:
        return max(codes)
    codes.append(importlib.import_module(f"launcher.cli.{command.replace('-', '_')}").run(arguments))
    return max(codes)


def _listed(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value or ())


def _renamed(words: Sequence[str], names: Mapping[str, str], without: Collection[str]) -> list[str]:
    at = words.index("--") if "--" in words else len(words)
    return [*(names.get(word, word) for word in words[:at] if word not in without), *words[at:]]


def _profile(cluster: RemoteCluster) -> str:
    return cluster.profile or cluster.name


def _forward(cluster: RemoteCluster, command: str, arguments: Namespace, words: Sequence[str]) -> int:
    action = getattr(arguments, "action", "")
    if command == "attach" and (arguments.what or ("shell" if sys.stdin.isatty() else "stack")) != "stack":
        return in_terminal(cluster, {"arguments": [command, *words]})
    if command == "report" or (command, action) == ("checkpoint", "extract"):
        return _fetch(cluster, command, arguments, words)
    sent = SentCode.here(cluster, words) if command == "resume" and arguments.new_snapshot else None
    follows = any(getattr(arguments, name, False) for name in ("follow", "watch")) or "wait" in (command, action)
    show = write_output if command == "logs" else None
    return call(cluster, [command, *words], follows=follows, prompts=command == "resume", sent=sent, show=show)


def _fetch(cluster: RemoteCluster, command: str, arguments: Namespace, words: Sequence[str]) -> int:
    # The command writes a file there, which becomes one here
    skipped = iter(words)
    wanted = [
        word for word in skipped
        if word != "--open" and not word.startswith("--output=") and not (word in ("-o", "--output") and next(skipped))
    ]  # fmt: skip
    name = re.sub(r"[^\w.+-]", "-", clusters.locate(_listed(getattr(arguments, RUNS[command][0]))[0])[1])
    run_files.make_folder(cluster.folder)
    path = Path(arguments.output or cluster.folder / f"{name}.{'html' if command == 'report' else 'checkpoint'}")
    exit_code = call(cluster, [command, *wanted], output=path)
    if exit_code == DONE:
        print(f"wrote {path} ({rough_size(path.stat().st_size)})")
        if getattr(arguments, "show", False):
            importlib.import_module("launcher.cli.report").open_page(path)
    return exit_code


def call(
    cluster: RemoteCluster, words: Sequence[str], *, follows: bool = False, prompts: bool = False,
    timeout: float | None = None, sent: SentCode | None = None, run: str = "", output: Path | None = None,
    show: Callable[[bytes], object] | None = None, errors: Callable[[str], object] | None = None,
) -> int:  # fmt: skip
    """Runs a command there, and returns its exit code.

    follows, run, sent: fields of the request. prompts, timeout, errors: see `Call`. output: file here that gets the one
        that the command writes. show: gets the command's output; None: it is printed.
    Raises Unreachable: it is not known how the command ended.
    """
    request = {
        "arguments": list(words), "follows": follows, "output": output is not None, "run": run,
        "columns": shutil.get_terminal_size().columns, "asks": prompts and sys.stdin.isatty(),
        **(sent.request if sent else {}),
    }  # fmt: skip
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    with Call(cluster, request, prompts=prompts, timeout=timeout, errors=errors) as made:
        for event in made.events():
            if not isinstance(event, bytes):
                _answer(made, event, sent, output)
            elif show is not None:
                show(event)
            elif output is None:
                sys.stdout.write(decoder.decode(event))
                sys.stdout.flush()
    assert made.exit_code is not None
    return made.exit_code


def _answer(made: Call, frame: Mapping[str, Any], sent: SentCode | None, output: Path | None) -> None:
    if "ask" in frame:
        made.answer({"answer": sys.stdin.readline()})
    elif "file" in frame and output is not None:
        part = output.with_name(run_files.temporary_name(output.name))
        try:
            with part.open("xb") as file:
                made.take(int(frame["file"]), file.write)
            part.replace(output)
        finally:
            part.unlink(missing_ok=True)
    elif sent is not None and "list" in frame:
        made.answer({"commit": commit_of(str(sent.tree.root)), "files": sent.files})
    elif sent is not None and "contents" in frame:
        sent.send(frame["contents"], made.send)


# -- `site`


def log_in(name: str | None) -> int:
    """Opens the connection to a cluster behind ssh, which may ask for a password; raises ConfigError."""
    known = clusters.remote_clusters()
    if name not in known:
        raise ConfigError(f"`site login` needs the NAME of a cluster behind ssh; known: {', '.join(known) or 'none'}")
    failed = connection.log_in(known[name]) != DONE
    print(f"{known[name].host}: the login failed" if failed else f"logged in to {known[name].host}")
    return int(failed)


def set_up(name: str, text: str, activate: Sequence[str], python: str | None, options: Sequence[str]) -> None:
    """Installs the launcher on a cluster, writes a profile there, and checks it.

    text: of the profile here. activate, python: how to get a Python there. options: those of `site init` there.
    Raises LauncherError: the other side cannot be used; nothing is left there.
    """
    from launcher.remote import install

    cluster = clusters.parsed(own_folder() / f"{name}.yaml", text)
    found = install.chosen_python(cluster, activate, python)
    print(f"python   {found.text}, {f'torch {found.torch}' if found.torch else 'without torch'}", flush=True)
    install.install(cluster, found, activate)
    print(f"launcher {__version__} in ~/{cluster.command}", flush=True)
    said: list[str] = []
    quiet = partial(call, cluster, prompts=True, show=lambda _: None, errors=said.append)
    checked = [f"--cluster={name}"]
    if quiet(["site", "show", name]) == DONE:
        print(f"profile  {name} is there already; `launcher site check {name}` there compares it with the scheduler")
    elif quiet(["site", "init", name, *options, *(f"--setup={line}" for line in activate)]) == DONE:
        print(f"profile  {name} written there")
    else:
        print("missing  a profile there: write one there, or name one that is there as `profile` here")
        print(f"         {said[-1].strip()}")
        checked = []
    if not found.torch:
        print("missing  torch in this Python there: set env.activate in the profile there to an environment with it")
    call(cluster, ["doctor", *checked])


# -- submissions


@dataclass(frozen=True)
class SentCode:
    """The code of a submission, as it is in the working folder."""

    tree: Tree
    files: Mapping[str, CodeFile]
    request: Mapping[str, Any] = field(repr=False)  # its fields of the request

    @classmethod
    def here(cls, cluster: RemoteCluster, words: Sequence[str]) -> SentCode:
        """Returns the code of the working folder's repository.

        Raises ConfigError: there is no repository, it is too large (env.snapshot_limit), or an argument names one of
            its files that is not sent.
        """
        keys, key = keys_of(words), f"cluster={cluster.name}"
        found = tree(os.getcwd(), [str(default_runs_dir())], key)
        files, left_out = code.listed(found, cluster.exclude)
        sent = Tree(found.root, {name: found.files[name] for name in files})
        check(sent, parse_size(keys.get("env.snapshot_limit", LIMIT)), key)
        for name in left_out:
            print(f"note: {name} is not sent: it is a link out of {found.root}", file=sys.stderr)
        absolute = []
        for path in _paths(words):
            if os.path.isabs(whole := os.path.expanduser(path)):
                absolute.append(whole)
            elif os.path.isfile(path) and _inside(path, found.root) not in sent.files:
                raise ConfigError(
                    f"{path} exists, but is not sent to {cluster.name}: git ignores it, it is outside of {found.root}, "
                    f"or `exclude` of {cluster.file} names it. Copy it there yourself, and name its path there"
                )
        secrets = secrets_in(os.environ, (*cluster.secrets, *re.findall(r"[\w*?]+", keys.get("env.secrets", ""))))
        if missing := [name for name in cluster.secrets if name.isidentifier() and name not in secrets]:
            raise ConfigError(f"{cluster.file}: secrets: {missing[0]} is not set in this environment")
        place = {"digest": code.digest_of(files), "folder": _inside(".", found.root)}
        return cls(sent, files, {"code": place, "paths": absolute, "secrets": secrets})

    def send(self, wanted: Sequence[str], into: Callable[[bytes], None]) -> None:
        """Sends contents, and says how much that is if it takes a while."""
        sizes = {file.digest: file.size for file in self.files.values()}
        if (size := sum(map(sizes.__getitem__, wanted))) > LARGE:
            print(f"sending {plural(len(wanted), 'file')} ({rough_size(size)})", file=sys.stderr)
        code.send(self.tree, self.files, wanted, into)


def _inside(path: str, root: Path) -> str:
    return os.path.relpath(os.path.realpath(path), os.path.realpath(root))


def _paths(words: Sequence[str]) -> Iterator[str]:
    # Yields what may be paths of this machine: existing ones, as a word, as a value, or in a list
    for word in words:
        for path in dict.fromkeys((word, word.partition("=")[2], *re.split(r"[][,{}'\"=]", word))):
            if ("/" in path or "." in path) and path.strip("./") and os.path.lexists(os.path.expanduser(path)):
                yield path


def keys_of(words: Sequence[str]) -> dict[str, str]:
    """Returns the values of overrides by their keys, as they are written but for quotes around them."""
    return {key_of(word): word.partition("=")[2].strip("'\"") for word in opened(words) if "=" in word}


def submit(words: Sequence[str], command: str = "") -> int | None:
    """Submits a run or sweep to the cluster behind ssh that the arguments choose; None: they choose another.

    words: as they are typed: overrides, flags, `--` and the arguments of a program. command: `run`, or empty.
    """
    at = words.index("--") if "--" in words else len(words)
    given, behind = list(words[:at]), list(words[at:])
    cluster = clusters.chosen(given)
    if cluster is None or {"-h", "--help"} & set(given):
        return None
    keys = keys_of(given)
    if keys.get("env.snapshot") in ("false", "False"):
        raise ConfigError(f"env.snapshot=false: a run on {cluster.name} has a copy of the code that is sent there")
    id_key = "sweep.id" if {"-m", "--multirun"} & set(given) else "run_id"
    run_id = keys.get(id_key) or _new_id(given, keys, command)
    rest = [word for word in given if key_of(word) not in ("cluster", "wait", id_key) or "=" not in word]
    more = [f"cluster={_profile(cluster)}", "env.snapshot=true"]
    sent = SentCode.here(cluster, words)
    head = [command] if command else []
    if keys.get("dry_run") == "true" or any(word.startswith(PRINTS) for word in given):
        return call(cluster, [*head, *rest, *more, *behind], prompts=True, sent=sent)
    clusters.note(cluster, run_id)
    more += ["wait=false", f"{id_key}={run_id}"]
    try:
        exit_code = call(cluster, [*head, *rest, *more, *behind], prompts=True, sent=sent, run=run_id)
    except Unreachable as error:
        if not error.asked:
            clusters.note(cluster, run_id, gone=True)
            raise
        raise Unreachable(
            f"{error}.\nRepeat the command with {id_key}={run_id}: it takes the job that is there, or submits it if "
            "there is none"
        ) from None
    if exit_code in NOTHING_SUBMITTED:
        clusters.note(cluster, run_id, gone=True)
    if exit_code or keys.get("wait") != "true":
        return exit_code
    return call(cluster, ["wait", run_id], follows=True)


def _new_id(given: Sequence[str], keys: Mapping[str, str], command: str) -> str:
    script = next((word for word in given if not word.startswith("-") and "=" not in word), "") if command else ""
    name = keys.get("name") or Path(script).stem or keys.get("workload") or "run"
    return new_id(re.sub(r"[^A-Za-z0-9_.+-]", "_", name.strip("'\"")).lstrip("-+.")[:60] or "run")
