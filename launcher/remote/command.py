"""Commands that are run on a cluster behind ssh, and submissions, with the code that they need."""

from __future__ import annotations

import codecs
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from launcher.config.hydra_text import key_of
from launcher.environment.repository import Tree, check, commit_of, tree
from launcher.errors import ConfigError
from launcher.files import run_files
from launcher.formatting import plural, rough_size
from launcher.paths import default_runs_dir, new_id
from launcher.redaction import secrets_in
from launcher.remote import clusters
from launcher.remote import code as files_of_code
from launcher.remote.clusters import RemoteCluster, Unreachable
from launcher.remote.code import CodeFile
from launcher.remote.connection import Call
from launcher.units import parse_size

LARGE = 1 << 20  # bytes of code; that more are sent is said
LIMIT = "100M"  # of the code, unless env.snapshot_limit is among the overrides
PRINTS = ("--cfg", "--help", "-h", "--info", "-i", "--hydra-help")


def profile_of(cluster: RemoteCluster) -> str:
    """Returns the name of the profile there."""
    return cluster.profile or cluster.name


def call(
    cluster: RemoteCluster, words: Sequence[str], *, follows: bool = False, prompts: bool = False,
    timeout: float | None = None, code: Callable[[], SentCode] | None = None, run: str = "", output: Path | None = None,
    show: Callable[[bytes], object] | None = None, errors: Callable[[str], object] | None = None,
    begun: Callable[[Call], object] = lambda _: None,
) -> int:  # fmt: skip
    """Runs a command there, and returns its exit code.

    follows, run: fields of the request. prompts: whether it submits something: it gets the secrets, and ssh may ask for
        a password. timeout, errors: see `Call`. code: finds the code that the command needs, while Python starts there.
    output: file here that gets the one that the command writes. show: gets the command's output; None: it is printed.
    begun: gets the call, which tells afterwards how far it came.
    Raises ConfigError (`code`), or Unreachable: it is not known how the command ended.
    """
    sent: SentCode | None = None
    request = {
        "arguments": list(words), "follows": follows, "output": output is not None, "run": run,
        "columns": shutil.get_terminal_size().columns, "asks": prompts and sys.stdin is not None and sys.stdin.isatty(),
    }  # fmt: skip
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    with Call(cluster, prompts=prompts, timeout=timeout, errors=errors) as made:
        begun(made)
        for event in made.events():
            if not isinstance(event, bytes) and "hello" in event:
                sent = code() if code else None
                secrets = secrets_of(cluster, words) if prompts else {}
                made.answer({**made.header, **request, "secrets": secrets, **(sent.request if sent else {})})
            elif not isinstance(event, bytes):
                try:
                    _answer(made, event, sent, output, asks=bool(request["asks"]))
                except (KeyError, TypeError, ValueError) as error:
                    raise Unreachable(f"{cluster.name}: its answer cannot be understood: {error!r}") from None
            elif show is not None:
                show(event)
            elif output is None:
                sys.stdout.write(decoder.decode(event))
                sys.stdout.flush()
    assert made.exit_code is not None
    return made.exit_code


def _answer(made: Call, frame: Mapping[str, Any], sent: SentCode | None, output: Path | None, asks: bool) -> None:
    # The other side gets what the command needs, and nothing else
    if "ask" in frame:
        if not asks:
            raise Unreachable(f"{made.cluster.name}: it asks a question where nobody can answer")
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
        files, left_out = files_of_code.listed(found, cluster.exclude)
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
        place = {"digest": files_of_code.digest_of(files), "folder": _inside(".", found.root)}
        return cls(sent, files, {"code": place, "paths": absolute})

    def send(self, wanted: Sequence[str], into: Callable[[bytes], None]) -> None:
        """Sends contents, and says how much that is if it takes a while."""
        sizes = {file.digest: file.size for file in self.files.values()}
        if (size := sum(map(sizes.__getitem__, wanted))) > LARGE:
            print(f"sending {plural(len(wanted), 'file')} ({rough_size(size)})", file=sys.stderr)
        files_of_code.send(self.tree, self.files, wanted, into)


def secrets_of(cluster: RemoteCluster, words: Sequence[str]) -> dict[str, str]:
    """Returns the secrets that a submission has there; raises ConfigError: one that the profile names is not set."""
    given = re.findall(r"!?[\w*?]+", keys_of(words).get("env.secrets", ""))
    secrets = secrets_in(os.environ, (*cluster.secrets, *given))
    if missing := [name for name in cluster.secrets if name.isidentifier() and name not in secrets]:
        raise ConfigError(f"{cluster.file}: secrets: {missing[0]} is not set in this environment")
    return secrets


