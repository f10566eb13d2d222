"""Parses sizes of messages, sweeps over sizes, and time budgets. Pure and free of torch, so that the login node can
check them before a submission."""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Decimal

from launcher.units import parse_size

MOST = 1000  # most sizes of a sweep

_FACTOR = re.compile(r"\d+(?:\.\d+)?")
_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|min)", re.IGNORECASE)
_SECONDS = {"ms": Decimal("0.001"), "s": Decimal(1), "m": Decimal(60), "min": Decimal(60)}


def parse_sizes(value: object) -> tuple[int, ...]:
    """Parses `workload.sizes`, and returns the sizes in bytes, in the order written, without duplicates.

    value: a size (`1M`), a sweep `MIN:MAX:STEP`, or a list of both. STEP is a factor if it is a plain number (`8:1G:2`:
        8, 16, 32, ...), and an increment if it has a unit (`4M:64M:4M`, `8:64:8B`). `MIN:MAX` has the factor 2. MAX is
        included if a step reaches it exactly.
    Raises ValueError: a size is not valid or zero, MIN is larger than MAX, a factor is not above 1, or there are more
        than `MOST` sizes.
    """
    texts = list(value) if isinstance(value, Iterable) and not isinstance(value, str) else [value]
    sizes: dict[int, None] = {}
    for text in texts:
        sizes.update(dict.fromkeys(_sweep(str(text).strip())))
    if not sizes:
        raise ValueError("there is no size: write 1M, 8:1G:2 or a list of sizes")
    if len(sizes) > MOST:
        raise ValueError(f"{str(value)!r} is {len(sizes)} sizes, and {MOST} is the most: take a larger step")
    return tuple(sizes)


def _sweep(text: str) -> list[int]:
    first, *more = text.split(":")
    if not more:
        return [parse_size(first)]
    if len(more) > 2:
        raise ValueError(f"{text!r} is not MIN:MAX:STEP, such as 8:1G:2 or 4M:64M:4M")
    least, most = parse_size(first), parse_size(more[0])
    if least > most:
        raise ValueError(f"{text!r}: the first size is over the last: write {more[0]}:{first}{_rest(more)}")
    step = more[1].strip() if len(more) == 2 else "2"
    if _FACTOR.fullmatch(step):
        return _by_factor(text, least, most, Decimal(step))
    return _by_increment(text, least, most, parse_size(step))


def _rest(more: list[str]) -> str:
    return f":{more[1]}" if len(more) == 2 else ""


def _by_factor(text: str, least: int, most: int, factor: Decimal) -> list[int]:
    if factor <= 1:
        raise ValueError(
            f"{text!r}: a factor of {factor} leads nowhere: use 2, or an increment with a unit ({factor}B, 4M)"
        )
    sizes: list[int] = []
    exact = Decimal(least)
    while exact <= most:
        if len(sizes) > 2 * MOST:  # refused anyway; more than MOST, since small factors repeat sizes
            raise ValueError(f"{text!r} is more than {MOST} sizes: take a larger factor")
        sizes.append(int(exact))
        exact *= factor
    return sizes


def _by_increment(text: str, least: int, most: int, step: int) -> list[int]:
    count = (most - least) // step + 1
    if count > MOST:
        raise ValueError(f"{text!r} is {count} sizes, and {MOST} is the most: take a larger step")
    return list(range(least, most + 1, step))


def parse_seconds(text: object) -> float:
    """Parses a time such as `200ms`, `1.5s` or `2m`, and returns it in seconds.

    Raises ValueError: the text is not a time, or is zero.
    """
    match = _TIME.fullmatch(str(text).strip())
    if not match:
        raise ValueError(f"{str(text)!r} is not a time: write it as 200ms, 2s or 1m")
    seconds = float(Decimal(match[1]) * _SECONDS[match[2].lower()])
    if seconds == 0:
        raise ValueError(f"{str(text)!r} is zero: write it as 200ms, 2s or 1m")
    return seconds
