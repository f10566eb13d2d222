"""`doctor`: checks this machine, its software, the folder of runs and the scheduler, and prints the findings."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import TYPE_CHECKING

from launcher import __version__
from launcher.cli.text import labelled
from launcher.diagnose import doctor
from launcher.diagnose.doctor import run_all, start
from launcher.errors import ConfigError
from launcher.findings import Level, problem, worst
from launcher.formatting import plural

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator

    from launcher.config.schema import Config
    from launcher.findings import Finding

MARKS = {"ok": "ok     ", "warning": "warning", "problem": "PROBLEM"}


def run(arguments: Namespace) -> int:
    found = []
    for each in _all(arguments.cluster):
        found.append(each)
        if not arguments.as_json:
            print(line(each), flush=True)
    level = worst(found)
    if arguments.as_json:
        print(_json(found))
    else:
        numbers = {kind: sum(each.level is kind for each in found) for kind in Level}
        problems, warnings = numbers[Level.PROBLEM], numbers[Level.WARNING]
        print(f"\n{plural(problems, 'problem')}, {plural(warnings, 'warning')}")
    return 1 if level is Level.PROBLEM else 0


def _all(cluster: str | None) -> Iterator[Finding]:
    # The slow import of torch is checked in the background
    torch = start(doctor.torch())
    yield from run_all(doctor.first())
    try:
        config = config_of(cluster)
    except ConfigError as error:
        yield problem("config", str(error), "correct it, or choose another profile with --cluster NAME")
    except ImportError as error:
        yield problem("config", f"cannot be composed: {error}", "see packages above")
    else:
        yield from run_all(doctor.rest(config, compares=cluster is not None))
    yield from torch()


def config_of(cluster: str | None) -> Config:
    """Composes the config with a profile (None: the default one); raises ConfigError."""
    # What it needs may not be installed, which the checks before report
    from launcher.submission import configs

    return configs.composed(["workload=p2p", *([f"cluster={cluster}"] if cluster else [])]).config


def line(found: Finding) -> str:
    """Formats a finding for a terminal. What to do starts on a new line."""
    head = f"{MARKS[found.level.value]}  {found.about:<10} "
    lines = labelled(head, found.says, column=len(head))
    if found.do:
        lines += labelled("", f"-> {found.do}", column=len(head))
    return "\n".join(lines)


def _json(found: list[Finding]) -> str:
    rows = [dataclasses.asdict(each) for each in found]
    return json.dumps({"launcher": __version__, "python": sys.version.split()[0], "level": worst(found).value,
                       "findings": rows}, indent=1)  # fmt: skip
