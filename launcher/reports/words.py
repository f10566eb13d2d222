"""Formats numbers, durations, rates and overrides as text for the page, and hides secrets in them."""

from __future__ import annotations

import html
from typing import Any

from launcher.escapes import clean
from launcher.formatting import number
from launcher.redaction import HIDDEN, is_secret, public


def value(anything: Any) -> str:
    """Returns a value of a config or of a result as text; `-` for None."""
    if anything is None:
        return "-"
    if isinstance(anything, bool):
        return str(anything).lower()
    if isinstance(anything, float):
        return number(anything)
    return str(anything)


def short(text: str, most: int = 24) -> str:
    """Returns a text cut to at most `most` characters; a cut text ends with `…`."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def span(seconds: float) -> str:
    """Returns a duration as text: `0.4 s`, `12 s`, `3 min 20 s`, `5 h 02 min`, `2 d 03 h`."""
    if seconds < 9.95:
        return f"{max(0.0, seconds):.1f} s"
    whole = round(seconds)
    for size, unit, small, name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // small:02} {name}"
    return f"{whole} s"


def latency(seconds: float | None) -> str:
    """Returns a short time as text: `850 ns`, `12.3 µs`, `4.56 ms`, `1.2 s`; `-` for None."""
    if seconds is None:
        return "-"
    for unit, factor in (("ns", 1e9), ("µs", 1e6), ("ms", 1e3)):
        if seconds * factor < 999.5:
            return f"{_three(seconds * factor)} {unit}"
    return f"{_three(seconds)} s"


def rate(bytes_per_s: float | None) -> str:
    """Returns a data rate as text: `1.23 GB/s`; `-` for None. Units are powers of 1000, as in speeds of links."""
    if bytes_per_s is None:
        return "-"
    for unit, factor in (("B/s", 1.0), ("kB/s", 1e3), ("MB/s", 1e6), ("GB/s", 1e9)):
        if bytes_per_s < 999.5 * factor:
            return f"{_three(bytes_per_s / factor)} {unit}"
    return f"{_three(bytes_per_s / 1e12)} TB/s"


def change(now: float, before: float) -> str:
    """Returns the relative change from `before` to `now` as text: `+3.1 %`, `-12 %`."""
    percent = 100 * (now / before - 1)
    text = f"{abs(percent):.1f}" if abs(percent) < 9.95 else f"{abs(percent):,.0f}"
    return f"{'-' if percent < 0 else '+'}{text} %"


def _three(value: float) -> str:
    if value == int(value):
        return str(int(value))
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def plain(text: Any) -> str:
    """Returns text with HTML escaped, because plotly interprets some HTML in names, ticks and hover texts."""
    return html.escape(clean(str(text)), quote=False)


def redact_override(override: str) -> str:
    """Returns an override (`KEY=VALUE`); if a pattern of secrets matches it, with a placeholder for the value."""
    key, equals, text = override.partition("=")
    return f"{key}={HIDDEN if is_secret(override) else public(key, text)}" if equals else override


def override_value(key: str, text: str) -> str:
    """Returns the value (`text`) of the override of a key, or a placeholder if the key names a secret."""
    return public(key, text)


def flat(values: Any, prefix: str = "") -> dict[str, Any]:
    """Returns the values of nested dicts by dotted key (`a.b.c`). Secrets are replaced by a placeholder.

    prefix: the dotted key of `values`; empty at the top.
    """
    if not isinstance(values, dict) or not values:
        name = prefix.rpartition(".")[2]
        if isinstance(values, str):
            return {prefix: public(name, values)}
        return {prefix: HIDDEN if values is not None and is_secret(name) else values}
    return {
        key: each
        for name, inner in values.items()
        for key, each in flat(inner, f"{prefix}.{name}" if prefix else str(name)).items()
    }
