"""The names of operations, patterns, groups and types in a config, and which backends have an operation.

Free of torch, so that the login node can check them before a submission.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from launcher.errors import near

OPERATIONS = (
    "all_reduce",
    "broadcast",
    "reduce",
    "all_gather",
    "gather",
    "scatter",
    "reduce_scatter",
    "all_to_all",
    "all_to_all_v",
    "barrier",
    "send_recv",
)
PATTERNS = ("pingpong", "bandwidth", "bidirectional", "send", "isend", "batched", "ring", "fanout", "matrix")
GROUPS = ("world", "node", "stride")
REDOPS = ("sum", "prod", "min", "max", "avg")
PLACES = ("both", "out", "in")
REDUCING = ("all_reduce", "reduce", "reduce_scatter")
IN_PLACE_ONLY = ("all_reduce", "broadcast", "reduce")  # torch.distributed has one buffer for these
OUT_OF_PLACE_ONLY = ("all_to_all", "all_to_all_v", "barrier", "send_recv")
DTYPES = ("float32", "float16", "bfloat16", "float64", "int32", "int64", "int8")
ALL = "all"


def choose(what: str, chosen: str | Iterable[str], known: Sequence[str]) -> tuple[str, ...]:
    """Returns the names that a config chooses, without duplicates; all known names for `all`.

    what: what is chosen, for errors: operation, pattern, group.
    chosen: `all`, a comma-separated text, or several texts.
    Raises ValueError: nothing is chosen, or a name is unknown; the text suggests similar known names.
    """
    names = _names(chosen)
    if not names:
        raise ValueError(f"no {what} is chosen: choose {ALL} or some of {', '.join(known)}")
    for name in names:
        if name not in known and name != ALL:
            those = [ALL, *known]
            raise ValueError(f"{name!r} is no {what}; known are {', '.join(those)}.{near(name, those)}")
    return tuple(known) if ALL in names else tuple(dict.fromkeys(names))


def chooses_all(chosen: str | Iterable[str]) -> bool:
    """Returns whether `all` is among the chosen names."""
    return ALL in _names(chosen)


def _names(chosen: str | Iterable[str]) -> list[str]:
    texts = [chosen] if isinstance(chosen, str) else list(chosen)
    return [name.strip() for text in texts for name in text.split(",") if name.strip()]


def choose_one(what: str, name: str, known: Sequence[str]) -> str:
    """Returns the name in a key that takes exactly one.

    Raises ValueError: the name is unknown; the text suggests similar known names.
    """
    if name not in known:
        raise ValueError(f"{name!r} is no {what}; known are {', '.join(known)}.{near(name, known)}")
    return name


def places_of(operation: str, place: str) -> tuple[str, ...]:
    """Returns the places in which an operation is measured: `out` (of place) and `in` (place), one of them, or none.

    operation: the operation; some have only one place in torch.distributed.
    place: `workload.place`: both, out or in.
    """
    has = ("in",) if operation in IN_PLACE_ONLY else ("out",) if operation in OUT_OF_PLACE_ONLY else ("out", "in")
    return tuple(each for each in has if place in ("both", each))


def backends_for(operation: str, dtype: str, redop: str) -> tuple[str, ...]:
    """Returns the backends that have an operation for a type.

    Sources: the table in the documentation of torch.distributed. gloo's avg divides a sum, which torch does for
    floating-point types only. torch's ProcessGroupMPI has no 16-bit floats, no reduce_scatter and no avg.

    redop: reduction; ignored if the operation does not reduce.
    """
    averaging = operation in REDUCING and redop == "avg"
    has = {
        "gloo": not (averaging and dtype.startswith("int")),
        "nccl": True,
        "xccl": True,  # the ranks find out which operations it lacks
        "mpi": not (averaging or operation == "reduce_scatter" or dtype in ("float16", "bfloat16")),
    }
    return tuple(backend for backend, there in has.items() if there)
