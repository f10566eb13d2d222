"""Names of the files that ranks write to."""

from __future__ import annotations


def log_name(rank: int | str, round_number: int, kind: str) -> str:
    """Returns a file name such as `rank-3.out`, or `rank-3.round-1.out` for rounds after round 0.

    round_number: index of the round, from 0.
    kind: ending of the name: `out`, `err`, `error.json` or `stacks`.
    """
    return f"rank-{rank}.round-{round_number}.{kind}" if round_number else f"rank-{rank}.{kind}"
