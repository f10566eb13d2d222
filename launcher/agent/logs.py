"""Names of the files that ranks write to."""

from __future__ import annotations


def log_name(rank: int | str, round_number: int, kind: str) -> str:
    """Returns `rank-3.out`, or `rank-3.round-1.out` for later rounds, which keep the earlier files. Pure."""
    return f"rank-{rank}.round-{round_number}.{kind}" if round_number else f"rank-{rank}.{kind}"
