"""What becomes of a point after its process has ended. Pure."""

from __future__ import annotations

from launcher import errors
from launcher.runs.claims import Kind


def outcome(
    code: int, *, stopping: bool = False, cancelled: bool = False, stopped: bool = False, pruned: bool = False,
    spent: bool = False,
) -> Kind:  # fmt: skip
    """The entry of the point's log; the first row that applies decides.

    | the exit code | | the entry |
    |---|---|---|
    | 0 | | done |
    | any other | the point, or the sweep, was cancelled | cancelled |
    | | it was pruned | pruned |
    | 93 | | fatal: a retry would fail too |
    | 75 | RUN/stop | stopped |
    | | it has had as many attempts as it may | fatal |
    | | otherwise | released |
    | another one, or a signal | its manager stopped it: it could not save, and begins anew | released |
    | | otherwise | failed |

    Args:
        code: of the attempt; negative: the signal that killed it.
        stopping: its slot manager has stopped it, together with all others.
        cancelled, stopped, pruned: it was asked to end for that reason.
        spent: it has had `resume.max_attempts` attempts.
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
