"""Runs a node's agent in a container: `python -m launcher.environment.container_command RUN_DIR`, in the job script.

Of the launcher only `launcher.agent` runs in it, from a mounted folder; the image has torch, numpy and submitit. The
container is started twice: first its Python is asked for its version and packages, whose errors this process reports;
then the runtime replaces this process, so that signals reach it.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.config.schema import Env, Runtime
from launcher.environment import programs
from launcher.environment.programs import SetupLine
from launcher.errors import ConfigError
from launcher.failures.codes import FaultCode
from launcher.files import retried_reads
from launcher.paths import own_module
from launcher.runs import directory as runs
from launcher.runs.directory import report_start_failure, runs_dir_of
from launcher.runs.job_file import VARIABLE

if TYPE_CHECKING:
    from launcher.plan.plan import JobPlan


# Variables with paths of the host, which the image does not have. The runtime sets HOME, USER and the like.
BREAKING = ("LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX")
OF_HOST = re.compile(
    r"(PATH|LD_\w+|PYTHON(HOME|PATH|STARTUP|USERBASE|EXECUTABLE)|VIRTUAL_ENV\w*|_?CONDA_\w+|_CE_\w+|MODULE\w*|"
    r"LOADEDMODULES|_LMFILES_|LMOD_\w+|_ModuleTable\w*|\w*MANPATH|INFOPATH|PKG_CONFIG_PATH|CPATH|LIBRARY_PATH|"
    r"C(PLUS)?_INCLUDE_PATH|CMAKE_PREFIX_PATH|XDG_\w+|DBUS_\w+|(APPTAINER|SINGULARITY|ENROOT)\w*|HOME|USER|LOGNAME|"
    r"SHELL|SHLVL|PWD|OLDPWD|HOSTNAME|_|PS1|BASH\w*)$"
)
RUNTIMES = ("apptainer", "singularity")
# Without these, runtimes evaluate the values of variables as a shell does (sylabs/singularity#1131; since apptainer
# 1.1, SingularityCE 3.10).
LITERAL = {"APPTAINER_NO_EVAL": "1", "SINGULARITY_NO_EVAL": "1"}
# Puts the run's folders in front of the image's PYTHONPATH. PYTHONNOUSERSITE, since the home folder is visible in the
# container, and the packages in it are for the host's Python.
ENTER = 'cd "$0" && export PYTHONNOUSERSITE=1 PYTHONPATH="$1${PYTHONPATH:+:$PYTHONPATH}" && shift && exec "$@"'


class ContainerError(RuntimeError):
    """The agent cannot be started in a container on this node."""


def folders(plan: JobPlan) -> list[str]:
    """Returns the folders of the run to mount in the container under the same path; none is within another."""
    wanted = [
        str(runs_dir_of(plan.run_dir)),
        plan.workdir,
        plan.code_root,
        plan.code.snapshot,
        plan.checkpoint.dir,
        plan.tracking.dir,
    ]
    wanted += [value for name, value in plan.workload.params.items() if name in ("data_dir", "text")]
    script = plan.workload.params.get("script")
    wanted += [os.path.dirname(os.path.join(plan.workdir, script))] if script else []
    return outermost([os.path.normpath(each) for each in wanted if each and each.startswith("/")])


def outermost(paths: Sequence[str]) -> list[str]:
    """Returns the paths that are not within another one of them, without /, in their order."""
    kept = [path for path in dict.fromkeys(paths) if path != "/"]
    return [path for path in kept if not any(path != other and path.startswith(f"{other}/") for other in kept)]


def folders_to_make(plan: JobPlan) -> list[str]:
    """Returns those of `folders` that may not exist yet."""
    theirs = [os.path.normpath(each) for each in (plan.checkpoint.dir, plan.tracking.dir) if each]
    return [folder for folder in folders(plan) if folder in theirs]


def _mounts(binds: Sequence[str]) -> list[str]:
    return [bind if ":" in bind else f"{bind}:{bind}" for bind in binds]


def python_inside(plan: JobPlan) -> list[str]:
    """Returns the start of the container's Python, in the workdir and with PYTHONPATH; the caller adds arguments."""
    path = [*plan.code.path, plan.code_root, plan.cluster.environment.get("PYTHONPATH")]
    return ["sh", "-c", ENTER, plan.workdir, ":".join(filter(None, path)), plan.env.python, "-u"]


