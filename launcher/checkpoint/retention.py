"""Decides which checkpoints to keep, and which checkpoint is the newest.

A lineage is all that one training has saved in all of its attempts: a checkpoint has the lineage id of the checkpoint
that its training had loaded. The checkpoint with the highest step need not be the newest: a training may have gone back
to an earlier checkpoint, or to the beginning. So each checkpoint has a sequence number, higher by one than the highest
in its folder before.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from launcher.checkpoint.format import Manifest


def age(manifest: Manifest) -> tuple[int, int]:
    """Returns the sort key of a checkpoint by its publication. Checkpoints without a sequence (format 1) come first."""
    return manifest.sequence, manifest.step


def newest_first(manifests: Iterable[Manifest]) -> list[Manifest]:
    """Returns the manifests in the order of publication, newest first."""
    return sorted(manifests, key=age, reverse=True)


def best_of(manifests: Iterable[Manifest], best: str | None, best_is: str = "max") -> Manifest | None:
    """Returns the checkpoint with the best value of a metric, of several the newest.

    best: name of the metric; None: the result is None.
    best_is: which value is the best: `max` or `min`.
    Returns the manifest; None if no checkpoint has a finite value of the metric.
    """
    if best is None:
        return None
    sign = 1 if best_is == "max" else -1
    rated = [
        (sign * value, age(each), each) for each in manifests if (value := _number(each.metrics.get(best))) is not None
    ]
    return max(rated, key=lambda entry: entry[:2])[2] if rated else None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def kept(manifests: Iterable[Manifest], keep: int, best: str | None = None, best_is: str = "max") -> set[int]:
    """Returns the steps of the checkpoints to keep: the newest `keep`, and the best.

    keep, best, best_is: see `folder.Retention`.
    """
    known = newest_first(manifests)
    champion = best_of(known, best, best_is)
    return {manifest.step for manifest in known[:keep]} | ({champion.step} if champion else set())


def surplus(
    known: Mapping[Path, Manifest], published: Manifest, keep: int, best: str | None = None, best_is: str = "max"
) -> set[Path]:
    """Returns the checkpoints to remove after one was published.

    | the checkpoint | result |
    |---|---|
    | could not be read, or is not sound | stays: it is not in `known` |
    | is of another lineage | stays |
    | was just published | stays |
    | is one of the newest `keep` of its lineage, or its best | stays |
    | any other | is removed |

    keep, best, best_is: see `folder.Retention`.
    """
    own = {path: manifest for path, manifest in known.items() if manifest.lineage == published.lineage}
    stay = kept(own.values(), keep, best, best_is) | {published.step}
    return {path for path, manifest in own.items() if manifest.step not in stay}
