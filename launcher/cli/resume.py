"""`resume`: another attempt of a run that is over, at the same size or at another one."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from launcher.cli.options import RUN, add_runs_dir, find
from launcher.config.hydra_text import quoted
from launcher.errors import ConfigError, RunError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from launcher.runs.directory import Run

FIXED = ("run_id", "runs_dir", "workload", "name")  # what makes it this run


def configure(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="RUN", help=RUN)
    parser.add_argument("overrides", metavar="KEY=VALUE", nargs="*", help="what is to be different (nodes=4, time=2h)")
    parser.add_argument("--new-snapshot", action="store_true", help="with env.snapshot: of the code as it is now")
    parser.add_argument("--yes", action="store_true", help="submit without a question (confirm_above)")
    add_runs_dir(parser)


def run(arguments: Namespace) -> int:
    """Start RUN again where its newest checkpoint left it. Everything stays as it was when it was submitted, but for
    the KEY=VALUEs. It must be over: stopped, failed, cancelled or lost."""
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from launcher.cli import confirm, hydra_setup, override_errors, submit
    from launcher.files.ownership import require_own
    from launcher.monitoring.live import Live
    from launcher.runs.output import Stream
    from launcher.submission.submit import prepare, require_over, resume

    found = find(arguments.name, arguments.runs_dir)
    require_own(found.path, "resume it")
    record = found.record()
    if "overrides" not in record:
        raise RunError(f"{found.path}/record.json does not tell how it was submitted: another version wrote it")
    for word in arguments.overrides:
        key = _key(word)
        if "=" not in word or submit.FOR_HYDRA.match(word):
            raise ConfigError(f"{word!r} is not KEY=VALUE")
        if key in FIXED:
            raise ConfigError(f"{word}: {key} is what makes it this run; start another one instead")
    overrides = merged(record["overrides"], submit.opened(arguments.overrides))
    _go_to(found)
    hydra_setup.register()
    try:
        config = submit.compose_run([*overrides, *_place(found)])
        assert config is not None  # only settings of Hydra's own need more, and there are none
        typed: Any = submit.typed(config)
        prepared = prepare(typed, run_id=found.id, new_snapshot=arguments.new_snapshot)
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(override_errors.explain(error, overrides)) from None
    if typed.dry_run:
        return submit.show(prepared)
    require_over(found, Live())  # before a question; `resume` looks again
    confirm.skip = arguments.yes
    submit.ask(prepared, typed.confirm_above, again=True)
    resolved: Any = OmegaConf.to_container(config, resolve=True, enum_to_str=True)
    printed = Stream(found)
    printed.skip()  # what earlier attempts have printed
    return submit.conclude(prepared, lambda: resume(found, prepared, resolved, overrides), typed.wait, printed)


def secrets_again(run: Run) -> dict[str, str]:
    """The secrets that a run's config sets: of the profile, or of a variable that its overrides name. Those that
    cannot be had any more are left out."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    from launcher.cli import hydra_setup, submit

    hydra_setup.register()
    found: dict[str, str] = {}
    with contextlib.suppress(HydraException, OmegaConfBaseException, YAMLError):
        config = submit.compose_run([*run.record().get("overrides", []), *_place(run)])
        for name in run.plan().secrets:
            with contextlib.suppress(OmegaConfBaseException):  # ${oc.env:NAME}, which is not there
                if config is not None and (value := config.cluster.environment.get(name)) is not None:
                    found[name] = str(value)
    return found


def _place(run: Run) -> list[str]:
    """The overrides by which a run is found; the id of a sweep's point is none that a config may have."""
    from launcher.runs.sweep_directory import sweep_of

    sweep = sweep_of(run)
    runs_dir = f"runs_dir={quoted(str((sweep or run).path.parent))}"
    return [runs_dir] if sweep else [f"run_id={run.id}", runs_dir]


def _go_to(run: Run) -> None:
    """Where the run was submitted: its job starts in that folder, and relative paths in its overrides begin there."""
    import os

    plan = run.plan()
    gone = plan.code is not None and not os.path.isdir(plan.submitted_in)  # the snapshot has what the job needs
    folder = plan.workdir if gone else plan.submitted_in
    try:
        os.chdir(folder)
    except OSError as error:
        raise RunError(
            f"{run.id} was submitted in {folder}, which cannot be entered ({error.strerror}): "
            "its job starts there, so make that folder again"
        ) from None


def merged(before: list[str], now: list[str]) -> list[str]:
    """The overrides of a run with others on top; of those for one key only the last counts. Pure."""
    passing = ("run_id", "runs_dir", "wait", "dry_run", "confirm_above")  # of one command, not of the run
    added = {_key(word) for word in before if word.startswith("+")}  # keys that the config itself does not have
    now = [f"+{word}" if _key(word) in added and not word.startswith(("+", "~")) else word for word in now]
    replaced = {*passing, *map(_key, now)}
    return [word for word in before if _key(word) not in replaced] + now


def _key(word: str) -> str:
    return word.partition("=")[0].lstrip("+~")
