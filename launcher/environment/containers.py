"""Checks a run's container at submission, and makes the commands of the job script for it. Pure except `checked`.

| runtime | the script starts on each node | how it works |
|---|---|---|
| apptainer, singularity, enroot, auto | `container_command RUN` | checks the image, and starts the container |
| pyxis | `srun --container-image=... python3 -m launcher.agent RUN` | needs no Python of the launcher on nodes |
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.config.schema import Env, Runtime
from launcher.environment import container_command
from launcher.environment.programs import SetupLine
from launcher.errors import ConfigError
from launcher.failures.codes import SetupPart
from launcher.own_module import own_module

if TYPE_CHECKING:
    from launcher.spec.plan import JobPlan

SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://")


def checked(env: Env, *, here: bool = False) -> tuple[str, tuple[str, ...]]:
    """Checks env.container. Returns the image (as an absolute path if it is a file), and notes for the user.

    An image in a folder that does not exist on this machine is not checked, unless the run is `here`.
    Raises ConfigError: the image is not in its folder, cannot be read, or is not on this machine with `here`.
    """
    image = str(env.container)
    key = f"env.container={image}"
    if SCHEME.match(image):
        note = f"{key} is downloaded by each node: for many nodes, make it a file first (apptainer pull)"
        return image, (note,)
    is_path = image.startswith(("/", "~", ".")) or image.endswith((".sif", ".sqsh", ".img"))
    if env.container_runtime in (Runtime.pyxis, Runtime.enroot) and not is_path:
        return image, ()  # a name such as nvcr.io#nvidia/pytorch:25.01-py3, or of a container that enroot has made
    path = Path(os.path.normpath(os.path.join(os.getcwd(), os.path.expanduser(image))))
    if path.exists():
        if not os.access(path, os.R_OK):
            raise ConfigError(f"{key} cannot be read: chmod u+r {path}")
        return str(path), ()
    if path.parent.is_dir():
        raise ConfigError(f"{key}: there is no {path.name} in {path.parent}: make the image first (apptainer build)")
    if here:
        raise ConfigError(f"env.container={path} is not there")
    return str(path), (f"{key} is not visible on this machine, and was not checked: the nodes need it",)


def node_command(plan: JobPlan) -> list[str]:
    """Returns the command, but for the run directory, that starts on each node; raises ConfigError."""
    if plan.env.archive is not None:
        return [plan.python, *own_module("launcher.environment.unpack_on_node")]
    if plan.env.container is None:
        return [plan.node_python, "-u", *own_module("launcher.agent")]
    for folder in container_command.folders(plan):
        if "," in folder or ":" in folder:
            raise ConfigError(
                f"{folder} is bound into env.container, and the path of such a folder cannot have a comma or a colon: "
                "choose another one"
            )
    if _pyxis(plan):
        return [*container_command.python_inside(plan), *own_module("launcher.agent")]
    return [plan.python, *own_module("launcher.environment.container_command")]


def setup_lines(plan: JobPlan) -> list[SetupLine]:
    """Returns the set-up lines that create the folders for pyxis to mount; none for other runtimes."""
    return [
        SetupLine(f"(umask 077 && mkdir -p {shlex.quote(folder)})", SetupPart.FOLDER, name=folder)
        for folder in (container_command.folders_to_make(plan) if _pyxis(plan) else [])
    ]


def before_srun(plan: JobPlan) -> list[str]:
    """Returns the command to put before srun for pyxis (`env -u NAME ...`), which removes variables about the host.

    pyxis passes the whole environment. The variables are removed outside of the container, since inside of it they may
    have the image's values. Without pyxis the result is empty.
    """
    if not _pyxis(plan):
        return []
    hosts = [
        name for name in container_command.BREAKING if name == "PYTHONPATH" or name not in plan.cluster.environment
    ]
    return ["env", *(word for name in hosts for word in ("-u", name))]


def srun_options(plan: JobPlan) -> list[str]:
    """Returns srun's options for pyxis; none for other runtimes."""
    if not _pyxis(plan):
        return []
    return [
        f"--container-image={plan.env.container}",
        f"--container-mounts={','.join(container_command.mounts([*container_command.folders(plan), *plan.env.binds]))}",
        f"--container-workdir={plan.workdir}",
        *plan.env.container_args,
    ]


def _pyxis(plan: JobPlan) -> bool:
    return plan.env.container is not None and plan.env.container_runtime == Runtime.pyxis.value
