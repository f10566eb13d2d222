"""Which module a command line calls. The module of a command is imported when it is called."""

from __future__ import annotations

import importlib
import os
import shlex
from typing import TYPE_CHECKING

from launcher.cli.help import COMMANDS, parser_of
from launcher.errors import ConfigError, near, program

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Mapping

    from launcher.remote.clusters import RemoteCluster

# Commands that share a module, where their functions have their names. Any other has `run` in a module of its name.
SHARED = {
    "run": "submit", "resume": "submit", "cancel": "cancel_and_prune", "prune": "cancel_and_prune",
    "env": "site", "data": "site", "template": "site", "help": "key_help",
}  # fmt: skip
ABOUT = {"-h", "--help", "--version"}
IN_FRONT = ("-m", "--multirun", "--yes")  # options without a value; a command may follow them


def main(arguments: list[str]) -> int:
    """Runs a command line: a command, which IN_FRONT may precede; a text about all; else KEY=VALUE, which submits."""
    at = next((at for at, word in enumerate(arguments) if word not in IN_FRONT), len(arguments))
    if at < len(arguments) and not arguments[at].startswith(("-", "~")) and "=" not in arguments[at]:
        return _run(arguments[at], [*arguments[:at], *arguments[at + 1 :]])
    ours = arguments[: arguments.index("--")] if "--" in arguments else arguments
    if not arguments or not ABOUT.isdisjoint(ours):
        return int(importlib.import_module("launcher.cli.key_help").show_for(ours))
    return int(importlib.import_module("launcher.cli.submit").main(arguments))


def _run(name: str, words: list[str]) -> int:
    if name not in COMMANDS:
        if os.path.isfile(name):
            raise ConfigError(f"{name} is a file, and no command: `{program()} run {shlex.quote(name)}` runs it")
        from launcher.paths import choices

        workloads = [f"workload={each}" for each in choices("workload")]
        raise ConfigError(
            f"there is no command {name!r}.{near(name, [*COMMANDS, *workloads])} Known: {', '.join(COMMANDS)}; "
            "anything else is KEY=VALUE and submits a run"
        )
    parser = parser_of(name)
    remote = importlib.import_module("launcher.cli.ssh_forward") if name == "run" and remote_profiles() else None
    if remote is not None and (code := remote.submit(words, name)) is not None:
        return int(code)
    try:
        parsed = parser.parse(words)
    except SystemExit:
        return 0
    about_runs = name == "doctor" or getattr(parsed, "runs_dir", parsed) is None
    if about_runs and remote_profiles():
        remote = importlib.import_module("launcher.cli.ssh_forward")
        if (code := remote.forward(name, parsed, words)) is not None:
            return int(code)
    return function(name)(parsed)


def function(name: str) -> Callable[[Namespace], int]:
    identifier = name.replace("-", "_")
    module = importlib.import_module(f"launcher.cli.{SHARED.get(name, identifier)}")
    found: Callable[[Namespace], int] = getattr(module, identifier if name in SHARED else "run")
    return found


def remote_profiles() -> Mapping[str, RemoteCluster]:
    """Returns the user's profiles of clusters behind ssh, by name; without any, `ssh_forward` is not imported."""
    from launcher.paths import user_config_dir

    if not os.path.isdir(user_config_dir() / "cluster"):
        return {}
    from launcher.remote.clusters import remote_clusters

    return remote_clusters()
