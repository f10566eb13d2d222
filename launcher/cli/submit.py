"""`python -m launcher KEY=VALUE ...`: composes the config, makes the plan, and submits it or shows it (dry_run).

`run`: does the same with the user's own script as workload=program; the run is named after it. `resume`: with another
attempt of a run that is over, at the same size or at another one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import hydra
from hydra.core.config_loader import ConfigLoader
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from launcher.cli import ssh_forward
from launcher.cli.commands import remote_profiles
from launcher.cli.help import RUN_USAGE
from launcher.cli.output import confirm, plan_table, print_commands, print_under, program
from launcher.config import compose
from launcher.config.compose import Composed
from launcher.config.errors import in_our_words, require_names, require_options
from launcher.config.overrides import element, key_of, opened, quoted
from launcher.config.schema import MISSING, Program
from launcher.errors import ConfigError, LauncherError
from launcher.paths import resource
from launcher.plan import limits
from launcher.plan.build import name_of
from launcher.plan.plan import JobPlan, member_plan, race_token
from launcher.runs.directory import Run
from launcher.runs.lookup import find
from launcher.schedulers import registry

if TYPE_CHECKING:
    from launcher.cli.multirun import Multirun
    from launcher.runs.output_files import Stream
    from launcher.submission.prepare import Prepared
    from launcher.submission.resume import Ready
    from launcher.submission.submit import SubmittedRun

FULL_ERROR = "HYDRA_FULL_ERROR"
ESTIMATE_TIMEOUT = 2.0  # seconds for one query about the start of a run that was submitted
YES = "--yes"
SCRIPT_ARGUMENTS = "; arguments of {} follow `--`"


@dataclass
class CommandLine:
    words: tuple[str, ...]  # the arguments, without --yes
    yes: bool  # whether to submit without confirmation (--yes)
    codes: list[int] = field(default_factory=lambda: [0])  # exit codes of its submissions, of which the highest counts


def main(arguments: list[str]) -> int:
    """Submits a run or sweep; Hydra's own command line handles flags (-m, --cfg, ...) and settings `hydra.*`."""
    if remote_profiles() and (code := ssh_forward.submit(arguments)) is not None:
        return code
    from launcher.submission.resume import register

    register()
    command = command_line(arguments)
    require_names(command.words)
    _require_grid(command.words)
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
    """Returns the arguments in the form that Hydra expects, with --yes taken out; raises ConfigError."""
    words = with_program_arguments(arguments)
    return CommandLine(tuple(opened(word for word in words if word != YES)), YES in words)


def with_program_arguments(words: list[str]) -> list[str]:
    """Replaces `--` and the words after it by workload.args=[...], each word as a string."""
    if "--" not in words:
        return words
    at = words.index("--")
    before, given = words[:at], words[at + 1 :]
    if twice := next((word for word in before if key_of(word) == "workload.args"), None):
        raise ConfigError(f"{twice} and arguments after `--` exclude each other: use one of them")
    if MISSING in given:
        raise ConfigError(f"{MISSING} cannot be an argument: in a config it stands for a value that is missing")
    return [*before, f"workload.args={element(given)}"]


def _require_grid(words: Sequence[str]) -> None:
    wrong = [word for word in words if key_of(word) == "hydra/sweeper" and word.split("=")[-1] != "launcher"]
    if wrong:
        from launcher.cli.multirun import SEARCHES

        raise ConfigError(f"{wrong[0]} is not used here. {SEARCHES}")


class HydraTask:
    """The task function of Hydra, with the command line, which Hydra does not pass on.

    Hydra calls it for a single run, and passes it to the launcher's plug-in for a multirun.
    """

    def __init__(self, command: CommandLine) -> None:
        self.command = command
        self.problem: LauncherError | None = None

    def __call__(self, config: DictConfig) -> None:
        try:
            overrides = HydraConfig.get().overrides.task
            self.command.codes.append(_run(compose.finished(config), overrides, yes=self.command.yes))
        except LauncherError as error:  # raised by _hydra_main: Hydra would add a line to it
            self.problem = error

    def multirun(self, loader: ConfigLoader, config: DictConfig) -> Multirun:
        """config: the config that all points have in common, with Hydra's settings."""
        from launcher.cli.multirun import Multirun

        return Multirun(self.command, loader, config)


def _hydra_main(command: CommandLine) -> int:
    # Submits through Hydra's own command line, so that all its flags work
    # Hydra's parser needs all overrides next to each other, and not right behind --info, whose value is optional.
    words = sorted(command.words, key=lambda word: word.startswith("-") or not ("=" in word or word.startswith("~")))
    if require_options(words).info:
        # Hydra shows that with a logger, which would print a traceback for each line that `| head` refuses
        logging.Handler.handleError = _raise_again  # type: ignore[assignment,method-assign]
    task = HydraTask(command)
    typed = sys.argv
    sys.argv = [program(), *words]
    wanted = os.environ.get(FULL_ERROR)
    os.environ[FULL_ERROR] = "1"  # makes Hydra raise its errors, which we then explain
    try:
        hydra.main(version_base="1.3", config_path=str(resource("conf")), config_name="config")(task)()
    finally:
        os.environ.pop(FULL_ERROR) if wanted is None else os.environ.update({FULL_ERROR: wanted})
        sys.argv = typed
    if task.problem:
        raise task.problem
    return max(command.codes)


def _raise_again(*_: object) -> None:
    raise


