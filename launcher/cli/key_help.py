"""`help KEY`, `help --all`, `--help`, `--version`: the general help, and the keys. Imports neither Hydra nor torch."""

from __future__ import annotations

import textwrap
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

from launcher import __version__
from launcher.cli.help import COMMANDS, parser_of
from launcher.config import schema
from launcher.config.errors import file_of, in_yaml
from launcher.config.keys import WORKLOADS, Key, KeySection, keys_of, written
from launcher.config.keys import sections as all_sections
from launcher.config.scheduler_table import cluster_class
from launcher.errors import ConfigError, near, program
from launcher.paths import choices, resource, user_config_dir

WIDTH = 80
MEANING_COLUMN = 28
# Keys that most runs need; `help --all` lists all keys.
COMMON_KEYS = (
    "workload", "workload.script", "workload.args", "cluster", "nodes", "gpus_per_node", "time", "mem", "name",
    "run_id", "wait", "submit", "dry_run",
)  # fmt: skip
GROUPS = {"workload": schema.Workload, "cluster": schema.Cluster, "launch": schema.Launch, "env": schema.Env}
USAGE = """\
usage: {program} run SCRIPT [KEY=VALUE ...] [-- ARGUMENT ...]
       {program} workload=NAME [KEY=VALUE ...]
       {program} COMMAND ...

Runs PyTorch here, on Slurm, PBS and Grid Engine, and inside allocations.

  run train.py procs_per_node=2 -- --lr 0.1   runs your script on this machine
  run train.py cluster=slurm nodes=2 time=2h  submits it (dry_run=true: shows)
  workload=ddp_mnist                          runs an example that is included

Keys that most runs need (KEY=DEFAULT; null is empty):

{keys}

  help KEY, help workload=NAME, help cluster=NAME   more about these
  help --all                                        all {count} keys

Commands, each with a --help:

{commands}

Options:

  -m, --multirun      a sweep: a run for each combination of workload.lr=1,2
  --yes               submit without confirmation (confirm_above)
  --cfg job           only print the resulting config; with --resolve, values
                      instead of references to them
  --config-dir DIR    one more folder in which configs are searched
  --info              print which files the config comes from
  --hydra-help        print all options of Hydra
  --version           print the version

Settings for all your runs are read from this file:

  {settings}

Exit codes: 0 done, 1 failed, 2 bad input (nothing was submitted), 3 not
confirmed (confirm_above; nothing was submitted), 75 stopped early and can be
resumed, 93 failed and a retry would fail too, 130 interrupted."""
NEXT_STEPS = """\
launcher {version}: runs PyTorch here, on Slurm, on PBS and on Grid Engine.

  {program} workload=ddp_mnist
      trains on this machine, for a minute
  {program} run train.py -- --lr 0.1
      runs your script on this machine
  {program} run train.py cluster={cluster} nodes=2 dry_run=true
      shows what would be submitted; without dry_run submits it
  {program} site init
      writes a profile of your site, from its scheduler's configuration
  {program} status
      shows your runs
  {program} --help
      lists the keys that most runs need, and all commands"""


def help(arguments: Namespace) -> int:
    if arguments.everything:
        print("\n".join(everything()))
    elif not arguments.words:
        print(overview())
    for word in arguments.words:
        explain(word)
    return 0


def show_for(words: Sequence[str]) -> int:
    """Prints the text for a command line that is empty, or has --help or --version but no command; returns 0."""
    if not words:
        from launcher.schedulers import registry

        cluster = next(iter(registry.queues_here()), "slurm")
        print(NEXT_STEPS.format(version=__version__, program=program(), cluster=cluster))
    elif "--version" in words:
        print(f"launcher {__version__}")
    elif named := [word for word in words if word.partition("=")[0] in GROUPS]:
        for word in named:
            explain(word)
    else:
        print(overview())
    return 0


def overview() -> str:
    found = {key.name: key for _, keys in sections(others=False) for key in keys}
    return USAGE.format(
        program=program(), count=len(found),
        keys="\n".join(line for name in COMMON_KEYS for line in row(found[name])),
        commands="\n".join(f"  {name:<13}{words}" for name, words in COMMANDS.items()),
        settings=user_config_dir() / "user.yaml",
    )  # fmt: skip


def everything() -> Iterator[str]:
    for title, keys in sections():
        yield f"== {title} =="
        for key in keys:
            yield from row(key)
        yield ""
    for group in GROUPS:
        yield from _wrapped(f"{group}=NAME: {', '.join(choices(group))}", "  ")
    yield ""
    yield "Settings for all your runs are read from"
    yield str(user_config_dir() / "user.yaml")


@cache
def sections(*, others: bool = True) -> list[tuple[str, list[Key]]]:
    """Returns title and keys of each section of the config; others: of other packages' schedulers too (20 ms)."""
    found = []
    common = list(keys_of(schema.Workload, "workload."))
    for section in all_sections(others=others):
        if section.kind is schema.P2P:
            found.append(("workload.KEY of every workload", common))
        found.append((section.title, [key for key in _keys(section) if key not in common]))
    return found