def passed_variables(environ: Mapping[str, str], plan: JobPlan) -> dict[str, str]:
    """Returns the job's variables to pass into the container: all but those about the host's programs."""
    named = {*plan.cluster.environment, *plan.secret_variables} - {"PYTHONPATH"}  # set by the user, so always passed
    return {
        name: value
        for name, value in environ.items()
        if VARIABLE.fullmatch(name) and (name in named or not OF_HOST.fullmatch(name))
    }


def command(
    plan: JobPlan, environ: Mapping[str, str], runtime: str, exists: Callable[[str], bool]
) -> tuple[list[str], dict[str, str]]:
    """Returns the command that starts the container's Python, and its environment, which has the variables' values."""
    assert plan.env.container is not None
    inside = passed_variables(environ, plan)
    seen = [*folders(plan), *(environ[name] for name in ("TMPDIR", "PBS_NODEFILE") if environ.get(name))]
    binds = [*filter(exists, outermost(seen)), *plan.env.binds]
    python = python_inside(plan)
    if runtime == "enroot":
        bound = [word for mount in _mounts(binds) for word in ("--mount", mount)]
        names = [word for name in inside for word in ("--env", name)]
        return ["enroot", "start", *bound, *names, *plan.env.container_args, plan.env.container, *python], dict(environ)
    prefix = "APPTAINERENV_" if runtime == "apptainer" else "SINGULARITYENV_"
    words = [
        runtime, "exec", "--cleanenv", *(["--nv"] if plan.gpus_per_node else []),
        *(word for bind in binds for word in ("--bind", bind)), "--pwd", plan.workdir, *plan.env.container_args,
        plan.env.container, *python,
    ]  # fmt: skip
    return words, {**environ, **{f"{prefix}{name}": value for name, value in inside.items()}, **LITERAL}


def runtime_of(plan: JobPlan, which: Callable[[str], str | None]) -> str:
    """Returns the container runtime to use on this node (`which`: as shutil's); raises ContainerError."""
    wanted = plan.env.container_runtime
    if wanted == "auto":
        names: Sequence[str] = ("enroot",) if str(plan.env.container).endswith(".sqsh") else RUNTIMES
    else:
        names = (wanted,)
    for name in names:
        if which(name):
            return name
    raise ContainerError(f"it has no {' and no '.join(names)} on PATH: set env.modules, or env.container_runtime")


def require_agent(words: Sequence[str], environ: Mapping[str, str], plan: JobPlan) -> None:
    """Raises ContainerError unless the container starts and its Python has the version and packages needed."""
    query = [*words, "-c", programs.QUERY, *programs.NEEDED]
    done = subprocess.run(
        query, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
    )
    try:
        problem = programs.problem(*json.loads(done.stdout.splitlines()[-1]))
    except (ValueError, IndexError, TypeError):
        print(done.stderr, end="", file=sys.stderr)
        last = done.stderr.strip().rpartition("\n")[2] or f"exit code {done.returncode}"
        raise ContainerError(
            f"{words[0]} starts no {plan.env.python} in {plan.env.container} (env.container, env.python): {last}"
        ) from None
    if problem:
        raise ContainerError(f"the Python of {plan.env.container} (env.container, env.python) {problem}")


def _exists(path: str) -> bool:
    found = retried_reads.exists(path)
    if isinstance(found, retried_reads.Unavailable) and not found.is_transient:  # it may not be looked at
        return False
    return retried_reads.unwrap(found)


