"""`python -m launcher KEY=VALUE ...`: composes the config with Hydra, plans, checks, and submits or shows."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig

from launcher.cli.confirm import YES, tell_and_ask
from launcher.cli.multirun import CommandLine, Multirun
from launcher.cli.text import program
from launcher.config import compose
from launcher.config.hydra_errors import in_our_words, require_names
from launcher.config.hydra_text import element, key_of
from launcher.config.keys import all_keys, opened
from launcher.config.schema import MISSING
from launcher.errors import ConfigError, LauncherError, near
from launcher.paths import resource
from launcher.runs.directory import Run
from launcher.schedulers import registry
from launcher.spec import cost
from launcher.submission import configs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hydra.core.config_loader import ConfigLoader
    from omegaconf import DictConfig

    from launcher.config.compose import Composed
    from launcher.runs.output import Stream
    from launcher.submission.from_overrides import Ready
    from launcher.submission.submit import Prepared, Submitted

FULL_ERROR = "HYDRA_FULL_ERROR"


def main(arguments: list[str]) -> int:
    """Submits what the arguments describe; flags and settings of Hydra's own go through its command line."""
    configs.register()
    command = command_line(arguments)
    require_names(command.words)
    full = os.environ.get(FULL_ERROR) == "1"
    with contextlib.nullcontext() if full else in_our_words(command.words):
        if any(compose.FOR_HYDRA.match(word) for word in command.words):
            return _hydra_main(command)
        config, only_main = compose.by_hydra(command.words)
        if only_main:
            return _hydra_main(command)
        composed = compose.finished(config)
    return _run(composed, command.words, yes=command.yes)


def command_line(arguments: list[str]) -> CommandLine:
    """The arguments as Hydra reads them. Pure.

    Raises:
        ConfigError: as from `with_arguments`.
    """
    words = with_arguments(arguments)
    return CommandLine(tuple(opened(word for word in words if word != YES)), YES in words)


def with_arguments(words: list[str]) -> list[str]:
    """What stands behind `--` as the program's arguments, each of them a text as it was typed. Pure.

    Raises:
        ConfigError: there are arguments in front of it as well, or one cannot be written into a config.
    """
    if "--" not in words:
        return words
    at = words.index("--")
    before, given = words[:at], words[at + 1 :]
    if twice := next((word for word in before if key_of(word) == "workload.args"), None):
        raise ConfigError(f"{twice} and arguments behind `--` exclude each other: use one of them")
    if MISSING in given:
        raise ConfigError(f"{MISSING} cannot be an argument: in a config it stands for a value that is missing")
    return [*before, f"workload.args={element(given)}"]


class Task:
    """What Hydra calls with the config of a single run, and hands to our plug-in for a multirun.

    It carries the command line, for which Hydra has no place.
    """

    def __init__(self, command: CommandLine) -> None:
        self.command = command
        self.problem: LauncherError | None = None

    def __call__(self, config: DictConfig) -> None:
        try:
            overrides = HydraConfig.get().overrides.task
            self.command.codes.append(_run(compose.finished(config), overrides, yes=self.command.yes))
        except LauncherError as error:  # past Hydra, which would add a line of its own
            self.problem = error

    def multirun(self, loader: ConfigLoader, config: DictConfig) -> Multirun:
        """What takes the points; see there."""
        return Multirun(self.command, loader, config)


def _hydra_main(command: CommandLine) -> int:
    """The same through Hydra's own command line, so that all its flags work."""
    _require_known_options(command.words)
    task = Task(command)
    typed = sys.argv
    # Hydra's parser wants the overrides in one piece.
    words = sorted(command.words, key=lambda word: not word.startswith("-") and ("=" in word or word.startswith("~")))
    sys.argv = [program(), *words]
    wanted = os.environ.get(FULL_ERROR)
    os.environ[FULL_ERROR] = "1"  # makes Hydra raise, so that the words are ours
    try:
        hydra.main(version_base="1.3", config_path=str(resource("conf")), config_name="config")(task)()
    finally:
        os.environ.pop(FULL_ERROR) if wanted is None else os.environ.update({FULL_ERROR: wanted})
        sys.argv = typed
    if task.problem:
        raise task.problem
    return max(command.codes)


def _require_known_options(arguments: Sequence[str]) -> None:
    """
    Raises:
        ConfigError: one of the arguments is an option that Hydra does not have.
    """
    known = list(get_args_parser()._option_string_actions)
    for word in arguments:
        option = word.partition("=")[0]
        if option.startswith("-") and option not in known:
            key = option.lstrip("-").replace("-", "_")
            meant = f" Keys have no dashes: {key}=VALUE" if key in all_keys() else near(option, known)
            raise ConfigError(f"there is no option {option!r}.{meant}")


def _run(composed: Composed, overrides: Sequence[str], *, yes: bool) -> int:
    from launcher.submission import from_overrides  # 60 ms, not for --cfg nor for a key that there is not

    wanted = composed.config
    ready = from_overrides.new(composed, overrides)
    prepared = ready.prepared
    if wanted.dry_run or not registry.scheduler(prepared.plan.scheduler).on_this_machine:
        for note in prepared.notes:
            print(f"note: {note}", file=sys.stderr)
    if wanted.dry_run:
        return show(prepared)
    ask(ready, yes=yes)
    return conclude(ready)


def ask(ready: Ready, *, yes: bool) -> None:
    """Tells what a scheduler is about to be asked for, and asks the user where it is much.

    Args:
        ready: what would be submitted.
        yes: --yes was typed.

    Raises:
        Declined: the user does not want it.
    """
    from launcher.monitoring.live import read  # with `from_overrides`

    plan = ready.prepared.plan
    run = Run(Path(plan.run_dir))
    again = ready.run is not None  # it has had a job before, and gets another one
    if plan.queued and (again or not run.recorded() or read(run).job_id is None):  # else its job is there already
        tell_and_ask(cost.lines(plan), cost.of_plan(plan), ready.composed.config.confirm_above, yes=yes)


def conclude(ready: Ready, printed: Stream | None = None) -> int:
    """Submits, tells what was submitted, and stays with it to its end where that is wanted (`wait`).

    Args:
        ready: what is submitted.
        printed: what it has printed before; None: nothing.
    """
    from launcher.cli import follow

    prepared, wait = ready.prepared, ready.composed.config.wait
    if not prepared.plan.queued and wait is not False:  # it is this terminal's from its first moment
        run = Run(Path(prepared.plan.run_dir))
        return follow.to_the_end(run, foreground=True, printed=printed, begin=ready.submit)
    submitted = ready.submit()
    _tell(prepared, submitted, waits=bool(wait))
    if not wait:
        return 0
    return follow.to_the_end(submitted.run, foreground=False, printed=printed)


def show(prepared: Prepared) -> int:
    """The plan as a table, then the script, to the letter."""
    from launcher.cli.text import plan_table
    from launcher.schedulers import job_script

    print(plan_table(prepared.plan))
    print(job_script.script(prepared.plan, token=prepared.token), end="")
    return 0


def _tell(prepared: Prepared, submitted: Submitted, *, waits: bool) -> None:
    """What was submitted, and what to type next if nobody waits for it here."""
    run = submitted.run
    print(f"run        {run.id}")
    print(
        f"job        {submitted.job_id} on {prepared.plan.cluster}"
        + (" (it was there already)" if submitted.again else "")
    )
    print(f"directory  {run.path}", flush=True)
    for number, command in enumerate(() if waits else (f"status {run.id}", f"logs {run.id} -f", f"cancel {run.id}")):
        print(f"{'' if number else 'next':<11}{program()} {command}")
