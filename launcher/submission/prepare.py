"""Makes and checks the plan of a run, and finds the files that it names, before anything is written or submitted."""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher import redaction
from launcher.config.schema import Config, Function, Program, ResumeHow
from launcher.environment import container_command, programs, snapshot
from launcher.environment import secrets as secret
from launcher.errors import ConfigError, RunError, program
from launcher.files.retried_reads import exists, unwrap_or
from launcher.paths import code_root, new_id
from launcher.plan import limits, workload_hook
from launcher.plan.build import PlanFacts, build, check_name, refuse_unusable, resolved_value
from launcher.plan.plan import Archive, JobPlan, keys_of
from launcher.runs.directory import Run, token_of
from launcher.runs.lease_and_locks import other_user
from launcher.runs.lookup import find
from launcher.schedulers import registry
from launcher.schedulers.base import Allocation, QueryError, Queue
from launcher.schedulers.registry import job_environment, require_room
from launcher.submission import dependencies, render


class Inputs:
    """Finds and checks the files that runs need, each once for all points of a sweep."""

    def __init__(self) -> None:
        self._hook = functools.cache(workload_hook.load)
        self._template = functools.cache(render.checked_template)
        self._archive = functools.cache(_archive)
        self._environment = functools.cache(programs.checked)
        self._code = functools.cache(snapshot.code_in)
        of_sweep = functools.cache(snapshot.plan_of_sweep)
        self._before = functools.cache(lambda run: snapshot.earlier_plan(run, of_sweep))

    def with_code(self, config: Config, site: PlanFacts, *, new_snapshot: bool = False) -> PlanFacts:
        """Returns the site with facts about env.archive, the copy of our packages, and the snapshot's folders."""
        if config.env.archive is not None:
            site = dataclasses.replace(site, archive=self._archive(config.env.archive)[1])
        run = Run(Path(site.run_dir))
        if site.code_root is None and (config.env.activate or config.env.archive or config.env.container):
            site = dataclasses.replace(site, code_root=str(snapshot.library_of(run)))
        if not config.env.snapshot:
            return site
        before = None if new_snapshot else self._before(run)
        runs_dir = str(Path(config.runs_dir).expanduser().absolute())
        limit = resolved_value(config.env, "snapshot_limit", "env.")
        code = self._code(site.workdir, runs_dir, limit) if before is None else None
        # A recorded point without a snapshot gets one of its own, since that of its sweep may be older code.
        folder = snapshot.folder_of(run, another=new_snapshot or run.recorded())
        return snapshot.planned(config, site, code, before, folder)

    def with_environment(self, config: Config) -> tuple[Config, tuple[str, ...]]:
        """Returns the config with the path of its container, archive or environment, and notes; raises ConfigError."""
        env, here, notes = config.env, registry.scheduler(config.cluster.scheduler).on_this_machine, tuple[str, ...]()
        if env.container is not None:
            image, notes = container_command.checked_image(env, here=here)
            env = dataclasses.replace(env, container=image)
        elif env.archive is not None:
            env = dataclasses.replace(env, archive=self._archive(env.archive)[0])
        elif env.activate is not None:
            path, notes = self._environment(env.activate, here=here)
            env = dataclasses.replace(env, activate=path)
        if isinstance(config.workload, Program) and not (env.container or env.archive):  # which may have one of its own
            notes += programs.interpreter(config.workload, here=here)
        return dataclasses.replace(config, env=env), notes

    def with_template(self, config: Config) -> Config:
        """Returns the config with its custom template's path, checked without a plan; raises ConfigError."""
        if config.cluster.template is None:
            return config
        path = self._template(config.cluster.template)
        return dataclasses.replace(config, cluster=dataclasses.replace(config.cluster, template=path))

    def with_workload(self, config: Config, run: Run | None = None) -> tuple[Config, tuple[str, ...]]:
        """Returns the config with its program (`run`: in its snapshot), function or data set, and notes."""
        workload, notes = self._hook(config.workload.hook).prepare(config)
        config = dataclasses.replace(config, workload=workload)
        if isinstance(workload, (Program, Function)):  # as the hook has left it
            before = self._before(run) if run is not None and config.env.snapshot else None
            config = _with_code(config, workload, before)
        return config, notes

    def check(self, plan: JobPlan) -> tuple[str, ...]:
        return self._hook(plan.workload.params["hook"]).check(plan)


def _with_code(config: Config, workload: Program | Function, before: JobPlan | None) -> Config:
    env = config.env
    more = [*config.cluster.setup, *env.modules, *env.setup, *filter(None, [env.activate, env.archive, env.container])]
    place = programs.here(config.cluster.environment, more)
    if before is not None:
        workload, place = snapshot.workload_in(workload, place, before)
    if isinstance(workload, Program):
        return dataclasses.replace(config, workload=programs.checked_program(workload, place))
    return dataclasses.replace(config, workload=programs.checked_function(workload, place))


