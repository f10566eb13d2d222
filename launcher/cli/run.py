"""`run`: submits the user's own script as workload=program. The run is named after the script."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from launcher.cli.commands import RUN_USAGE
from launcher.config.overrides import key_of, quoted
from launcher.errors import ConfigError
from launcher.plan.build import name_of

SCRIPT_ARGUMENTS = "; arguments of {} follow `--`"


def run(arguments: Namespace) -> int:
    from launcher.cli import submit

    words = overrides(arguments.script, arguments.overrides, module=arguments.module)
    words += [f"--{name}" for name in ("multirun", "yes", "resolve") if getattr(arguments, name)]
    words += [f"--cfg={arguments.cfg}"] if arguments.cfg else []
    words += [f"--config-dir={arguments.config_dir}"] if arguments.config_dir else []
    return submit.main(words if arguments.arguments is None else [*words, "--", *arguments.arguments])


def overrides(script: str, given: Sequence[str], *, module: bool = False) -> list[str]:
    """Returns the overrides that run a script (or module): name, workload and script, then those given."""
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
