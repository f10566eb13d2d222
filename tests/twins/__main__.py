"""`make twins`: every site against its twin, as a table.

python -m tests.twins [SITE ...]
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.twins import check, rules

WIDTHS = (16, 10, 52, 6, 10, 6, 6)
HEAD = ("site", "scheduler", "rules", "runs", "refused", "init", "s")


def compare(name: str) -> tuple[tuple[str, ...], list[str]]:
    """The row of a site, and what differs."""
    site, began = rules.load(name), time.monotonic()
    good, wanted, problems = Counter[str](), Counter[str](), list[str]()
    with tempfile.TemporaryDirectory(prefix="twins-", dir="/tmp") as folder, check.twin(site, Path(folder)) as twin:
        for kind, compared in twin.checks():
            wanted[kind] += 1
            try:
                compared()
                good[kind] += 1
            except check.Differs as differs:
                problems.append(f"{name}: {differs}")
    counts = [f"{good[kind]} of {wanted[kind]}" for kind in ("runs", "refused", "init")]
    return (name, site.scheduler, site.told, *counts, f"{time.monotonic() - began:.0f}"), problems


def main(names: list[str]) -> int:
    problems: list[str] = []
    _print(HEAD)
    for name in names or rules.sites():
        row, its = compare(name)
        _print(row)
        problems += its
    print("\n".join(problems))
    return 1 if problems else 0


def _print(row: tuple[str, ...]) -> None:
    print("  ".join(f"{cell:<{width}}" for cell, width in zip(row, WIDTHS, strict=True)).rstrip(), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
