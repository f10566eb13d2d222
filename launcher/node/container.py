"""Runs a node's agent in a container: `python -m launcher.node.container RUN_DIR`, started by a run's script.

The job's variables are carried in by reference (`APPTAINERENV_NAME`, `enroot --env NAME`), so that no value is on a
command line; those of the host that break things inside are not. Of the launcher only `launcher.node` runs inside; it
needs torch, numpy and submitit there, and comes itself by a bound folder on PYTHONPATH. Standard library only.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from launcher.plan import JobPlan

# Of the host: where its programs, libraries and Pythons are, which the image has of its own. HOME, USER and the like
# are set by the runtime.
BREAKING = ("LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX")
OF_HOST = re.compile(
    r"(PATH|LD_\w+|PYTHON(HOME|PATH|STARTUP|USERBASE|EXECUTABLE)|VIRTUAL_ENV\w*|_?CONDA_\w+|_CE_\w+|MODULE\w*|"
    r"LOADEDMODULES|_LMFILES_|LMOD_\w+|_ModuleTable\w*|\w*MANPATH|INFOPATH|PKG_CONFIG_PATH|CPATH|LIBRARY_PATH|"
    r"C(PLUS)?_INCLUDE_PATH|CMAKE_PREFIX_PATH|XDG_\w+|DBUS_\w+|(APPTAINER|SINGULARITY|ENROOT)\w*|HOME|USER|LOGNAME|"
    r"SHELL|SHLVL|PWD|OLDPWD|HOSTNAME|_|PS1|BASH\w*)$"
)
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
RUNTIMES = ("apptainer", "singularity")


class ContainerError(RuntimeError):
    """The agent cannot be started in a container on this node."""


def folders(plan: JobPlan) -> list[str]:
    """Folders of the run that are seen inside under their own names; none is within another. Pure."""
    run = Path(plan.run_dir)
    runs = run.parents[1] if run.name.isdecimal() else run.parent
    wanted = [str(runs), plan.workdir, plan.code_root, plan.code, plan.checkpoint_dir, plan.tracking_dir]
    wanted += [value for name, value in plan.params.items() if name in ("data_dir", "text")]
    script = plan.params.get("script")
    wanted += [os.path.dirname(os.path.join(plan.workdir, script))] if script else []
    return outermost([os.path.normpath(each) for each in wanted if each and each.startswith("/")])


def outermost(paths: Sequence[str]) -> list[str]:
    """Those that are in none of the others, in their order. Pure."""
    kept = [path for path in dict.fromkeys(paths) if path != "/"]
    return [path for path in kept if not any(path != other and path.startswith(f"{other}/") for other in kept)]


def ours(plan: JobPlan) -> dict[str, str]:
    """Variables that are set inside whatever the host has. Pure."""
    path = [*plan.code_path, *([plan.code_root] if plan.code_root else [])]
    if own := plan.environment.get("PYTHONPATH"):
        path.append(own)
    # The home folder is seen inside, and what pip has put there for the host's Python is not for this one.
    return {"PYTHONPATH": ":".join(path), "PYTHONNOUSERSITE": "1"}


def carried(environ: Mapping[str, str], plan: JobPlan) -> dict[str, str]:
    """The variables that the agent finds inside: the job's, without those of the host's programs. Pure."""
    named = {*plan.environment, *plan.secrets} - {"PYTHONPATH"}  # the user's own word counts
    kept = {
        name: value
        for name, value in environ.items()
        if VARIABLE.fullmatch(name) and (name in named or not OF_HOST.fullmatch(name))
    }
    return kept | ours(plan)


def command(
    plan: JobPlan, environ: Mapping[str, str], runtime: str, exists: Callable[[str], bool]
) -> tuple[list[str], dict[str, str]]:
    """What is executed, and its environment. Pure.

    Args:
        plan: the run.
        environ: of the job.
        runtime: apptainer, singularity or enroot.
        exists: whether this node has a folder or file.
    """
    assert plan.container is not None
    inside = carried(environ, plan)
    seen = [*folders(plan), *(environ[name] for name in ("TMPDIR", "PBS_NODEFILE") if environ.get(name))]
    binds = [*filter(exists, outermost(seen)), *plan.binds]
    agent = [plan.container_python, "-u", "-m", "launcher.node", plan_run_dir(environ, plan)]
    if runtime == "enroot":
        mounts = [word for bind in binds for word in ("--mount", bind if ":" in bind else f"{bind}:{bind}")]
        names = [word for name in inside for word in ("--env", name)]
        enter = ["sh", "-c", 'cd "$0" && exec "$@"', plan.workdir]
        words = ["enroot", "start", *mounts, *names, *plan.container_args, plan.container, *enter, *agent]
        return words, {**environ, **inside}
    prefix = "APPTAINERENV_" if runtime == "apptainer" else "SINGULARITYENV_"
    words = [
        runtime, "exec", "--cleanenv", *(["--nv"] if plan.gpus_per_node else []),
        *(word for bind in binds for word in ("--bind", bind)), "--pwd", plan.workdir, *plan.container_args,
        plan.container, *agent,
    ]  # fmt: skip
    return words, {**environ, **{f"{prefix}{name}": value for name, value in inside.items()}}


def plan_run_dir(environ: Mapping[str, str], plan: JobPlan) -> str:
    """Its directory; an element of an array has its own."""
    return environ.get("LAUNCHER_RUN_DIR") or plan.run_dir


def runtime_of(plan: JobPlan, which: Callable[[str], str | None]) -> str:
    """What starts the container here.

    Raises:
        ContainerError: this node has none.
    """
    wanted = plan.container_runtime
    if wanted == "auto":
        names: Sequence[str] = ("enroot",) if str(plan.container).endswith(".sqsh") else RUNTIMES
    else:
        names = (wanted,)
    for name in names:
        if which(name):
            return name
    raise ContainerError(
        f"it has no {' and no '.join(names)} on PATH, to run env.container={plan.container}: load its module "
        "(env.modules), or choose env.container_runtime"
    )


def main(run_dir: str) -> int:
    from launcher import errors, event_file, runs
    from launcher.node.again import plan_of
    from launcher.node.events import current_attempt

    plan, host = plan_of(runs.Run(Path(run_dir))), socket.gethostname()
    assert plan.container is not None
    try:
        if plan.container.startswith("/") and not os.path.exists(plan.container):
            raise ContainerError(
                f"there is no image {plan.container} (env.container): put it on a file system that all nodes share"
            )
        words, environ = command(plan, os.environ, runtime_of(plan, shutil.which), os.path.exists)
        sys.stdout.flush()
        os.execvpe(words[0], words, environ)  # noqa: S606  a list of words needs no shell
    except (ContainerError, OSError) as error:
        cause = f"{host}: {error}"
        print(f"launcher: {cause}", file=sys.stderr)
        if attempt := current_attempt():
            event_file.append(attempt.events_file(f"container-{host}"), "fault", cause=cause, host=host)
        return errors.NO_RETRY


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