def _run(composed: Composed, overrides: Sequence[str], *, yes: bool) -> int:
    from launcher.submission.resume import ready_run

    wanted = composed.config
    ready = ready_run(composed, overrides)
    prepared = ready.prepared
    here = registry.scheduler(prepared.plan.cluster.scheduler).on_this_machine
    for note in limits.crowded(prepared.plan) if here and not wanted.dry_run else prepared.notes:
        print(f"note: {note}", file=sys.stderr)
    if wanted.dry_run:
        return show(prepared)
    ask(ready, yes=yes)
    return conclude(ready)


def run(arguments: Namespace) -> int:
    words = script_overrides(arguments.script, arguments.overrides, module=arguments.module)
    words += [f"--{name}" for name in ("multirun", "yes", "resolve") if getattr(arguments, name)]
    words += [f"--cfg={arguments.cfg}"] if arguments.cfg else []
    words += [f"--config-dir={arguments.config_dir}"] if arguments.config_dir else []
    return main(words if arguments.arguments is None else [*words, "--", *arguments.arguments])


def script_overrides(script: str, given: Sequence[str], *, module: bool = False) -> list[str]:
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


def resume(arguments: Namespace) -> int:
    from launcher.runs.output_files import Stream
    from launcher.submission.resume import ready_attempt, require_over

    found = find(arguments.name, arguments.runs_dir)
    changes = arguments.overrides
    if arguments.arguments is not None:
        if found.plan().workload.kind != Program.__name__:
            raise ConfigError(f"{found.id} is no run of a script of yours, so it has no arguments (--): use KEY=VALUE")
        changes = with_program_arguments([*changes, "--", *arguments.arguments])
    ready = ready_attempt(found, changes, new_snapshot=arguments.new_snapshot)
    if ready.composed.config.dry_run:
        return show(ready.prepared)
    require_over(found)  # before the user is asked to confirm; `Ready.submit` checks once more
    ask(ready, yes=arguments.yes)
    output = Stream(found)
    output.skip()  # the output of earlier attempts
    return conclude(ready, output)


def ask(ready: Ready, *, yes: bool) -> None:
    """Prints what a submission requests, and asks for confirmation (confirm_above), unless it has a job already."""
    from launcher.runs.history import read_history

    plan, config = ready.prepared.plan, ready.composed.config
    if not (plan.queued and config.submit):
        return
    run = Run(Path(plan.run_dir))
    if ready.run is not None or not run.recorded() or read_history(run).job_id is None:
        confirm([plan], config.confirm_above, yes=yes)


def conclude(ready: Ready, output: Stream | None = None) -> int:
    """Submits a run and follows it as `wait` says, on this machine by default; output: what is printed; None: all."""
    from launcher.cli.wait import follow_to_end
    from launcher.submission.submit import print_notice

    prepared, wait = ready.prepared, ready.composed.config.wait
    if not prepared.plan.queued and wait is not False:  # the run belongs to this terminal from its start
        run = Run(Path(prepared.plan.run_dir))

        def start() -> None:
            if ready.submit().again:
                print(
                    f"note: {run.id} was submitted before, and is not started again: this is what it printed. "
                    f"`{program()} resume {run.id}` continues it; with another run_id it begins anew", file=sys.stderr,
                    flush=True,
                )  # fmt: skip
            elif sys.stderr is not None and sys.stderr.isatty():
                print_notice(f"{run.id} starts: torch takes some seconds to load")

        return follow_to_end(run, foreground=True, stream=output, start=start)
    submitted = ready.submit()
    if submitted.command:
        print_commands([submitted.command], f"status {submitted.run.id}")
        return 0
    _print_submitted(prepared, submitted, waits=bool(wait))
    if not wait:
        if prepared.plan.queued and not prepared.plan.race and sys.stdin is not None and sys.stdin.isatty():
            _print_start(prepared.plan, submitted)
        return 0
    return follow_to_end(submitted.run, foreground=False, stream=output)


def show(prepared: Prepared) -> int:
    """Prints the plan as a table, then the job script exactly as it would be submitted; returns 0."""
    from launcher.submission import render

    print(plan_table(prepared.plan))
    print(render.script(prepared.plan, token=prepared.token), end="")
    for number in range(1, len(prepared.plan.race)):
        print(f"\n# job {number + 1} of cluster.race")
        print(render.script(member_plan(prepared.plan, number), token=race_token(prepared.token, number)), end="")
    return 0


def _print_submitted(prepared: Prepared, submitted: SubmittedRun, *, waits: bool) -> None:
    run = submitted.run
    print(f"run        {run.id}")
    before = " (submitted before)" if submitted.again else ""
    print(f"job        {submitted.job_id} on {prepared.plan.cluster.name}{before}")
    print(f"directory  {run.path}", flush=True)
    if not waits:
        following = (f"status {run.id}", f"logs {run.id} -f", f"cancel {run.id}")
        print_under("next", (f"{program()} {command}" for command in following))


def _print_start(plan: JobPlan, submitted: SubmittedRun) -> None:
    # For a person only: the queries take a moment, and a script has no use for them. On stderr, as a remark
    from launcher.cli.why import estimate, start_lines

    with contextlib.suppress(Exception):  # it is submitted, whatever the scheduler answers now; `why` says more
        found = estimate(submitted.run, plan, submitted.job_id, program(), ESTIMATE_TIMEOUT)
        for line in start_lines(found, time.time()) if found else ():
            print(line, file=sys.stderr, flush=True)
