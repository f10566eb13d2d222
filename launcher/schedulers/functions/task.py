"""The program of each task, which calls the function.

    python -m launcher.schedulers.functions.task FOLDER [--merge-output]

FOLDER is submitit's folder. With --merge-output, stderr goes to the log file of stdout.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from launcher import errors
from launcher.files.shared_files import exists, is_transient, unwrap
from launcher.processes import guard
from launcher.runs.directory import require_private
from launcher.schedulers import registry
from launcher.schedulers.functions.environment import link_as
from launcher.schedulers.functions.scheduler import FIRST_JOB

if TYPE_CHECKING:
    from submitit.core.utils import JobPaths


def main(folder: str, *options: str) -> int:
    """Calls the submitted function, redirects its output to submitit's log files, and writes its result.

    Returns:
        DONE, or NO_RETRY or RESUME of launcher/errors.py if the folder is not usable or not readable now.

    Raises:
        Exception: the exception of the function, after submitit has written it as the job's result.
    """
    guard.start()
    os.umask(int(os.environ["LAUNCHER_UMASK"], 8))  # the starter of several tasks has another umask
    # Lazily: submitit takes 45 ms, and the guard comes first
    from submitit.core import plugins
    from submitit.core.submission import process_job
    from submitit.core.utils import JobPaths

    executor = registry.function_executor(os.environ["SUBMITIT_EXECUTOR"])
    environment, own_job = executor.environment(), os.environ["LAUNCHER_OWN_JOB"]
    plugins.get_job_environments()[executor.name()] = environment  # type: ignore[index]  # submitit knows it from an entry point only
    os.environ["SUBMITIT_FOLDER"] = folder
    paths = environment.paths
    try:
        require_private(JobPaths.get_first_id_independent_folder(folder))
    except (errors.RunError, OSError) as error:
        print(f"launcher: {environment.hostname}: {error}", file=sys.stderr)
        return errors.RESUME if is_transient(error) else errors.NO_RETRY
    paths.folder.mkdir(parents=True, exist_ok=True)
    _redirect(paths, merged="--merge-output" in options)
    if environment.global_rank == 0 and FIRST_JOB in os.environ:
        environment.record_resubmission(own_job)
    _clear_up(paths, first=environment.global_rank == 0)
    if FIRST_JOB not in os.environ:
        _name_payload(paths, executor.scheduler.array_of(own_job))
    sys.path.insert(0, os.getcwd())  # from here on the user's code is imported; see `own_module`
    process_job(folder)
    return errors.DONE


def _redirect(paths: JobPaths, *, merged: bool) -> None:
    for descriptor, path in ((1, paths.stdout), (2, paths.stdout if merged else paths.stderr)):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(file, descriptor)
        os.close(file)


def _name_payload(paths: JobPaths, job: str) -> None:
    # While the payload has its first name, also writes the job's id to a file, where a submitting process that lost the
    # scheduler's reply finds it.
    payload = Path(os.environ["LAUNCHER_PAYLOAD"])
    if unwrap(exists(payload)):
        Path(os.environ["LAUNCHER_SCRIPT"]).with_suffix(".job").write_text(job)
    if not unwrap(exists(paths.submitted_pickle)):
        with contextlib.suppress(FileNotFoundError):  # the submitter does it at the same time
            link_as(payload, paths.submitted_pickle)


def _clear_up(paths: JobPaths, *, first: bool) -> None:
    # submitit removes a file before it renames its new version. So if only the new version exists, it is complete and
    # is renamed here.
    Path(f"{paths.result_pickle}.save_tmp").unlink(missing_ok=True)
    left = Path(f"{paths.submitted_pickle}.save_tmp")
    if first and unwrap(exists(left)):
        if unwrap(exists(paths.submitted_pickle)):
            left.unlink()
        else:
            left.rename(paths.submitted_pickle)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
