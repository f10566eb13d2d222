"""`python -m launcher -m KEY=VALUE,VALUE ...`: what our plug-in for Hydra does with the points of a multirun."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from launcher.config.hydra_errors import in_our_words
from launcher.config.points import of_multirun
from launcher.errors import FAILED, INTERRUPTED, ConfigError, LauncherError, SubmissionError
from launcher.formatting import plural, ranges

if TYPE_CHECKING:
    from hydra.core.config_loader import ConfigLoader
    from hydra.core.utils import JobReturn
    from omegaconf import DictConfig

    from launcher.config.schema import Config
    from launcher.runs.sweep_directory import Sweep
    from launcher.sweeps.submit import PreparedSweep, SubmittedSweep, Wanted

GRIDS = ("PointSweeper", "BasicSweeper")  # sweepers that do not look at what comes of a point


@dataclass
class CommandLine:
    """What was typed, and what came of it.

    Attributes:
        words: the arguments, without --yes.
        yes: whether that was among them: to submit without a question.
        codes: the exit codes of what came of it so far.
    """

    words: tuple[str, ...]
    yes: bool
    codes: list[int] = field(default_factory=lambda: [0])


class Multirun:
    """Takes points, a batch at a time: submits them, and waits where somebody wants to know what comes of them."""

    def __init__(self, command: CommandLine, loader: ConfigLoader, config: DictConfig) -> None:
        """
        Args:
            command: what was typed; gets the exit codes.
            loader: composes configs.
            config: what the points have in common, Hydra's own settings included.
        """
        self._command = command
        self._compose = of_multirun(loader, config)
        self._id: str | None = None  # of the sweep that a search has begun
        self._search = None
        if not str(config.hydra.sweeper._target_).endswith(GRIDS):
            from launcher.cli.search import Search

            self._search = Search.of(config.hydra.sweeper)

    def __call__(self, batch: Sequence[Sequence[str]], first: int) -> list[JobReturn]:
        """Submits a batch.

        Returns:
            One JobReturn for each point. Its value is the objective (a list, for several) where a search wants it.

        Raises:
            LauncherError: nothing of the batch, or not all of it, was submitted; the text tells.
        """
        from launcher.sweeps.submit import prepare_sweep, submit_sweep

        wanted = [self._wanted(point, first + n, batch) for n, point in enumerate(batch)]
        prepared = prepare_sweep(wanted, self._command.words)
        config = next(iter(prepared.wanted.values())).config
        for note in prepared.notes if not first else ():
            print(f"note: {note}", file=sys.stderr)
        if config.dry_run:
            show(prepared)
            return self._returns(prepared)
        if not first:
            self._ask(prepared, config.confirm_above)
        submitted = submit_sweep(prepared)
        if self._search and submitted.left[0]:
            raise SubmissionError(
                f"the scheduler does not take as many jobs as the search has at once: {submitted.left[1]}\n"
                "Repeat the command with fewer: hydra.sweeper.n_jobs"
            )
        if not first:
            tell(prepared, submitted, self._search.trials if self._search else None)
        if submitted.left[0] and not first:
            self._command.codes.append(FAILED)
        wait = bool(submitted.local) if config.wait is None else config.wait
        if not (wait or self._search):
            return self._returns(prepared)
        from launcher.cli.sweep_follow import to_the_end

        code = to_the_end(submitted.sweep, points=set(prepared.asked), foreground=bool(submitted.local))
        if not self._search:
            self._command.codes.append(code)
        elif code == INTERRUPTED:
            raise KeyboardInterrupt
        elif submitted.sweep.cancelled():
            raise LauncherError(f"{submitted.sweep.id} was cancelled")
        return self._returns(prepared, submitted)

    def _ask(self, prepared: PreparedSweep, above: float | None) -> None:
        """Tells what points that have no job yet ask for, of a search all trials; see `confirm.tell_and_ask`."""
        from launcher.cli.confirm import tell_and_ask
        from launcher.monitoring.live import read
        from launcher.runs.sweep_directory import Sweep
        from launcher.spec import cost

        sweep = Sweep(prepared.path)
        there = prepared.before is not None
        new = [
            plan for index, plan in prepared.plans.items()
            if plan.queued and not (there and sweep.run(index).recorded() and read(sweep.run(index)).job_id is not None)
        ]  # fmt: skip
        if new:
            trials = self._search.trials if self._search else None
            total = cost.of_plans(new).times(trials / len(new) if trials else 1)
            tell_and_ask(cost.lines_of_all(new, trials), total, above, yes=self._command.yes)

    def sweep_of(self, overrides: Sequence[str]) -> tuple[Sweep, tuple[str, ...]]:
        """The sweep of a search, known from any one of its points; all points that are submitted later are in it.

        Returns:
            The sweep, and the overrides as they are written: without the values of secrets.

        Raises:
            ConfigError: such a point cannot be composed, or planned.
        """
        from launcher.runs.sweep_directory import Sweep
        from launcher.sweeps.submit import prepare_sweep

        prepared = prepare_sweep([self._wanted(overrides, 0, [overrides])], self._command.words)
        self._id = prepared.path.name
        return Sweep(prepared.path), prepared.wanted[prepared.asked[0]].overrides

    def _wanted(self, overrides: Sequence[str], number: int, batch: Sequence[Sequence[str]]) -> Wanted:
        from launcher.runs import sweep_directory
        from launcher.sweeps.submit import Wanted

        try:
            with in_our_words(overrides):
                composed = self._compose(overrides, number)
        except LauncherError as error:
            label = sweep_directory.label(overrides, sweep_directory.differing(batch))
            raise ConfigError(f"point {number}{f' ({label})' if label else ''}: {error}") from None
        return Wanted(tuple(overrides), self._settled(composed.config), composed.resolved)

    def _settled(self, config: Config) -> Config:
        return self._search.settle(config, self._command.words, self._id) if self._search else config

    def _returns(self, prepared: PreparedSweep, submitted: SubmittedSweep | None = None) -> list[JobReturn]:
        """What Hydra is told: that all is done, or, for a search, what came of each point."""
        from hydra.core.utils import JobReturn, JobStatus

        from launcher.monitoring.live import Live, look

        overrides = {index: list(prepared.wanted[index].overrides) for index in prepared.asked}
        if not (self._search and submitted):
            return [JobReturn(overrides[index], status=JobStatus.COMPLETED) for index in prepared.asked]
        from launcher.cli.search import returned

        self._id, live = submitted.sweep.id, Live()
        seen = {index: look(submitted.sweep.run(index), live) for index in overrides}
        return [returned(seen[index], overrides[index], prepared.manifest.objective) for index in prepared.asked]


def show(prepared: PreparedSweep) -> None:
    """For a dry run: each array, its points, and its script."""
    from launcher.runs import sweep_directory
    from launcher.runs.directory import token_of
    from launcher.schedulers import job_script
    from launcher.spec import cost
    from launcher.sweeps import grouping

    keys = sweep_directory.differing(prepared.manifest.points)
    queued = [len(members) for plan, members in prepared.groups if plan.queued]
    throttles, serial = iter(grouping.shares(prepared.parallelism, queued)), 0
    print(f"sweep      {prepared.path.name}: {plural(len(prepared.wanted), 'point')}")
    print(f"directory  {prepared.path}")
    if asking := [plan for plan in prepared.plans.values() if plan.queued]:
        for number, line in enumerate(cost.lines_of_all(asking)):
            print(f"{'' if number else 'asks for':<11}{line}")
    for plan, members in prepared.groups:
        most = next(throttles) if plan.queued else None
        print(f"\n# {plural(len(members), 'point')} on {plan.cluster}: {ranges(members)}")
        for index in members[:3]:
            print(f"#   {index}: {sweep_directory.label(prepared.wanted[index].overrides, keys)}")
        if len(members) > 3:
            print(f"#   ... {members[-1]}: {sweep_directory.label(prepared.wanted[members[-1]].overrides, keys)}")
        if len(members) == 1 or not plan.queued:
            alone = prepared.plans[members[0]]
            print(job_script.script(alone, token=token_of(alone.run_dir)), end="")
            continue
        token, serial = f"{token_of(str(prepared.path))}-{serial}", serial + 1
        array = f"0-{len(members) - 1}" + (f"%{most}" if most else "")
        print(job_script.script(plan, token=token, array=array, elements=prepared.path / "arrays" / token), end="")


def tell(prepared: PreparedSweep, submitted: SubmittedSweep, trials: int | None = None) -> None:
    """What was submitted and what to type next; `trials`: of a search, which has only begun."""
    from launcher.cli.text import program

    sweep = submitted.sweep
    print(f"sweep      {sweep.id}: {plural(trials, 'trial') if trials else plural(len(prepared.wanted), 'point')}")
    for job, points in submitted.jobs:
        cluster = prepared.plans[points[0]].cluster
        print(f"job        {job} on {cluster}: {plural(len(points), 'point')} ({ranges(points)})")
    if submitted.local:
        most = prepared.parallelism or 1
        print(f"here       {plural(len(submitted.local), 'point')}, {most} at a time")
    if submitted.there:
        print(f"           {_there(submitted)}")
    print(f"directory  {sweep.path}")
    for number, words in enumerate(("status", "results", "cancel")):
        print(f"{'' if number else 'next':<11}{program()} sweep {words} {sweep.id}")
    left, words = submitted.left
    if left:
        print(
            f"launcher: {plural(len(left), 'point')} could not be submitted yet: {words}\n"
            "Repeat the command when some of the others are over: it submits those that are left",
            file=sys.stderr,
        )


def _there(submitted: SubmittedSweep) -> str:
    """Points that had been submitted before, by their states."""
    from collections import Counter

    from launcher.monitoring.sweep import look_at

    there = set(submitted.there)
    states = Counter(seen.state for seen in look_at(submitted.sweep) if seen.point.index in there)
    shown = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    return f"{plural(len(submitted.there), 'point')} had been submitted before: {shown}"
