"""The lease of a run keeps two attempts of it from running at the same time.

The job script takes the lease (templates/parts/lease.sh.j2) and writes its job id and attempt into it. An attempt may
lose the lease without noticing (its node was cut off, say), so code that writes results or checkpoints calls `require`
first.
"""

from __future__ import annotations

import os

from launcher.files.shared_files import read_text, unwrap
from launcher.runs import directory
from launcher.runs.event_writer import current_attempt

HEARTBEAT = 15  # seconds between two heartbeats of the job that holds a lease
POLL = 2  # seconds between two checks by a job that waits for a lease
TIMEOUT = 90  # seconds without a heartbeat until a lease is taken over; NFS shows times up to 60 s late


class LeaseLost(directory.RunError):
    """This attempt no longer holds the run's lease."""


def require() -> None:
    """Checks that this attempt holds the run's lease. In a process outside of a run it does nothing.

    | the lease | result |
    |---|---|
    | names this job and attempt | returns |
    | names another attempt, is empty, or does not exist | LeaseLost |
    | cannot be read (EIO, ESTALE, ...) | retried for a minute, then UnavailableError |

    Raises:
        LeaseLost: another attempt holds the lease, or none does.
        UnavailableError: the lease cannot be read now.
    """
    attempt, lease = current_attempt(), os.environ.get("LAUNCHER_LEASE")
    if attempt is None or lease is None:
        return
    holder = (unwrap(read_text(lease)) or "").split()  # without hard links, LAUNCHER_LEASE is not RUN/lease
    if holder[:2] != [os.environ.get("LAUNCHER_JOB_ID"), str(attempt.number)]:
        other = f"attempt {holder[1]} (job {holder[0]})" if len(holder) > 1 else "nobody"
        raise LeaseLost(
            f"attempt {attempt.number} has lost the run, whose lease {other} holds now: it writes nothing more"
        )
