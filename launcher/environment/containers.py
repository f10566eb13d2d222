"""Ranks in a container, seen from the login node: what is checked, and the words of the script. Pure but for `checked`.

| runtime | the script starts on each node | which |
|---|---|---|
| apptainer, singularity, enroot, auto | `container_command RUN` | looks for the image, and enters it |
| pyxis | `srun --container-image=... python3 -m launcher.agent RUN` | needs the launcher's Python nowhere |
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.config.schema import Env, Runtime
from launcher.environment import container_command
from launcher.environment.setup_line import SetupLine
from launcher.errors import ConfigError
from launcher.failures.codes import SetupPart
from launcher.own_module import own_module

if TYPE_CHECKING:
    from launcher.spec.plan import JobPlan

SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://")


def checked(env: Env) -> tuple[str, tuple[str, ...]]:
    """The image by its whole path, if it is a file, and what the user should know.

    Raises:
        ConfigError: it is not there, although its place is seen from here.
    """
    image = str(env.container)
    key = f"env.container={image}"
    if SCHEME.match(image):
        told = f"{key} is fetched by every node on its own: for many nodes, make it a file first (apptainer pull)"
        return image, (told,)
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
    return str(path), (f"{key} is not seen from here, and not looked for: nodes have to see it",)


def node_command(plan: JobPlan) -> list[str]:
    """What the script starts on each node, but for the run directory.

    Raises:
        ConfigError: a folder of the run cannot be seen in a container.
    """
    if plan.archive is not None:
        return [plan.python, *own_module("launcher.environment.unpack_on_node")]
    if plan.container is None:
        return [plan.node_python, "-u", *own_module("launcher.agent")]
    for folder in container_command.folders(plan):
        if "," in folder or ":" in folder:
            raise ConfigError(
                f"{folder} is seen inside of env.container, and the name of such a folder cannot have a comma or a "
                "colon: choose another one"
            )
    if _pyxis(plan):
        return [*container_command.python_inside(plan), *own_module("launcher.agent")]
    return [plan.python, *own_module("launcher.environment.container_command")]


def setup_lines(plan: JobPlan) -> list[SetupLine]:
    """Shell lines for pyxis: a folder that is not there cannot be mounted."""
    return [
        SetupLine(f"mkdir -p -m 700 {shlex.quote(folder)}", SetupPart.FOLDER, name=folder)
        for folder in (container_command.made(plan) if _pyxis(plan) else [])
    ]


def before_srun(plan: JobPlan) -> list[str]:
    """Words in front of srun. pyxis carries the whole environment in, where the image's own variables win.

    Outside, for inside they may be the image's own.
    """
    if not _pyxis(plan):
        return []
    hosts = [name for name in container_command.BREAKING if name == "PYTHONPATH" or name not in plan.environment]
    return ["env", *(word for name in hosts for word in ("-u", name))]


def srun_options(plan: JobPlan) -> list[str]:
    """Arguments of srun, for pyxis."""
    if not _pyxis(plan):
        return []
    return [
        f"--container-image={plan.container}",
        f"--container-mounts={','.join(container_command.mounts([*container_command.folders(plan), *plan.binds]))}",
        f"--container-workdir={plan.workdir}",
        *plan.container_args,
    ]


def _pyxis(plan: JobPlan) -> bool:
    return plan.container is not None and plan.container_runtime == Runtime.pyxis.value
