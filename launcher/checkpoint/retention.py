"""Which checkpoint a run goes on from, and which ones stay. Pure.

A lineage is what one training has saved, over all of its attempts: each checkpoint has the id of the one that it was
loaded from. Steps do not tell which is newer: a training that went back to an earlier checkpoint, or began anew, counts
from there. So each checkpoint also has a sequence number, one more than any that was in its folder before.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from launcher.checkpoint.format import Manifest


def age(manifest: Manifest) -> tuple[int, int]:
    """Sorts checkpoints by when they were published; those of older launchers have no sequence, and come first."""
    return manifest.sequence, manifest.step


def newest_first(manifests: Iterable[Manifest]) -> list[Manifest]:
    return sorted(manifests, key=age, reverse=True)


def best_of(manifests: Iterable[Manifest], best: str | None, best_is: str = "max") -> Manifest | None:
    """The one with the best value of the metric `best`, of equal ones the newest; None: none has a number for it."""
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
    """The steps that stay of these sound checkpoints of one lineage: the newest `keep`, and the best."""
    known = newest_first(manifests)
    champion = best_of(known, best, best_is)
    return {manifest.step for manifest in known[:keep]} | ({champion.step} if champion else set())


def surplus(
    known: Mapping[Path, Manifest], published: Manifest, keep: int, best: str | None = None, best_is: str = "max"
) -> set[Path]:
    """The checkpoints that go when one has been published.

    | checkpoint | |
    |---|---|
    | it could not be read, or is not sound | is not in `known`, and stays |
    | of another lineage | stays |
    | the one just published | stays |
    | of the newest `keep` of its lineage, or the best of it | stays |
    | others | go |

    Args:
        known: the sound checkpoints of the folder.
        published: the new one.
        keep, best, best_is: see Checkpointer.
    """
    own = {path: manifest for path, manifest in known.items() if manifest.lineage == published.lineage}
    stay = kept(own.values(), keep, best, best_is) | {published.step}
    return {path for path, manifest in own.items() if manifest.step not in stay}
