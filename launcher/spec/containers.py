"""Checks the keys about containers."""

from __future__ import annotations

from launcher.config.schema import Env, Runtime
from launcher.errors import ConfigError


def check(env: Env, starter: str | None) -> None:
    """Raises ConfigError if keys of `env` exclude each other, with what starts tasks (None: this machine)."""
    given = [f"env.{name}" for name in ("activate", "archive", "container") if getattr(env, name) is not None]
    if len(given) > 1:
        raise ConfigError(
            f"{' and '.join(given)}: ranks run in only one of them: leave the others out (env.python names an "
            "interpreter in a container)"
        )
    if env.container is None:
        for key in ("container_args", "binds", "container_runtime", "python"):
            if getattr(env, key) != getattr(Env(), key):
                raise ConfigError(f"env.{key} is for a container: set env.container too, or leave it out")
        return
    if env.container_runtime is Runtime.pyxis and starter != "srun":
        raise ConfigError(
            "env.container_runtime=pyxis is a plug-in of srun, and srun does not start this run: use apptainer"
        )
    for bind in env.binds:
        if not bind.startswith("/") or "," in bind or bind.count(":") > 2:
            raise ConfigError(f"env.binds: {bind!r} is not /SOURCE, /SOURCE:/TARGET or /SOURCE:/TARGET:ro")