def _archive(name: str) -> tuple[str, Archive]:
    from launcher.environment import archives

    return archives.checked(name)


@dataclass(frozen=True)
class Prepared:
    plan: JobPlan
    token: str  # string in the job by which a repeated submission finds it at the scheduler; see `token_of`
    notes: tuple[str, ...]
    # values of the secret variables in cluster.environment; never written to a record
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)


def prepare(
    config: Config, environ: Mapping[str, str] = os.environ, *, run_id: str | None = None, new_snapshot: bool = False
) -> Prepared:
    """Makes and checks a plan; writes and submits nothing; raises ConfigError, which names the key and the fix.

    run_id: id of an existing run to resume (a point too); None: a run with the id in the config, or with a new one.
    new_snapshot: whether to copy the code again (env.snapshot) although the run has a copy.
    """
    config = with_pool(config)
    held, resumes = held_allocation(config, environ), run_id is not None
    check_name("name", config.name)
    if run_id is None:
        run_id = new_id(config.name) if config.run_id is None else check_name("run_id", config.run_id)
    plan, notes = planned(config, site_of(config, run_id, held), Inputs(), new_snapshot=new_snapshot)
    chain = plan.resume.how == ResumeHow.chain.value
    # A repeated submission may have its jobs already; a resumed run needs new ones.
    repeated = not resumes and Run(Path(plan.run_dir)).recorded()
    jobs = 0 if repeated else plan.resume.max_attempts if chain else 1
    notes += check_capacity(plan, config, environ, held, jobs)
    # The token is made from the run directory, so that a repeated submission looks for the same job.
    token = token_of(plan.run_dir)
    # Raises if an option of cluster.directives collides with a key, or a value cannot be written to a script.
    render.rendered(plan, token=token)
    notes += render.notes(plan, token=token)
    if (other := other_user(Path(plan.checkpoint.dir), Path(plan.run_dir))) is not None:
        notes += (f"checkpoint.dir={plan.checkpoint.dir}: {other} saves there and keeps this run out until it is over",)
    secrets = secrets_of(config)
    secret.require_absent(keys_of(plan), {**redaction.secrets_in(environ, plan.env.secrets), **secrets})
    return Prepared(plan, token, notes, secrets)


def with_pool(config: Config) -> Config:
    """Returns the config with the variables and interface of the pools that apply, before anything else looks at it."""
    return dataclasses.replace(config, cluster=limits.with_pool(config.cluster))


def secrets_of(config: Config) -> dict[str, str]:
    """Returns the values of the secret variables that a config sets (cluster.environment), by name."""
    values = {name: None if value is None else str(value) for name, value in config.cluster.environment.items()}
    return redaction.secrets_in(values, redaction.all_patterns(config.env.secrets))


def folder_of(config: Config, name: str) -> Path:
    """Returns the directory of a run or sweep; raises ConfigError if its runs_dir may not be entered."""
    path = Path(config.runs_dir).expanduser().absolute() / name
    unwrap_or(ConfigError, exists(path), f"runs_dir={config.runs_dir}: ")
    return path


def site_of(config: Config, run_id: str, held: Allocation | None) -> PlanFacts:
    """Returns the facts that a run (SWEEP/N for a point) with an allocation or none needs besides its config."""
    umask = os.umask(0o077)
    os.umask(umask)
    run_dir = folder_of(config, run_id)
    root = code_root()
    return PlanFacts(
        run_id, str(run_dir), sys.executable, None if root is None else str(root), os.getcwd(), umask,
        held.starter if held else None, _after(config, Run(run_dir)),
        secrets_dir=str(secret.folder()) if registry.scheduler(config.cluster.scheduler).secrets_in_files else None,
    )  # fmt: skip


def _after(config: Config, run: Run) -> tuple[str, ...]:
    wanted = {"after": config.after, "sweep.after": config.sweep.after if run.path.name.isdecimal() else None}
    if not any(wanted.values()):
        return ()
    named = (name for value in wanted.values() for _, name in dependencies.parse(value))
    if run.recorded() and (dependencies.conditions_met(run) or "latest" in named):
        return run.plan().after  # `latest` may be another run now, and a run that it waited for may have been deleted
    runs_dir = Path(config.runs_dir).expanduser().absolute()
    return tuple(each for key, value in wanted.items() for each in dependencies.resolve(value, runs_dir, key))


