"""Checks and resolves the keys about experiment trackers."""

from __future__ import annotations

from typing import Any

from launcher.config.schema import Config
from launcher.errors import ConfigError, near
from launcher.redaction import without_password

KNOWN = ("tensorboard", "mlflow", "wandb")  # also the names of the packages, and of our extras


def trackers(track: Any) -> tuple[str, ...]:
    """Returns the names in a value of the key `track`, each once; ConfigError: one is not in KNOWN."""
    names = track if isinstance(track, list) else [] if track is None else [track]
    for name in names:
        if name not in KNOWN:
            raise ConfigError(
                f"track={name}: there is no such tracker.{near(str(name), KNOWN)} Use {', '.join(KNOWN)} or a list of "
                f"them: 'track=[{','.join(KNOWN)}]'"
            )
    return tuple(dict.fromkeys(names))


def uri(config: Config) -> str | None:
    """Returns tracking.uri; ConfigError: it has a user or a password, which record, report and dry run would show."""
    given = config.tracking.uri
    if given is not None and without_password(given) != given:
        raise ConfigError(
            "tracking.uri has a user name or a password, and who sees the run's record or report would see it: leave "
            "it out, and set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD in the environment"
        )
    return given


def experiment(config: Config, run_id: str) -> str:
    """Returns a run's experiment in trackers: tracking.experiment, else a point's sweep id or a run's name."""
    sweep, point, _ = run_id.partition("/")
    return config.tracking.experiment or (sweep if point else config.name)
