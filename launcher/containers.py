"""Ranks in a container, seen from the login node: what is checked, and the words of the script. Pure but for `checked`.

| runtime | the script starts on each node | which |
|---|---|---|
| apptainer, singularity, enroot, auto | `python -m launcher.node.container RUN` | looks for the image, and enters it |
| pyxis | `srun --container-image=... env ... python3 -m launcher.node RUN` | needs the launcher's Python nowhere |
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.config import Config, Env, Runtime
from launcher.errors import ConfigError
from launcher.node import container

if TYPE_CHECKING:
    from launcher.plan import JobPlan

SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://")


def fields_of(config: Config, starter: str | None) -> dict[str, Any]:
    """The fields of a plan.

    Raises:
        ConfigError: the keys do not go together.
    """
    env = config.env
    given = [f"env.{name}" for name in ("activate", "archive", "container") if getattr(env, name) is not None]
    if len(given) > 1:
        raise ConfigError(
            f"{' and '.join(given)}: ranks run in one of them, so leave the other out (env.python names an interpreter "
            "within a container)"
        )
    if env.container is None:
        for key, default in (("container_args", []), ("binds", []), ("container_runtime", Runtime.auto)):
            if getattr(env, key) != default:
                raise ConfigError(f"env.{key} is for a container: set env.container too, or leave it out")
        return {}
    if env.container_runtime is Runtime.pyxis and starter != "srun":
        raise ConfigError(
            "env.container_runtime=pyxis is a plug-in of srun, and srun does not start this run: use apptainer"
        )
    for bind in env.binds:
        if not bind.startswith("/") or "," in bind or bind.count(":") > 2:
            raise ConfigError(f"env.binds: {bind!r} is not /SOURCE, /SOURCE:/TARGET or /SOURCE:/TARGET:ro")
    return {
        "container": env.container, "container_runtime": env.container_runtime.value, "binds": tuple(env.binds),
        "container_args": tuple(env.container_args), "container_python": env.python,
    }  # fmt: skip


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
    if env.container_runtime is Runtime.pyxis and not is_path:
        return image, ()  # a name such as nvcr.io#nvidia/pytorch:25.01-py3
    path = Path(os.path.normpath(os.path.join(os.getcwd(), os.path.expanduser(image))))
    if path.exists():
        if not os.access(path, os.R_OK):
            raise ConfigError(f"{key} cannot be read: chmod u+r {path}")
        return str(path), ()
    if path.parent.is_dir():
        raise ConfigError(f"{key}: there is no {path.name} in {path.parent}: make the image first (apptainer build)")
    return str(path), (f"{key} is not seen from here, and not looked for: nodes have to see it",)


def node_command(plan: JobPlan) -> list[str]:
    """What the script starts on each node, but for the run directory."""
    if plan.archive is not None:
        return [plan.python, "-m", "launcher.node.archive"]
    if plan.container is None:
        return [plan.node_python, "-u", "-m", "launcher.node"]
    if plan.container_runtime != Runtime.pyxis.value:
        return [plan.python, "-m", "launcher.node.container"]
    # pyxis carries the whole environment in, and lets the image's own variables win.
    unset = [word for name in container.BREAKING for word in ("-u", name)]
    given = [f"{name}={value}" for name, value in container.ours(plan).items()]
    return ["env", *unset, *given, plan.container_python, "-u", "-m", "launcher.node"]


def srun_options(plan: JobPlan) -> list[str]:
    """Arguments of srun, for pyxis."""
    if plan.container is None or plan.container_runtime != Runtime.pyxis.value:
        return []
    return [
        f"--container-image={plan.container}",
        f"--container-mounts={','.join(_mounts([*container.folders(plan), *plan.binds]))}",
        f"--container-workdir={plan.workdir}",
        *plan.container_args,
    ]


def _mounts(binds: Sequence[str]) -> list[str]:
    """pyxis wants a target too."""
    return [bind if ":" in bind else f"{bind}:{bind}" for bind in binds]
