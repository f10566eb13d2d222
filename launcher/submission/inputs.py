"""What a workload needs: found on the login node, where there may be an internet, and put into the config.

The script or the function of the user's own; what its hook (`workload.hook`) finds, such as a data set."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.config.schema import Config, Function, Program
from launcher.environment import containers, interpreter, programs, snapshot
from launcher.errors import ConfigError
from launcher.runs.directory import Run
from launcher.schedulers.planning import scheduler_of
from launcher.script import custom_template
from launcher.spec import workload_hook

if TYPE_CHECKING:
    from launcher.environment.snapshot import Tree
    from launcher.spec.plan import JobPlan, Site
    from launcher.spec.sections import Archive


class Inputs:
    """Looks for everything once, however many points of a sweep want it."""

    def __init__(self) -> None:
        self._hook = functools.cache(workload_hook.load)
        self._template = functools.cache(_template)
        self._archive = functools.cache(_archive)
        self._environment = functools.cache(_environment)
        self._tree = functools.cache(_tree)
        self._before = functools.cache(_before)

    def with_code(self, config: Config, site: Site, *, new_snapshot: bool = False) -> Site:
        """The site with the folders of a snapshot, where one is wanted.

        Raises:
            ConfigError: none can be made.
            RunError: the one that the run has is gone.
        """
        if config.env.archive is not None:
            site = dataclasses.replace(site, archive=self._archive(config.env.archive)[1])
        run = Run(Path(site.run_dir))
        if site.code_root is None and (config.env.activate or config.env.archive or config.env.container):
            site = dataclasses.replace(site, code_root=str(snapshot.library_of(run)))
        if not config.env.snapshot:
            return site
        before = None if new_snapshot else self._before(run)
        runs_dir = str(Path(config.runs_dir).expanduser().absolute())
        tree = self._tree(site.workdir, runs_dir) if before is None else None
        # A point that had none gets one of its own: who knows how old one of its sweep is.
        folder = snapshot.folder_of(run, another=new_snapshot or run.recorded())
        return snapshot.planned(config, site, tree, before, folder)

    def with_environment(self, config: Config) -> tuple[Config, tuple[str, ...]]:
        """The config with the whole path of the environment that is activated, and what its user should know.

        Raises:
            ConfigError: ranks could not run in it.
        """
        if config.env.container is not None:
            image, notes = containers.checked(config.env)
            _require_here(config, "env.container", image)
            return dataclasses.replace(config, env=dataclasses.replace(config.env, container=image)), notes
        if config.env.archive is not None:
            archive, _ = self._archive(config.env.archive)
            return dataclasses.replace(config, env=dataclasses.replace(config.env, archive=archive)), ()
        if config.env.activate is None:
            return config, ()
        path, notes = self._environment(config.env.activate)
        _require_here(config, "env.activate", path)
        return dataclasses.replace(config, env=dataclasses.replace(config.env, activate=path)), notes

    def with_template(self, config: Config) -> Config:
        """The config with the whole path of the user's own template, which has passed what can be seen without a plan.

        Raises:
            ConfigError: it is not there, or has errors; each with its file and line.
        """
        if config.cluster.template is None:
            return config
        path = self._template(config.cluster.template)
        return dataclasses.replace(config, cluster=dataclasses.replace(config.cluster, template=path))

    def into(self, config: Config, run: Run | None = None) -> tuple[Config, tuple[str, ...]]:
        """The config with what was found, and what its user should know.

        Args:
            config: the config.
            run: one that may go on with the code of its snapshot, which is then what counts.

        Raises:
            RunError: its snapshot is gone.
            ConfigError: it is not there, or damaged, or the workload's keys do not go together with it.
        """
        workload, notes = self._hook(config.workload.hook).prepare(config)
        config = dataclasses.replace(config, workload=workload)
        if isinstance(workload, (Program, Function)):  # as the hook has left it
            before = self._before(run) if run is not None and config.env.snapshot else None
            config = _with_code(config, workload, before)
        return config, notes

    def check(self, plan: JobPlan) -> tuple[str, ...]:
        """What the workload's hook says to a plan.

        Raises:
            ConfigError: it could not run.
        """
        return self._hook(plan.workload.params["hook"]).check(plan)


def _with_code(config: Config, workload: Program | Function, before: JobPlan | None) -> Config:
    """The user's own program or function, found where the job will find it."""
    env = config.env
    more = [*config.cluster.setup, *env.modules, *env.setup, *filter(None, [env.activate, env.archive, env.container])]
    place = programs.here(config.cluster.environment, more)
    if before is not None:
        workload, place = snapshot.seen(workload, place, before)
    if isinstance(workload, Program):
        return dataclasses.replace(config, workload=programs.checked_program(workload, place))
    return dataclasses.replace(config, workload=programs.checked_function(workload, place))


def _environment(folder: str) -> tuple[str, tuple[str, ...]]:
    return interpreter.checked(folder)


def _template(name: str) -> str:
    path = custom_template.found(name)
    custom_template.require_sound(path)
    return str(path)


def _require_here(config: Config, key: str, path: str) -> None:
    """What a login node does not see a compute node may; a run of this machine has only what is here."""
    here = scheduler_of(config.cluster).on_this_machine
    if here and path.startswith("/") and not Path(path).exists():
        raise ConfigError(f"{key}={path} is not there")


def _archive(name: str) -> tuple[str, Archive]:
    # Lazily: tarfile takes 5 ms, and only env.archive needs it
    from launcher.environment import archives

    return archives.checked(name)


def _tree(folder: str, runs_dir: str) -> Tree:
    return snapshot.tree(folder, [runs_dir])


def _before(run: Run) -> JobPlan | None:
    return snapshot.before_of(run)
