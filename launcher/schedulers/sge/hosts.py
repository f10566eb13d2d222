"""The hosts of a job, from the file that PE_HOSTFILE names. Pure."""

from __future__ import annotations


def hosts_of(pe_hostfile: str) -> list[str]:
    """Returns the distinct hosts of a job in the order of the file; the first one runs the script.

    Args:
        pe_hostfile: a line `HOST SLOTS QUEUE PROCESSORS` for each host, or for each of its queues.
    """
    return list(dict.fromkeys(line.split()[0] for line in pe_hostfile.splitlines() if line.strip()))
