"""Which checkpoint a run resumes from, and which ones are kept. Pure.

A lineage is what one training has saved in all of its attempts: each checkpoint has the lineage id of the one that its
training had loaded. A higher step is not always newer: a training that went back to an earlier checkpoint, or started
from the beginning, counts from there. So each checkpoint has a sequence number, one more than any in its folder before.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from launcher.checkpoint.format import Manifest


def age(manifest: Manifest) -> tuple[int, int]:
    """The sort key for the order of publication; checkpoints of old versions have no sequence, and come first."""
    return manifest.sequence, manifest.step


def newest_first(manifests: Iterable[Manifest]) -> list[Manifest]:
    return sorted(manifests, key=age, reverse=True)


def best_of(manifests: Iterable[Manifest], best: str | None, best_is: str = "max") -> Manifest | None:
    """The one with the best value of the metric, the newest of several; None if no checkpoint has a value for it."""
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
    """The steps to keep, of the sound checkpoints of one lineage: the newest `keep`, and the best."""
    known = newest_first(manifests)
    champion = best_of(known, best, best_is)
    return {manifest.step for manifest in known[:keep]} | ({champion.step} if champion else set())


def surplus(
    known: Mapping[Path, Manifest], published: Manifest, keep: int, best: str | None = None, best_is: str = "max"
) -> set[Path]:
    """The checkpoints to remove after one was published.

    | the checkpoint | result |
    |---|---|
    | could not be read, or is not sound | is not in `known`, and stays |
    | is of another lineage | stays |
    | was just published | stays |
    | is one of the newest `keep` of its lineage, or its best | stays |
    | any other | is removed |

    Args:
        known: the sound checkpoints of the folder.
        published: the new one.
        keep, best, best_is: see Checkpointer.
    """
    own = {path: manifest for path, manifest in known.items() if manifest.lineage == published.lineage}
    stay = kept(own.values(), keep, best, best_is) | {published.step}
    return {path for path, manifest in own.items() if manifest.step not in stay}
