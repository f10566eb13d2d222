"""`run`: runs the user's own script as workload=program. The run is named after the script."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from launcher.errors import ConfigError

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

    from launcher.cli.commands import Parser

USAGE = "run [-m] SCRIPT [KEY=VALUE ...] [-- ARGUMENT ...]"
SCRIPT_ARGUMENTS = "; arguments of {} follow `--`"


def configure(parser: Parser) -> None:
    parser.usage = parser.prog.removesuffix("run") + USAGE
    parser.behind = "arguments"
    parser.epilog = (
        "Everything after `--` reaches the script unchanged, and needs no quotes but your shell's. An argument that is "
        "swept (-m) is given as a key: workload.flags.lr=0.1,0.01 is --lr 0.1, then --lr 0.01, after the other "
        "arguments; for a script that is a Hydra app workload.overrides.lr=0.1,0.01 is lr=0.1, then lr=0.01."
    )
    parser.add_argument("script", metavar="SCRIPT", help="a Python file, or one that is executable")
    parser.add_argument(
        "overrides", metavar="KEY=VALUE", nargs="*", default=[], help="cluster=slurm nodes=2 time=2h ..."
    )
    parser.add_argument("--module", action="store_true", help="SCRIPT is a module: as `python -m` runs it")
    parser.add_argument("-m", "--multirun", action="store_true", help="a sweep: one run for each combination")
    parser.add_argument("--yes", action="store_true", help="submit without confirmation (confirm_above)")
    parser.add_argument("--cfg", choices=("job", "hydra", "all"), help="only show the config")
    parser.add_argument("--resolve", action="store_true", help="with --cfg: all references resolved")
    parser.add_argument("--config-dir", metavar="DIR", help="one more folder of configs")


def run(arguments: Namespace) -> int:
    """Run your own script, written for torchrun or for no launcher at all, once for each rank. The run has the
    script's name. KEY=VALUE are the keys of every run and of workload=program."""
    # Lazily: neither --help nor completion needs it
    from launcher.cli import submit

    words = overrides(arguments.script, arguments.overrides, module=arguments.module)
    words += [f"--{name}" for name in ("multirun", "yes", "resolve") if getattr(arguments, name)]
    words += [f"--cfg={arguments.cfg}"] if arguments.cfg else []
    words += [f"--config-dir={arguments.config_dir}"] if arguments.config_dir else []
    return submit.main(words if arguments.arguments is None else [*words, "--", *arguments.arguments])


def overrides(script: str, given: Sequence[str], *, module: bool = False) -> list[str]:
    """Returns the overrides of a run of this script: the script, its name, then those that were given. Pure.

    Raises:
        ConfigError: a word in `given` is no override.
    """
    # Lazily: neither --help nor completion needs it
    from launcher.config.hydra_text import key_of, quoted

    if "=" in script:
        raise ConfigError(f"name the script before its KEY=VALUE {script!r}: {USAGE}")
    for word in given:
        if "=" not in word and not word.startswith("~"):
            raise ConfigError(f"{word!r} is not KEY=VALUE{SCRIPT_ARGUMENTS.format(script)}: {USAGE}")
    defaults = {
        "name": quoted(name_of(script, module=module)),
        "workload": "program",
        f"workload.{'module' if module else 'script'}": quoted(script),
    }
    given_keys = {key_of(word) for word in given}
    return [*(f"{key}={value}" for key, value in defaults.items() if key not in given_keys), *given]


def name_of(script: str, *, module: bool = False) -> str:
    """Returns the name of a run of this script or module: `train` for dir/train.py and for pkg.train. Pure."""
    # Lazily: neither --help nor completion needs it
    from launcher.spec.plan import LONGEST_NAME

    base = script.rpartition("." if module else "/")[2]
    stem = base if module else base.rpartition(".")[0] or base
    return re.sub(r"[^A-Za-z0-9_.+-]", "_", stem).lstrip("-+.")[:LONGEST_NAME] or "program"
