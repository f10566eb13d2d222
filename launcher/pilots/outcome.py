"""Decides from a point's exit code what its log says next: done, failed, released for a retry, ..."""

from __future__ import annotations

from launcher import errors
from launcher.runs.claims import Kind


def outcome(
    code: int, *, stopping: bool = False, cancelled: bool = False, stopped: bool = False, pruned: bool = False,
    spent: bool = False,
) -> Kind:  # fmt: skip
    """Returns the entry for a point's log after its attempt has ended. The first row that applies decides.

    | exit code | condition | entry |
    |---|---|---|
    | 0 | any | done |
    | any but 0 | the point, or the sweep, was cancelled | cancelled |
    | any but 0 | it was pruned | pruned |
    | 93 | any | fatal: a retry would fail too |
    | 75 | RUN/stop exists | stopped |
    | 75, or any if its slot manager has stopped it | it has had `resume.max_attempts` attempts | fatal |
    | 75, or any if its slot manager has stopped it | otherwise | released: it will be retried |
    | any other, or a signal | any | failed |

    Args:
        code: exit code of the attempt; negative: the signal that killed it.
        stopping: whether its slot manager has stopped it together with all its other points.
        cancelled: whether the point or the sweep was cancelled.
        stopped: whether RUN/stop exists.
        pruned: whether the search has pruned the point.
        spent: whether the point has had `resume.max_attempts` attempts.
    """
    if code == errors.DONE:
        return Kind.DONE
    if cancelled:
        return Kind.CANCELLED
    if pruned:
        return Kind.PRUNED
    if code == errors.NO_RETRY:
        return Kind.FATAL
    if code == errors.RESUME and stopped:
        return Kind.STOPPED
    if code == errors.RESUME or stopping:
        return Kind.FATAL if spent else Kind.RELEASED
    return Kind.FAILED
