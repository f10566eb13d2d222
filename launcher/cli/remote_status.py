"""`status` of the clusters behind ssh: all are asked at once; one that does not answer is shown as it was seen last."""

from __future__ import annotations

import concurrent.futures
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.errors import ConfigError
from launcher.formatting import brief
from launcher.monitoring.sweep import LIVE, WAITING
from launcher.remote import clusters
from launcher.remote.clusters import RemoteCluster, Unreachable
from launcher.remote.command import call

BETWEEN = 15.0  # seconds between two questions to a cluster of `status --watch`

# Fields of a row that are computed with.
NUMBERS = (
    "nodes", "spares", "attempt", "step", "steps", "percent", "needs", "elapsed", "left", "checkpoint",
    "checkpoint_age", "updated",
)  # fmt: skip
TEXTS = ("job", "kind", "before", "cause")
WAIT = {"rank", "host", "where", "seconds"}  # of an entry of `breakpoints`


@dataclass(frozen=True)
class Answer:
    """What one cluster has answered."""

    cluster: RemoteCluster
    rows: tuple[dict[str, Any], ...]
    problem: str = ""  # why it has not answered; then the rows are what was seen last
    seen: float | None = None  # when that was, in seconds since the epoch; None: never

    @property
    def text(self) -> str:
        """A line about a cluster that has not answered."""
        when = (
            "nothing is known of its runs"
            if self.seen is None
            else f"its runs are as of {brief(time.time() - self.seen)} ago"
        )
        return f"This is incomplete: {self.problem}; {when}."


class RemoteRows:
    """The rows of `status` of all clusters behind ssh, asked at the same time, each at most every BETWEEN seconds."""

    def __init__(self, options: Sequence[str]) -> None:
        # Several profiles may lead to one launcher, which has the same runs for all.
        self._clusters = list({each.place: each for each in clusters.remote_clusters().values()}.values())
        self._words = ["status", "--json", *options]
        self._asked: list[concurrent.futures.Future[Answer]] = []
        self._when = float("-inf")

    def __bool__(self) -> bool:
        return bool(self._clusters)

    def ask(self) -> None:
        """Begins to ask all clusters, unless the last answers are new."""
        if self._clusters and time.monotonic() - self._when > BETWEEN:
            self._when = time.monotonic()
            with concurrent.futures.ThreadPoolExecutor(len(self._clusters)) as pool:
                self._asked = [pool.submit(self._answer, each) for each in self._clusters]
                pool.shutdown(wait=False)

    def answers(self) -> list[Answer]:
        """Returns the answers; waits for them."""
        return [each.result() for each in self._asked]

    def _answer(self, cluster: RemoteCluster) -> Answer:
        errors, text = list[str](), list[bytes]()
        try:
            if call(cluster, self._words, timeout=cluster.timeout, show=text.append, errors=errors.append):
                raise Unreachable(f"{cluster.name}: {' '.join(''.join(errors).split())}")
            rows = list(filter(_sound, json.loads(b"".join(text))))
        except (Unreachable, ConfigError, OSError, ValueError, TypeError, KeyError) as error:
            seen = clusters.last_seen(cluster)
            old = tuple(_before(row, cluster) for row in seen.rows)
            return Answer(cluster, old, str(error), seen.time or None)
        clusters.save_seen(cluster, rows)
        return Answer(cluster, tuple(_row(row, cluster) for row in rows))


def _sound(row: Any) -> bool:
    # What is computed with a row must not fail because of what another machine has sent
    if not isinstance(row, dict) or not all(isinstance(row.get(key), str) for key in ("run", "state")):
        return False
    points, waits = row.get("points") or {}, row.get("breakpoints") or []
    return (
        all(isinstance(row.get(key), int | float | None) for key in NUMBERS)
        and all(isinstance(row.get(key), str | None) for key in TEXTS)
        and isinstance(points, dict) and all(isinstance(each, int) for each in points.values())
        and isinstance(waits, list) and all(isinstance(each, dict) and each.keys() >= WAIT for each in waits)
    )  # fmt: skip


def _row(row: Mapping[str, Any], cluster: RemoteCluster) -> dict[str, Any]:
    points = row.get("points")
    over = row.get("state") not in LIVE if points is None else not {*LIVE, WAITING} & set(points)
    return {**row, "cluster": cluster.name, "remote": True, "over": over, "settled": True}


def _before(row: Mapping[str, Any], cluster: RemoteCluster) -> dict[str, Any]:
    # A run that was not over is in an unknown state
    shown = _row(row, cluster)
    if not shown["over"] and shown.get("points") is None and shown["state"] != "unknown":
        shown |= {"before": shown["state"], "state": "unknown"}
    return shown
