"""`python -m launcher KEY=VALUE ...`: composes the config with Hydra, plans, checks, and submits or shows."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.cli import hydra_setup
from launcher.config import registration
from launcher.config.hydra_text import element
from launcher.config.schema import MISSING
from launcher.errors import BAD_INPUT, ConfigError, LauncherError, near
from launcher.paths import resource
from launcher.runs.sweep_directory import key_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from omegaconf import DictConfig

    from launcher.config.schema import Config
    from launcher.runs.output import Stream
    from launcher.submission.submit import Prepared, Submitted

FULL_ERROR = "HYDRA_FULL_ERROR"
FOR_HYDRA = re.compile(r"-|[+~]*hydra[./=]")  # flags and Hydra's own settings among the arguments
DONE_BY_HYDRA = ("mode", "callbacks", "verbose", "output_subdir", "job.chdir", "job.env_set", "job_logging.root")


def main(arguments: list[str]) -> int:
    """Submits what the arguments describe; flags and settings of Hydra's own go through its command line."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    from launcher.cli import confirm, override_errors
    from launcher.config import profile_errors

    hydra_setup.register()
    arguments = opened(confirm.without_yes(with_arguments(arguments)))
    override_errors.require_names(arguments)
    try:
        if any(FOR_HYDRA.match(argument) for argument in arguments) or (config := compose_run(arguments)) is None:
            return _hydra_main(arguments)
        return _run(config)
    except (HydraException, OmegaConfBaseException) as error:
        if os.environ.get(FULL_ERROR) == "1":
            raise
        print(f"launcher: {override_errors.explain(error, arguments)}", file=sys.stderr)
        return BAD_INPUT
    except YAMLError as error:
        raise ConfigError(profile_errors.in_yaml(error)) from None


def opened(arguments: list[str]) -> list[str]:
    """The arguments of a function or a program are its own: new keys, which Hydra wants a plus in front of. Pure."""
    own = tuple(f"{key}." for key in registration.OWN_ARGUMENTS)
    return [f"++{word}" if word.startswith(own) else word for word in arguments]


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


def compose_run(arguments: list[str]) -> DictConfig | None:
    """The config of one run, or None when the user's own files have set something that only hydra.main does.

    hydra.main composes every config twice, the first time only to see whether it is a sweep.
    """
    from hydra import compose, initialize_config_dir
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf, open_dict

    with initialize_config_dir(str(resource("conf")), version_base="1.3"):
        config = compose("config", arguments, return_hydra_config=True)
    if any(OmegaConf.select(config.hydra, key) for key in DONE_BY_HYDRA):
        return None
    HydraConfig.instance().set_config(config)  # what ${hydra:...} refers to
    with open_dict(config):
        del config["hydra"]
    return config


def config_of(overrides: list[str]) -> Config:
    """The typed config of some overrides, for commands that submit nothing.

    Raises:
        ConfigError: it cannot be composed.
    """
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    from launcher.cli import override_errors
    from launcher.config import profile_errors

    hydra_setup.register()
    try:
        composed = compose_run(overrides)
        assert composed is not None  # only settings of Hydra's own need more, and there are none
        return typed(composed)
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(override_errors.explain(error, overrides)) from None
    except YAMLError as error:  # it names the file and the line
        raise ConfigError(profile_errors.in_yaml(error)) from None


def _hydra_main(arguments: list[str]) -> int:
    """The same through Hydra's own command line, so that all its flags work."""
    import hydra

    from launcher.cli import multirun
    from launcher.cli.text import program

    multirun.command = list(arguments)
    codes = multirun.codes = [0]
    problems: list[LauncherError] = []

    @hydra.main(version_base="1.3", config_path=str(resource("conf")), config_name="config")
    def run(config: DictConfig) -> None:
        try:
            codes.append(_run(config))
        except LauncherError as error:  # past Hydra, which would add a line of its own
            problems.append(error)

    _require_known_options(arguments)
    # Hydra's parser wants the overrides in one piece.
    arguments = sorted(arguments, key=lambda word: not word.startswith("-") and ("=" in word or word.startswith("~")))
    sys.argv = [program(), *arguments]
    wanted = os.environ.get(FULL_ERROR)
    os.environ[FULL_ERROR] = "1"  # makes Hydra raise, so that the words are ours
    try:
        run()
    finally:
        os.environ.pop(FULL_ERROR) if wanted is None else os.environ.update({FULL_ERROR: wanted})
    if problems:
        raise problems[0]
    return max(codes)


def _require_known_options(arguments: list[str]) -> None:
    """
    Raises:
        ConfigError: one of the arguments is an option that Hydra does not have.
    """
    from hydra._internal.utils import get_args_parser

    known = list(get_args_parser()._option_string_actions)
    for word in arguments:
        option = word.partition("=")[0]
        if option.startswith("-") and option not in known:
            key = option.lstrip("-").replace("-", "_")
            meant = f" Keys have no dashes: {key}=VALUE" if key in registration.all_keys() else near(option, known)
            raise ConfigError(f"there is no option {option!r}.{meant}")


