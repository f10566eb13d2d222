"""What is set up before the first run: profiles of sites (`site`), templates of job scripts (`template`).

For compute nodes, which often have no internet access and slow file systems: data sets (`data`), venvs (`env`).
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from datetime import date
from pathlib import Path

from launcher.cli.output import print_columns
from launcher.cli.progress_bars import Rate, of_download, shown
from launcher.config import profiles
from launcher.errors import FAILED, ConfigError, LauncherError, RunError, near, program
from launcher.formatting import rough_size
from launcher.paths import resource
from launcher.plan import workload_hook
from launcher.plan.workload_hook import KnownDataSet, Progress
from launcher.remote.clusters import remote_clusters
from launcher.schedulers import registry
from launcher.schedulers.base import QueryError, Scheduler
from launcher.schedulers.site import Site, described_schedulers

TIMEOUT = 20.0  # seconds for one query to a scheduler
POOLS = ("partition", "queue")


def run(arguments: Namespace) -> int:
    action, name = arguments.action, arguments.name
    if action == "list":
        if name is not None:
            raise ConfigError(f"`site list` takes no name: see `site show {name}`")
        return _list()
    if action == "init":
        if arguments.ssh is None and (arguments.python or arguments.activate):
            raise ConfigError("--python and --activate go with --ssh: they are about the other side")
        return _init(arguments) if arguments.ssh is None else _init_remote(arguments)
    if name is None:
        raise ConfigError(f"`site {action}` needs the NAME of a profile; `site list` shows them")
    if action == "login":
        from launcher.cli import ssh_forward

        return ssh_forward.log_in(name)
    return _show(name)


def _list() -> int:
    rows = [("NAME", "SCHEDULER", "FILE")]
    apart = remote_clusters()
    for each in profiles.profiles():
        kind = each.scheduler or ("ssh" if each.name in apart else "?")
        rows.append((each.name, kind, str(each.path) if each.own else f"ours: {each.path.name}"))
    print_columns(rows)
    print(f"\nYours are in {profiles.own_folder()}.\n`site show NAME` prints one, `site init` writes one.")
    return 0


def _show(name: str) -> int:
    found = profiles.find(name)
    print(f"# {found.path}")
    print(found.path.read_text("utf-8", errors="replace"), end="")
    return 0


def _init(arguments: Namespace) -> int:
    if arguments.name is not None and not arguments.only_print:  # before the scheduler is asked
        profiles.require_free(arguments.name, force=arguments.force)
    scheduler, site = survey(arguments.scheduler)
    wanted = {key: getattr(arguments, key) for key in POOLS if getattr(arguments, key) is not None}
    if wanted.keys() - {site.pool}:
        raise ConfigError(f"this is a {scheduler.title}: use --{site.pool}")
    name = arguments.name or site.default_name()
    setup = ["setup:", *(f"  - {json.dumps(line, ensure_ascii=False)}" for line in arguments.setup)]
    setup = setup if arguments.setup else []
    text = "\n".join([*site.profile(name, wanted.get(site.pool), date.today().isoformat()), *setup, ""])
    if arguments.only_print:
        print(text, end="")
        return 0
    print(f"written  {profiles.save(name, text, force=arguments.force)}")
    print(f"next     look through it, then cluster={name}")
    return 0


def _init_remote(arguments: Namespace) -> int:
    name = arguments.name
    if name is None:
        raise ConfigError("`site init --ssh HOST` needs a NAME for the profile: it is that of cluster=NAME")
    text = (
        f"# A cluster behind ssh, written by `launcher site init`; docs/sites.md has all keys.\nssh: {arguments.ssh}\n"
    )
    with contextlib.suppress(OSError):  # installed again: what the user has set stays, but for another launcher there
        before = (profiles.own_folder() / f"{name}.yaml").read_text()
        if re.search(r"^ssh:", before, re.MULTILINE):
            kept = re.sub(r"^command:.*\n?", "", before, flags=re.MULTILINE)
            text = re.sub(r"^ssh:.*", lambda _: f"ssh: {arguments.ssh}", kept, flags=re.MULTILINE)
    if not arguments.only_print:
        from launcher.cli import ssh_forward

        profiles.require_free(name, force=arguments.force)
        options = [f"--{key}={getattr(arguments, key)}" for key in (*POOLS, "scheduler") if getattr(arguments, key)]
        options += [f"--setup={line}" for line in (*arguments.activate, *arguments.setup)]
        ssh_forward.set_up(name, text, arguments.activate, arguments.python, options)
        print(f"written  {profiles.save(name, text, force=arguments.force)}")
        print(f"next     launcher run train.py cluster={name}")
    else:
        print(text, end="")
    return 0


def survey(wanted: str | None) -> tuple[Scheduler, Site]:
    """Returns the scheduler here (None: the first that responds), and its site; raises RunError."""
    silent, others = [], []
    known = described_schedulers()
    for scheduler in (each for each in known if wanted in (None, each.name)):
        if problem := scheduler.problem():
            others += [problem] if wanted or scheduler.found() else []
            continue
        try:
            return scheduler, scheduler.survey(TIMEOUT)
        except QueryError as error:
            silent.append(f"{scheduler.title} does not answer: {error}")
    none = f"there is neither {' nor '.join(dict.fromkeys(each.command for each in known))} on PATH"
    raise RunError("; ".join(silent or others) or f"{none}: run this on a login node of the cluster")


def template(arguments: Namespace) -> int:
    profile = profiles.find(arguments.cluster or "slurm")
    if not profile.scheduler:
        raise ConfigError(f"cluster={profile.name} has no scheduler here, so no job scripts: {profile.path}")
    name = registry.scheduler(profile.scheduler).template
    if not arguments.whole:
        print(START.format(name=name), end="")
        return 0
    for each in (name, "job.sh.j2"):
        print(f"{{# ---- {each} #}}")
        print((resource("templates") / each).read_text())
    return 0


START = """\
{{# Your own job script: cluster.template=FILE. What the blocks below do not replace is the launcher's. #}}
{{% extends "{name}" %}}

{{% block directives %}}
{{{{ super() }}}}
{{% endblock %}}

{{% block setup %}}
{{{{ super() }}}}
# This runs on the first node, when everything is set up and before the ranks start.
{{% endblock %}}

{{% block run %}}
{{{{ super() }}}}
{{% endblock %}}

{{% block after %}}
# This runs on the first node after the ranks have ended, with exit code "$LAUNCHER_EXIT_CODE".
{{% endblock %}}
"""


# -- `data` and `env`


def data(arguments: Namespace) -> int:
    action, name = arguments.action, arguments.name
    if action is None:
        if arguments.mirrors:
            raise ConfigError("--mirror goes with fetch NAME")
        return _list_data(arguments.data_dir)
    known, problems = workload_hook.data_sets_of_all()
    names = ", ".join(known)
    if name is None:
        raise ConfigError(f"fetch needs the NAME of a data set: {names}")
    if name not in known:
        unread = "".join(f"\nnot listed: {problem}" for problem in problems)
        raise ConfigError(f"there is no data set {name!r}.{near(name, known)} Known: {names}{unread}")
    return _fetch(known[name], arguments.mirrors, arguments.data_dir)


def _list_data(data_dir: Path | None) -> int:
    code = 0
    known, problems = workload_hook.data_sets_of_all()
    for name, each in known.items():
        try:
            found = each.find(data_dir)
        except ConfigError as error:
            print(f"{name:<15} {error}")
            code = FAILED
            continue
        where = f" --data-dir {shlex.quote(str(data_dir))}" if data_dir else ""
        missing = f"not here; {program()} data fetch {name}{where}"
        print(f"{name:<15} {f'{found.dir} ({found.how})' if found else missing}")
    for problem in problems:
        print(problem)
        code = FAILED
    return code


def _fetch(source: KnownDataSet, mirrors: list[str] | None, data_dir: Path | None) -> int:
    try:
        with _shown() as progress:
            found = source.fetch(data_dir, mirrors, progress)
    except ConfigError as error:  # the command was right, so the exit code is not that of a wrong one
        raise LauncherError(str(error)) from error
    print(f"{source.name} is in {found.dir}")
    return 0


@contextlib.contextmanager
def _shown() -> Iterator[Progress]:
    rates: dict[str, Rate] = {}
    with shown(sys.stderr, keep=True) as show:

        def progress(file: str, done: int, total: int) -> None:
            rate = rates.setdefault(file, Rate())
            rate.add(time.monotonic(), done)
            show.show(file, done, total, of_download(done, total, rate))

        yield progress


def env(arguments: Namespace) -> int:
    from launcher.environment import archives

    if len(arguments.paths) > 2:
        raise ConfigError("`env pack` takes a FOLDER and an ARCHIVE")
    *folder, name = (Path(path).expanduser().absolute() for path in arguments.paths)
    if name.exists() and not arguments.force:
        raise ConfigError(f"{name} exists already: --force replaces it")
    source = folder[0] if folder else archives.default_folder()
    packed = archives.pack(source, name)
    print(f"{name}: {rough_size(packed['bytes'])} of {source}")
    print(f"use it with env.archive={name}")
    return 0
