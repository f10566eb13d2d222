"""Finds and checks the files that a config names, on the login node, and completes the config with their paths.

They are the user's program or function, the data set that the workload's hook finds (workload.hook), the environment
or container, the snapshot, and the template. The checks themselves are in launcher/environment and custom_template.
"""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.config.schema import Config, Function, Program
from launcher.environment import containers, programs, snapshot
from launcher.runs.directory import Run
from launcher.schedulers.planning import scheduler_of
from launcher.spec import workload_hook
from launcher.submission import custom_template

if TYPE_CHECKING:
    from launcher.environment.snapshot import Tree
    from launcher.spec.build import Site
    from launcher.spec.plan import JobPlan
    from launcher.spec.sections import Archive


class Inputs:
    """Finds and checks the files that runs need: code, env.archive, container, environment, template, data sets.

    One object serves all points of a sweep, so that each file is checked only once.
    """

    def __init__(self) -> None:
        self._hook = functools.cache(workload_hook.load)
        self._template = functools.cache(_template)
        self._archive = functools.cache(_archive)
        self._environment = functools.cache(programs.checked)
        self._tree = functools.cache(_tree)
        self._before = functools.cache(snapshot.earlier_plan)

    def with_code(self, config: Config, site: Site, *, new_snapshot: bool = False) -> Site:
        """Returns the site with facts about env.archive, the copy of our packages, and the snapshot's folders.

        site: facts about the run and this machine, with folders in the repository.
        new_snapshot: whether to copy the code again (env.snapshot) although the run has a copy.
        Raises ConfigError: the archive is wrong, or a snapshot cannot be made.
        Raises RunError: the folder of the run's snapshot is gone.
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
        # A recorded point without a snapshot gets one of its own, since that of its sweep may be older code.
        folder = snapshot.folder_of(run, another=new_snapshot or run.recorded())
        return snapshot.planned(config, site, tree, before, folder)

    def with_environment(self, config: Config) -> tuple[Config, tuple[str, ...]]:
        """Checks env.container, env.archive or env.activate. Returns the config with its absolute path, and notes.

        Raises ConfigError: the file or environment does not exist, or ranks could not run in it.
        """
        here = scheduler_of(config.cluster).on_this_machine
        if config.env.container is not None:
            image, notes = containers.checked(config.env, here=here)
            return dataclasses.replace(config, env=dataclasses.replace(config.env, container=image)), notes
        if config.env.archive is not None:
            archive, _ = self._archive(config.env.archive)
            return dataclasses.replace(config, env=dataclasses.replace(config.env, archive=archive)), ()
        if config.env.activate is None:
            return config, ()
        path, notes = self._environment(config.env.activate, here=here)
        return dataclasses.replace(config, env=dataclasses.replace(config.env, activate=path)), notes

    def with_template(self, config: Config) -> Config:
        """Checks the custom template (cluster.template), as far as it does not depend on a plan.

        Returns the config with the absolute path of the template.
        Raises ConfigError: the template does not exist, or has errors; the text has the file and line of each.
        """
        if config.cluster.template is None:
            return config
        path = self._template(config.cluster.template)
        return dataclasses.replace(config, cluster=dataclasses.replace(config.cluster, template=path))

    def with_workload(self, config: Config, run: Run | None = None) -> tuple[Config, tuple[str, ...]]:
        """Finds the workload's program, function or data set. Returns the completed config, and notes for the user.

        run: run whose program is checked in its snapshot, if it has one; None: in the repository.
        Raises RunError: the folder of the run's snapshot is gone.
        Raises ConfigError: a file does not exist or is damaged, or keys of the workload contradict each other.
        """
        workload, notes = self._hook(config.workload.hook).prepare(config)
        config = dataclasses.replace(config, workload=workload)
        if isinstance(workload, (Program, Function)):  # as the hook has left it
            before = self._before(run) if run is not None and config.env.snapshot else None
            config = _with_code(config, workload, before)
        return config, notes

    def check(self, plan: JobPlan) -> tuple[str, ...]:
        """Checks a plan with the hook of its workload. Returns notes for the user.

        Raises ConfigError: the plan cannot run.
        """
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


def _template(name: str) -> str:
    path = custom_template.found(name)
    custom_template.require_sound(path)
    return str(path)


def _archive(name: str) -> tuple[str, Archive]:
    # Lazily: tarfile takes 5 ms, and only env.archive needs it
    from launcher.environment import archives

    return archives.checked(name)


def _tree(folder: str, runs_dir: str) -> Tree:
    return snapshot.tree(folder, [runs_dir])