def planned(
    config: Config, site: PlanFacts, inputs: Inputs, *, new_snapshot: bool = False
) -> tuple[JobPlan, tuple[str, ...]]:
    """Makes a plan, checks it without the scheduler, and returns it with notes; ConfigError. config: `with_pool`."""
    refuse_unusable("", config)  # before files are looked for
    run = None if new_snapshot else Run(Path(site.run_dir))
    config, notes = inputs.with_workload(_with_baseline(config), run)
    config = inputs.with_template(config)
    config, more = inputs.with_environment(config)
    notes += more
    site = inputs.with_code(config, site, new_snapshot=new_snapshot)
    plan = snapshot.into_plan(make_plan(config, site))
    notes += inputs.check(plan)
    limits.check_limits(plan, config.cluster)
    return plan, notes + snapshot.notes(plan) + programs.check(plan)


def check_capacity(
    plan: JobPlan, config: Config, environ: Mapping[str, str], held: Allocation | None, jobs: int = 0
) -> tuple[str, ...]:
    """Compares a plan with the live scheduler or held allocation; returns notes; raises ConfigError.

    jobs: number of jobs to submit; 0: they may exist already, so the user's limit of jobs is not checked.
    """
    if not config.submit:
        _require_by_hand(plan, config)
    waits = dependencies.check_dependencies(plan) if plan.after else ()
    if plan.queued:
        dropped = job_environment(environ, plan).dropped
        notes = (f"not handed on to the job: {', '.join(dropped)}",) if dropped else ()
        return _check_live(plan, config, environ, jobs) + notes + waits
    if held:
        require_room(held, plan)
    elif config.cluster.check:
        limits.check_gpus(plan, environ)
    return waits if held else waits + limits.crowded(plan)


def _require_by_hand(plan: JobPlan, config: Config) -> None:
    if not plan.queued:
        raise ConfigError(f"submit=false: cluster={plan.cluster.name} has no queue: leave it out")
    if config.wait:
        raise ConfigError(f"submit=false wait=true: there is no job to wait for yet: later, use `{program()} wait RUN`")
    if (names := list(secrets_of(config))) and not registry.scheduler(config.cluster.scheduler).secrets_in_files:
        raise ConfigError(f"submit=false: {', '.join(names)} would be readable in the command: export it in your shell")


def _with_baseline(config: Config) -> Config:
    if config.baseline is None:
        return config
    workload = config.workload
    if not hasattr(workload, "baseline"):
        why = f"workload={workload.name} is not compared with another run, but by `{program()} report`"
        raise ConfigError(f"baseline={config.baseline}: {why}: leave it out")
    path = Path(os.path.expanduser(config.baseline)).absolute()
    if not path.is_file():
        try:
            path = find(config.baseline, Path(config.runs_dir).expanduser().absolute()).path
        except RunError as error:
            raise ConfigError(f"baseline={config.baseline}: {error}") from None
    found: dict[str, Any] = {"baseline": str(path)}
    return dataclasses.replace(config, workload=dataclasses.replace(workload, **found))


def _check_live(plan: JobPlan, config: Config, environ: Mapping[str, str], jobs: int) -> tuple[str, ...]:
    if not config.cluster.check:
        return ()
    queue = registry.queue(plan.cluster.scheduler)
    notes = queue.compare(plan, environ)
    if not (jobs and limits.limited_jobs(config.cluster)):
        return notes
    try:
        there = queue.count_jobs(plan.cluster.submit_timeout)
    except QueryError as error:
        return (*notes, f"your jobs were not counted: {error}")
    if there is not None:
        limits.check_jobs(config.cluster, jobs, there)
    return notes


def held_allocation(config: Config, environ: Mapping[str, str]) -> Allocation | None:
    """Returns this shell's allocation for cluster=allocation (ConfigError: it has none); None for other clusters."""
    return registry.scheduler(config.cluster.scheduler).held(environ)


def make_plan(config: Config, site: PlanFacts) -> JobPlan:
    scheduler, how = registry.scheduler(config.cluster.scheduler), config.resume.how
    if how is ResumeHow.requeue and not scheduler.requeues:
        able = [each.name for each in registry.schedulers() if each.requeues]
        why = scheduler.no_requeue if isinstance(scheduler, Queue) else ""
        raise ConfigError(
            f"resume.how=requeue is only for {' and '.join(able)}, and the cluster is {scheduler.name}: use auto"
            + (f" ({why})" if why else "")
        )
    if how in (ResumeHow.chain, ResumeHow.resubmit) and not scheduler.queued:
        raise ConfigError(f"resume.how={how.value} needs a scheduler that takes jobs, not {scheduler.name}: use auto")
    return build(config, site, scheduler)