def main(run_dir: str) -> int:
    plan: JobPlan | None = None
    try:
        plan = runs.Run(Path(run_dir)).plan()
        assert plan.env.container is not None
        if plan.env.container.startswith("/") and not _exists(plan.env.container):
            raise ContainerError(f"there is no image {plan.env.container} (env.container): do all nodes see it?")
        for folder in folders_to_make(plan):
            os.makedirs(folder, mode=0o700, exist_ok=True)
        words, environ = command(plan, os.environ, runtime_of(plan, shutil.which), _exists)
        require_agent(words, environ, plan)
        os.execvpe(words[0], [*words, *own_module("launcher.agent"), run_dir], environ)  # noqa: S606  words need no shell
    except (ContainerError, OSError) as error:
        return report_start_failure(plan, "container", error, FaultCode.CONTAINER if plan else FaultCode.UNREADABLE)


# -- Checks a run's container at submission, and makes the commands of the job script for it
# With pyxis, that is `srun --container-image=... python3 -m launcher.agent RUN`, else this module on each node.


SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://")


def checked_image(env: Env, *, here: bool = False) -> tuple[str, tuple[str, ...]]:
    """Returns env.container (a file's absolute path), and notes, as `programs.seen`; raises ConfigError."""
    image = str(env.container)
    if SCHEME.match(image):
        do = "for many nodes, make it a file first (apptainer pull)"
        return image, (f"env.container={image} is downloaded by each node: {do}",)
    is_path = image.startswith(("/", "~", ".")) or image.endswith((".sif", ".sqsh", ".img"))
    if env.container_runtime in (Runtime.pyxis, Runtime.enroot) and not is_path:
        return image, ()  # a name such as nvcr.io#nvidia/pytorch:25.01-py3, or of a container that enroot has made
    path, notes = programs.seen("env.container=", image, "make the image first (apptainer build)", here=here)
    if not notes and not os.access(path, os.R_OK):
        raise ConfigError(f"env.container={image} cannot be read: chmod u+r {path}")
    return str(path), notes


def node_command(plan: JobPlan) -> list[str]:
    """Returns the command, but for the run directory, that starts on each node; raises ConfigError."""
    if plan.env.archive is not None:
        return [plan.python, *own_module("launcher.environment.archives")]
    if plan.env.container is None:
        return [plan.node_python, "-u", *own_module("launcher.agent")]
    for folder in folders(plan):
        if "," in folder or ":" in folder:
            raise ConfigError(f"{folder}: a folder bound into env.container has no comma or colon: choose another one")
    if _pyxis(plan):
        return [*python_inside(plan), *own_module("launcher.agent")]
    return [plan.python, *own_module("launcher.environment.container_command")]


def setup_lines(plan: JobPlan) -> list[SetupLine]:
    """Returns the set-up lines that create the folders for pyxis to mount; none for other runtimes."""
    return [
        SetupLine(f"(umask 077 && mkdir -p {shlex.quote(folder)})", f"making {folder}, to be seen in env.container")
        for folder in (folders_to_make(plan) if _pyxis(plan) else [])
    ]


def before_srun(plan: JobPlan) -> list[str]:
    """Returns what to put before srun for pyxis, which passes the whole environment: `env -u NAME ...`."""
    if not _pyxis(plan):
        return []
    hosts = [name for name in BREAKING if name == "PYTHONPATH" or name not in plan.cluster.environment]
    return ["env", *(word for name in hosts for word in ("-u", name))]


def srun_options(plan: JobPlan) -> list[str]:
    if not _pyxis(plan):
        return []
    return [
        f"--container-image={plan.env.container}",
        f"--container-mounts={','.join(_mounts([*folders(plan), *plan.env.binds]))}",
        f"--container-workdir={plan.workdir}",
        *plan.env.container_args,
    ]


def _pyxis(plan: JobPlan) -> bool:
    return plan.env.container is not None and plan.env.container_runtime == Runtime.pyxis.value


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
