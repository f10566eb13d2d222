"""The environment for a job of PBS. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from launcher.schedulers.job_environment import Scrubbed, scrubbed

# What PBS sets anew in each job: a folder on each node, its own word on CPUs, and where it is.
SET_ANEW = {"TMPDIR", "NCPUS", "ENVIRONMENT"}


def pbs_environment(environ: Mapping[str, str]) -> Scrubbed:
    """The environment for a job of PBS, without what PBS sets anew."""
    # Inside of a job it is that job's number of CPUs, elsewhere the user's wish.
    threads = {"OMP_NUM_THREADS"} if "PBS_JOBID" in environ else set()
    return scrubbed(environ, own=SET_ANEW | threads)
