"""Parses the hosts of a job from its PE_HOSTFILE."""

from __future__ import annotations


def hosts_of(pe_hostfile: str) -> list[str]:
    """Returns the distinct hosts of a job in the order of the file; the first one runs the job script.

    Args:
        pe_hostfile: text of the file, with a line `HOST SLOTS QUEUE PROCESSORS` for each host and queue.
    """
    return list(dict.fromkeys(line.split()[0] for line in pe_hostfile.splitlines() if line.strip()))
