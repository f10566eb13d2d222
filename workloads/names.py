"""The names that a config may use for operations, patterns, groups and types. Free of torch, so that the login node can
check them before anything is submitted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

OPERATIONS = (
    "all_reduce",
    "broadcast",
    "reduce",
    "all_gather",
    "gather",
    "scatter",
    "reduce_scatter",
    "all_to_all",
    "barrier",
)
PATTERNS = ("send", "isend", "batched", "ring")
GROUPS = ("world", "node", "stride")
DTYPES = ("float32", "float16", "bfloat16", "float64", "int32", "int64", "int8")
ALL = "all"


def choose(what: str, chosen: str | Iterable[str], known: Sequence[str]) -> tuple[str, ...]:
    """The chosen ones of the `known` names: `all`, a comma-separated text, or several texts; doubles count once.

    Raises:
        ValueError: nothing is chosen, or a name is unknown; the text has the nearest known names.
    """
    texts = [chosen] if isinstance(chosen, str) else list(chosen)
    names = [name.strip() for text in texts for name in text.split(",") if name.strip()]
    if not names:
        raise ValueError(f"no {what} is chosen: choose {ALL} or some of {', '.join(known)}")
    for name in names:
        if name not in known and name != ALL:
            close = get_close_matches(name, [ALL, *known], n=3, cutoff=0.5)
            hint = f" Did you mean {' or '.join(close)}?" if close else ""
            raise ValueError(f"{name!r} is no {what}; known are {ALL}, {', '.join(known)}.{hint}")
    return tuple(known) if ALL in names else tuple(dict.fromkeys(names))


def choose_one(what: str, name: str, known: Sequence[str]) -> str:
    """The same for a key that takes exactly one name.

    Raises:
        ValueError: the name is unknown.
    """
    if name not in known:
        close = get_close_matches(name, known, n=3, cutoff=0.5)
        hint = f" Did you mean {' or '.join(close)}?" if close else ""
        raise ValueError(f"{name!r} is no {what}; known are {', '.join(known)}.{hint}")
    return name
