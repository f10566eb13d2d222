"""The keys about trackers. Pure."""

from __future__ import annotations

from typing import Any

from launcher.config.schema import Config
from launcher.errors import ConfigError, near

KNOWN = ("tensorboard", "mlflow", "wandb")  # each is also the name of its package, and of our extra that installs it


def fields_of(config: Config, run_id: str) -> dict[str, Any]:
    """The fields of a plan about tracking. Pure.

    Args:
        config: the config.
        run_id: the run's id; the points of a sweep are SWEEP/N, and share an experiment.

    Raises:
        ConfigError: there is no such tracker.
    """
    wanted = config.track if isinstance(config.track, list) else [] if config.track is None else [config.track]
    for name in wanted:
        if name not in KNOWN:
            raise ConfigError(
                f"track={name}: there is no such tracker.{near(str(name), KNOWN)} Use {', '.join(KNOWN)} or a list of "
                f"them: 'track=[{','.join(KNOWN)}]'"
            )
    sweep, point, _ = run_id.partition("/")
    keys = config.tracking
    return {
        "track": tuple(dict.fromkeys(wanted)),
        "tracking_experiment": keys.experiment or (sweep if point else config.name),
        "tracking_uri": keys.uri,
        "tracking_dir": keys.dir,
        "tracking_project": keys.project,
        "tracking_entity": keys.entity,
        "tracking_mode": keys.mode.value if keys.mode else None,
    }