def _inside(path: str, root: Path) -> str:
    return os.path.relpath(os.path.realpath(path), os.path.realpath(root))


def _paths(words: Sequence[str]) -> Iterator[str]:
    # Yields what may be paths of this machine: existing ones, as a word, as a value, or in a list
    for word in words:
        for path in dict.fromkeys((word, word.partition("=")[2], *re.split(r"[][,{}'\"=]", word))):
            whole = os.path.expanduser(path)
            if path.strip("./") and os.path.lexists(whole) and ("/" in path or os.path.isfile(whole)):
                yield path


def keys_of(words: Sequence[str]) -> dict[str, str]:
    """Returns the values of overrides by their keys, as they are written but for quotes around them."""
    return {key_of(word): word.partition("=")[2].strip("'\"") for word in words if "=" in word}


class RemoteSubmission(NamedTuple):
    """A run or sweep that was submitted to a cluster behind ssh."""

    cluster: RemoteCluster
    run_id: str
    exit_code: int  # of the command there
    waits: bool = False  # whether the user waits for its end


REPEAT = "Repeat the command with {}: it takes the job that is there, or submits it if there is none"


def submit(
    words: Sequence[str], command: str = "", show: Callable[[bytes], object] | None = None,
    errors: Callable[[str], object] | None = None,
) -> RemoteSubmission | None:  # fmt: skip
    """Submits a run or sweep to the cluster behind ssh that the arguments choose; None: they choose another.

    words: as they are typed: overrides, flags, `--` and the arguments of a program. command: `run`, or empty.
    show, errors: as for `call`. Raises ConfigError, or Unreachable: nobody knows whether it was submitted.
    """
    at = words.index("--") if "--" in words else len(words)
    given, behind = list(words[:at]), list(words[at:])
    cluster = clusters.chosen(given)
    if cluster is None or {"-h", "--help"} & set(given):
        return None
    keys = keys_of(given)
    if keys.get("env.snapshot", "").lower() == "false":
        raise ConfigError(f"env.snapshot=false: a run on {cluster.name} has a copy of the code that is sent there")
    id_key = "sweep.id" if {"-m", "--multirun"} & set(given) else "run_id"
    run_id = keys.get(id_key) or _new_id(given, keys, command)
    rest = [word for word in given if key_of(word) not in ("cluster", "wait", id_key) or "=" not in word]
    more = [f"cluster={profile_of(cluster)}", "env.snapshot=true"]
    code = partial(SentCode.here, cluster, words)
    head = [command] if command else []
    if keys.get("dry_run", "").lower() == "true" or any(word.startswith(PRINTS) for word in given):
        words = [*head, *rest, *more, *behind]
        return RemoteSubmission(
            cluster, run_id, call(cluster, words, prompts=True, code=code, show=show, errors=errors)
        )
    clusters.note(cluster, run_id)
    words = [*head, *rest, *more, "wait=false", f"{id_key}={run_id}", *behind]
    begun: list[Call] = []
    try:
        exit_code = call(
            cluster, words, prompts=True, code=code, run=run_id, show=show, errors=errors, begun=begun.append
        )
    except (KeyboardInterrupt, Exception) as error:
        if not (begun and begun[0].connected) or isinstance(error, ConfigError):
            clusters.note(cluster, run_id, gone=True)
            raise
        if isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt(f"interrupted. {REPEAT.format(f'{id_key}={run_id}')}") from None
        if isinstance(error, Unreachable):
            raise Unreachable(f"{error}.\n{REPEAT.format(f'{id_key}={run_id}')}") from None
        raise
    if exit_code and not begun[0].has_run:
        clusters.note(cluster, run_id, gone=True)
    return RemoteSubmission(cluster, run_id, exit_code, keys.get("wait", "").lower() == "true")


def _new_id(given: Sequence[str], keys: Mapping[str, str], command: str) -> str:
    script = next((word for word in given if not word.startswith("-") and "=" not in word), "") if command else ""
    name = keys.get("name") or Path(script).stem or keys.get("workload") or "run"
    return new_id(re.sub(r"[^A-Za-z0-9_.+-]", "_", name.strip("'\"")).lstrip("-+.")[:60] or "run")