def row(key: Key, default: str | None = None) -> Iterator[str]:
    """Yields lines of at most 80 characters with a key, its default (or this one) and its meaning."""
    default = key.default if default is None else default
    typed = f"  {key.name}" if default is None else f"  {key.name}={default}"
    first, *rest = textwrap.wrap(key.meaning, WIDTH - MEANING_COLUMN, break_on_hyphens=False) or [""]
    if len(typed) > MEANING_COLUMN - 2:
        yield from _wrapped(typed, "      ") if len(typed) > WIDTH else [typed]
        rest = [first, *rest]
    else:
        yield f"{typed:<{MEANING_COLUMN}}{first}".rstrip()
    yield from (f"{'':{MEANING_COLUMN}}{line}" for line in rest)


def explain(word: str) -> None:
    name, equals, choice = word.partition("=")
    if equals and name in GROUPS:
        print("\n".join(of_choice(name, choice)))
        return
    lines = list(of_key(name))
    if name in COMMANDS:
        parser_of(name).print_help()
        print(*(["", *lines] if lines else []), sep="\n", end="\n" if lines else "")
    elif lines:
        print("\n".join(lines))
    else:
        names = {key.name for _, keys in sections() for key in keys}
        raise ConfigError(
            f"there is no key and no command {name!r}.{near(name, [*names, *COMMANDS], keys=True)} "
            f"`{program()} help --all` lists all keys"
        )


def of_key(name: str) -> Iterator[str]:
    """Yields the help of a key, of a section's keys, or of keys with this last part: `lr` finds `workload.lr`."""
    every = [(title, key) for title, keys in sections() for key in keys]
    if name in GROUPS:
        yield from _wrapped(f"{name}=NAME: {', '.join(choices(name))}", "  ")
        yield ""
    below = [(title, key) for title, key in every if key.name.startswith(f"{name}.")]
    exact = [(title, key) for title, key in every if key.name == name and not (below and key.section)]
    found = [*exact, *([] if name == "workload" else below)]
    found = found or [(title, key) for title, key in every if key.name.rpartition(".")[2] == name]
    last = ""
    for title, key in found:
        if title != last and key.name.startswith(("workload.", "cluster.")):
            yield f"{title}:"
        last = title
        yield from row(key)
    if name == "workload":
        yield f"\n`{program()} help workload=NAME` has the keys of one."
    elif found and not below and not (key := found[0][1]).name.startswith("workload."):  # else it is of one workload
        yield ""
        yield from _wrapped(f"{key.name}=VALUE, or for all your runs a line `{key.name}: VALUE` in")
        yield str(user_config_dir() / "user.yaml")


def of_choice(group: str, name: str) -> Iterator[str]:
    """Yields the help for GROUP=NAME: the section's keys, with the values of that file; raises ConfigError."""
    lineage, values = _values(group, name)
    kind = GROUPS[group]
    if group == "workload":
        kind = next((WORKLOADS[each] for each in lineage if each in WORKLOADS), kind)
        yield from _wrapped((kind.__doc__ or "").strip())
    yield f"{group}={name} is {file_of(f'{group}/{name}')}\n"
    if group == "cluster":
        from launcher.config.profiles import find as find_profile

        kind = cluster_class(find_profile(name).scheduler) or kind
    within = [hint for hint in get_type_hints(kind).values() if is_dataclass(hint)]
    for section in [KeySection(f"{group}.", "", kind), *(each for each in all_sections() if each.kind in within)]:
        for key in _keys(section):
            yield from row(key, values.get(key.name.removeprefix(f"{group}.")))


def _keys(section: KeySection) -> list[Key]:
    # Config groups (`cluster`, ...) are included. Their default is the option that the main config chooses.
    chosen = _chosen() if section.kind is schema.Config else {}
    keys = keys_of(section.kind, section.prefix)
    return [
        Key(key.name, key.doc, chosen.get(key.name)) if key.section else key
        for key in keys
        if not key.section or key.name in chosen
    ]


def _chosen() -> Mapping[str, str]:
    pairs = [each for each in _read(resource("conf") / "config.yaml")["defaults"] if isinstance(each, dict)]
    return {group: written(name) for pair in pairs for group, name in pair.items() if group in GROUPS}


def _values(group: str, name: str) -> tuple[list[str], dict[str, str]]:
    known = choices(group)
    if name not in known:
        raise ConfigError(f"there is no {group}={name}.{near(name, known)} Known: {', '.join(known)}")
    values = _read(file_of(f"{group}/{name}"))
    lineage, found = [name], dict[str, str]()
    for parent in values.pop("defaults", []):
        if isinstance(parent, str) and not parent.startswith(("_", "/")) and parent != name:
            names, theirs = _values(group, parent)
            lineage, found = [*lineage, *names], {**found, **theirs}
    for key, value in values.items():
        found[key] = written(value)
        found |= {f"{key}.{name}": written(each) for name, each in value.items()} if isinstance(value, dict) else {}
    return lineage, found


def _read(path: Path) -> dict[str, Any]:
    import yaml

    try:
        with path.open("rb") as file:
            values = yaml.safe_load(file)
    except yaml.YAMLError as error:
        raise ConfigError(in_yaml(error)) from None
    return dict(values) if isinstance(values, dict) else {}


def _wrapped(text: str, rest: str = "") -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent=rest, break_on_hyphens=False)
