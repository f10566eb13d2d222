"""The keys about trackers. Pure."""

from __future__ import annotations

from typing import Any

from launcher.config.schema import Config
from launcher.errors import ConfigError, near

KNOWN = ("tensorboard", "mlflow", "wandb")  # each is also the name of its package, and of our extra that installs it


def trackers(track: Any) -> tuple[str, ...]:
    """Those that the key `track` names, each once. Pure.

    Raises:
        ConfigError: there is no such tracker.
    """
    wanted = track if isinstance(track, list) else [] if track is None else [track]
    for name in wanted:
        if name not in KNOWN:
            raise ConfigError(
                f"track={name}: there is no such tracker.{near(str(name), KNOWN)} Use {', '.join(KNOWN)} or a list of "
                f"them: 'track=[{','.join(KNOWN)}]'"
            )
    return tuple(dict.fromkeys(wanted))


def experiment(config: Config, run_id: str) -> str:
    """The experiment of a run; the points of a sweep, whose ids are SWEEP/N, share one. Pure."""
    sweep, point, _ = run_id.partition("/")
    return config.tracking.experiment or (sweep if point else config.name)