def _run(config: DictConfig) -> int:
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf

    from launcher.submission.submit import prepare

    wanted = typed(config)
    prepared = prepare(wanted)
    if prepared.plan.scheduler != "local" or wanted.dry_run:
        for note in prepared.notes:
            print(f"note: {note}", file=sys.stderr)
    if wanted.dry_run:
        return show(prepared)
    from launcher.submission.submit import submit

    ask(prepared, wanted.confirm_above)
    resolved: Any = OmegaConf.to_container(config, resolve=True, enum_to_str=True)
    overrides = HydraConfig.get().overrides.task
    return conclude(prepared, lambda: submit(prepared, resolved, overrides), wanted.wait)


def typed(config: DictConfig) -> Config:
    """The composed config as the dataclasses of its schema.

    Raises:
        ConfigError: no workload was chosen, there is a key that the schema does not know, or the value of a secret
            stands in a key that a run's record has.
    """
    from omegaconf import OmegaConf

    from launcher import redaction
    from launcher.cli.override_errors import no_workload
    from launcher.environment import secrets

    if OmegaConf.is_missing(config, "workload"):
        raise ConfigError(no_workload())
    _refuse_unknown(config)
    if OmegaConf.is_missing(config.cluster, "scheduler"):
        named = "" if OmegaConf.is_missing(config.cluster, "name") else f" of cluster={config.cluster.name}"
        raise ConfigError(
            f"the profile{named} names no scheduler: begin its file with `defaults: [slurm, _self_]`, or pbs"
        )
    with registration.interpolated() as variables:
        result: Config = OmegaConf.to_object(config)  # type: ignore[assignment]
    secrets.require_not_interpolated(variables, redaction.patterns(result.env.secrets))
    return result


def ask(prepared: Prepared, above: float | None, *, again: bool = False) -> None:
    """Tells what a scheduler is about to be asked for, and asks the user where it is much.

    Args:
        prepared: the run.
        above: its `confirm_above`.
        again: it has had a job before, and gets another one.

    Raises:
        Declined: the user does not want it.
    """
    from launcher.cli.confirm import tell_and_ask
    from launcher.monitoring.live import read
    from launcher.runs.directory import Run
    from launcher.spec import cost

    plan, run = prepared.plan, Run(Path(prepared.plan.run_dir))
    if plan.queued and (again or not run.recorded() or read(run).job_id is None):  # else its job is there already
        tell_and_ask(cost.lines(plan), cost.of_plan(plan), above)


def conclude(
    prepared: Prepared, hand_over: Callable[[], Submitted], wait: bool | None, printed: Stream | None = None
) -> int:
    """Submits, tells what was submitted, and stays with it to its end where that is wanted.

    Args:
        prepared: the run.
        hand_over: submits it.
        wait: whether to stay; None: with a run of this machine.
        printed: what it has printed before; None: nothing.
    """
    from launcher.runs.directory import Run

    if not prepared.plan.queued and wait is not False:  # it is this terminal's from its first moment
        from launcher.cli import follow

        run = Run(Path(prepared.plan.run_dir))
        return follow.to_the_end(run, foreground=True, printed=printed, begin=hand_over)
    submitted = hand_over()
    _tell(prepared, submitted, waits=bool(wait))
    if not wait:
        return 0
    from launcher.cli import follow

    return follow.to_the_end(submitted.run, foreground=False, printed=printed)


def _refuse_unknown(config: DictConfig, prefix: str = "") -> None:
    """`+key=value` gets past the schema; a misspelt key with a plus in front must not."""
    import dataclasses

    from omegaconf import DictConfig, OmegaConf

    kind = OmegaConf.get_type(config)
    if kind is None or not dataclasses.is_dataclass(kind):
        return
    known = {field.name for field in dataclasses.fields(kind)}
    for key in config:
        if key not in known:
            raise ConfigError(
                f"there is no key {prefix + str(key)!r}.{near(prefix + str(key), registration.all_keys())}"
            )
        if not OmegaConf.is_missing(config, key) and isinstance(child := config._get_node(key), DictConfig):
            _refuse_unknown(child, f"{prefix}{key}.")


def show(prepared: Prepared) -> int:
    """The plan as a table, then the script, to the letter."""
    from launcher.cli.text import plan_table
    from launcher.schedulers import job_script

    print(plan_table(prepared.plan))
    print(job_script.script(prepared.plan, token=prepared.token), end="")
    return 0


def _tell(prepared: Prepared, submitted: Submitted, *, waits: bool) -> None:
    """What was submitted, and what to type next if nobody waits for it here."""
    from launcher.cli.text import program

    run = submitted.run
    print(f"run        {run.id}")
    print(
        f"job        {submitted.job_id} on {prepared.plan.cluster}"
        + (" (it was there already)" if submitted.again else "")
    )
    print(f"directory  {run.path}", flush=True)
    for number, command in enumerate(() if waits else (f"status {run.id}", f"logs {run.id} -f", f"cancel {run.id}")):
        print(f"{'' if number else 'next':<11}{program()} {command}")
