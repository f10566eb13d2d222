"""`python -m launcher KEY=VALUE ...`: composes the config with Hydra, plans, checks, and submits or shows."""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING, Any

from launcher.errors import BAD_INPUT, ConfigError, LauncherError, near
from launcher.paths import resource

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from launcher.config import Config
    from launcher.submit import Prepared, Submitted

FULL_ERROR = "HYDRA_FULL_ERROR"


def main(arguments: list[str]) -> int:
    """Runs the arguments through Hydra's own command line, so that all its flags keep working."""
    import hydra
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    from launcher.cli import schema, text

    schema.register()
    codes = [0]
    problems: list[LauncherError] = []

    @hydra.main(version_base="1.3", config_path=str(resource("conf")), config_name="config")
    def run(config: DictConfig) -> None:
        try:
            codes.append(_run(config))
        except LauncherError as error:  # past Hydra, which would add a line of its own
            problems.append(error)

    wanted = os.environ.get(FULL_ERROR)
    os.environ[FULL_ERROR] = "1"  # makes Hydra raise, so that the words are ours
    sys.argv = [text.program(), *arguments]
    try:
        run()
    except (HydraException, OmegaConfBaseException) as error:
        if wanted == "1":
            raise
        print(f"launcher: {explain(error, arguments)}", file=sys.stderr)
        return BAD_INPUT
    finally:
        os.environ.pop(FULL_ERROR) if wanted is None else os.environ.update({FULL_ERROR: wanted})
    if problems:
        raise problems[0]
    return max(codes)


def explain(error: Exception, arguments: list[str]) -> str:
    """A composition error in our words: what was wrong, and the near matches."""
    from hydra.errors import MissingConfigException

    from launcher.cli import schema

    text = str(error)
    if isinstance(error, MissingConfigException) and error.options:
        group, _, choice = (error.missing_cfg_file or "").rpartition("/")
        options = [option for option in error.options if option != "user"]
        return f"there is no {group}={choice}.{near(choice, options)} Known: {', '.join(options)}"
    if match := re.search(r"Could not (?:override|append to config) '([^'=]+)", text):
        key = match[1].lstrip("+")
        return f"there is no key {key!r}.{near(key, schema.all_keys())} `python -m launcher --help` lists all"
    if match := re.search(r"missing EQUAL at '<EOF>'", text):
        word = next((word for word in arguments if "=" not in word and not word.startswith("-")), "")
        return f"{word!r} is neither a command nor KEY=VALUE"
    cause = str(error.__cause__ or error)
    first, *rest = [line.strip() for line in cause.splitlines() if line.strip()]
    key = next((line.removeprefix("full_key: ") for line in rest if line.startswith("full_key: ")), "")
    value = next((word for word in arguments if key and word.startswith(f"{key}=")), key)
    return f"{value}: {first}" if value else first


def _run(config: DictConfig) -> int:
    from omegaconf import OmegaConf

    from launcher.submit import prepare

    if OmegaConf.is_missing(config, "workload"):
        names = sorted(path.stem for path in (resource("conf") / "workload").glob("*.yaml"))
        raise ConfigError(f"no workload: add workload=NAME, with one of {', '.join(names)}")
    _refuse_unknown(config)
    typed: Config = OmegaConf.to_object(config)  # type: ignore[assignment]
    prepared = prepare(typed)
    if prepared.plan.scheduler != "local" or typed.dry_run:
        for note in prepared.notes:
            print(f"note: {note}", file=sys.stderr)
    if typed.dry_run:
        return _show(prepared)
    from launcher.submit import submit

    resolved: Any = OmegaConf.to_container(config, resolve=True, enum_to_str=True)
    submitted = submit(prepared, resolved)
    wait = typed.wait if typed.wait is not None else prepared.plan.scheduler != "slurm"
    if not wait:
        _tell(prepared, submitted)
        return 0
    from launcher.cli import follow

    return follow.to_the_end(submitted.run, foreground=prepared.plan.scheduler != "slurm")


def _refuse_unknown(config: DictConfig, prefix: str = "") -> None:
    """`+key=value` gets past the schema; a misspelt key with a plus in front must not."""
    import dataclasses

    from omegaconf import DictConfig, OmegaConf

    from launcher.cli import schema

    kind = OmegaConf.get_type(config)
    if kind is None or not dataclasses.is_dataclass(kind):
        return
    known = {field.name for field in dataclasses.fields(kind)}
    for key in config:
        if key not in known:
            raise ConfigError(f"there is no key {prefix + str(key)!r}.{near(prefix + str(key), schema.all_keys())}")
        if not OmegaConf.is_missing(config, key) and isinstance(child := config._get_node(key), DictConfig):
            _refuse_unknown(child, f"{prefix}{key}.")


def _show(prepared: Prepared) -> int:
    """The plan as a table, then the script, to the letter."""
    from launcher import render
    from launcher.cli.text import plan_table

    print(plan_table(prepared.plan))
    print(render.script(prepared.plan, token=prepared.token), end="")
    return 0


def _tell(prepared: Prepared, submitted: Submitted) -> None:
    """What was submitted and what to type next."""
    from launcher.cli.text import program

    run = submitted.run
    print(f"run        {run.id}")
    print(f"job        {submitted.job_id} on {prepared.plan.cluster}" + (" (it was there already)" if submitted.again else ""))
    print(f"directory  {run.path}")
    for number, command in enumerate((f"status {run.id}", f"logs {run.id} -f", f"cancel {run.id}")):
        print(f"{'' if number else 'next':<11}{program()} {command}")
