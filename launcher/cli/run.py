"""`run`: submits the user's own script as workload=program. The run is named after the script."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.cli import submit
from launcher.cli.options import RUN_USAGE
from launcher.config.hydra_text import key_of, quoted
from launcher.errors import ConfigError
from launcher.spec.build import LONGEST_NAME

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence


SCRIPT_ARGUMENTS = "; arguments of {} follow `--`"


def run(arguments: Namespace) -> int:
    words = overrides(arguments.script, arguments.overrides, module=arguments.module)
    words += [f"--{name}" for name in ("multirun", "yes", "resolve") if getattr(arguments, name)]
    words += [f"--cfg={arguments.cfg}"] if arguments.cfg else []
    words += [f"--config-dir={arguments.config_dir}"] if arguments.config_dir else []
    return submit.main(words if arguments.arguments is None else [*words, "--", *arguments.arguments])


def overrides(script: str, given: Sequence[str], *, module: bool = False) -> list[str]:
    """Returns the overrides that run a script: name, workload and script, then those in `given`, which win.

    Args:
        script: path of the script, or name of the module.
        given: the overrides from the command line.
        module: whether `script` is a module.

    Raises:
        ConfigError: an argument in `given` is not KEY=VALUE.
    """
    if "=" in script and not Path(script).is_file():  # Hydra's folders are named so: exp=1/train.py
        raise ConfigError(f"name the script before its KEY=VALUE {script!r}: {RUN_USAGE}")
    for word in given:
        if "=" not in word and not word.startswith("~"):
            raise ConfigError(f"{word!r} is not KEY=VALUE{SCRIPT_ARGUMENTS.format(script)}: {RUN_USAGE}")
    defaults = {
        "name": quoted(name_of(script, module=module)),
        "workload": "program",
        f"workload.{'module' if module else 'script'}": quoted(script),
    }
    given_keys = {key_of(word) for word in given}
    return [*(f"{key}={value}" for key, value in defaults.items() if key not in given_keys), *given]


def name_of(script: str, *, module: bool = False) -> str:
    """Returns the name that a run of this script or module gets: `train` for dir/train.py and for pkg.train. Pure."""
    base = script.rpartition("." if module else "/")[2]
    stem = base if module else base.rpartition(".")[0] or base
    return re.sub(r"[^A-Za-z0-9_.+-]", "_", stem).lstrip("-+.")[:LONGEST_NAME] or "program"
