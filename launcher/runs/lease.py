"""Whoever holds the run's lease runs it: no two attempts of one run at once.

The job script takes it (templates/parts/lease.sh.j2) and writes its job and attempt into it. What must not be done by
an attempt that has lost the run, and has not noticed (its node was cut off, say), asks first.
"""

from __future__ import annotations

import os

from launcher.files.shared_files import read_text, unwrap
from launcher.runs import directory
from launcher.runs.event_writer import current_attempt


class LeaseLost(directory.RunError):
    """Another attempt has taken over the run."""


def require() -> None:
    """Does nothing while this attempt holds the run's lease, and outside of a run.

    | the lease | |
    |---|---|
    | names this job and attempt | is ours |
    | names another one, nobody, or is not there | LeaseLost |
    | cannot be read (EIO, ESTALE, ...) | is read again; after a minute UnavailableError: lost or not, nobody knows |

    Raises:
        LeaseLost: another attempt has it, or nobody.
        UnavailableError: nobody can tell.
    """
    attempt, lease = current_attempt(), os.environ.get("LAUNCHER_LEASE")
    if attempt is None or lease is None:
        return
    holder = (unwrap(read_text(lease)) or "").split()  # the attempt's own file where there are no hard links
    if holder[:2] != [os.environ.get("LAUNCHER_JOB_ID"), str(attempt.number)]:
        told = f"attempt {holder[1]} (job {holder[0]})" if len(holder) > 1 else "nobody"
        raise LeaseLost(
            f"attempt {attempt.number} has lost the run, whose lease {told} holds now: it writes nothing more"
        )
