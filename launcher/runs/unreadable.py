"""Lists the damaged files of a run, and the invalid lines of its event files, for commands that show a single run."""

from __future__ import annotations

from launcher import bounds
from launcher.errors import RunError, UnavailableError
from launcher.files.run_files import open_regular
from launcher.files.shared_files import Outcome, Unavailable, Wrong, list_names, read_json, retry_read, unwrap
from launcher.runs import event_file
from launcher.runs.directory import GROWING, Attempt, Run

MAX_LINES = 20  # messages that are returned; further ones are only counted


def problems(run: Run, *, whole: bool = False) -> list[str]:
    """Returns messages for damaged files of a run and invalid lines of its events, at most MAX_LINES and one more.

    Of files that grow with the run only the beginning and the end are checked, unless `whole`.
    """
    found: list[str] = []
    for path in (f"{run.path}/result.json", f"{run.path}/results.json"):
        found += _wrong(read_json(path, bounds.RESULT_BYTES))
    for output in run.outputs():
        found += _wrong(retry_read(lambda output=output: open_regular(output).close(), output))  # type: ignore[misc]
    found += _of_events(f"{run.path}/journal.jsonl")
    for attempt in run.attempts():
        found += _of_attempt(attempt, whole)
    return found if len(found) <= MAX_LINES else [*found[:MAX_LINES], f"... and {len(found) - MAX_LINES} more"]


def _of_attempt(attempt: Attempt, whole: bool) -> list[str]:
    found: list[str] = []
    for folder in (attempt.path / "events", attempt.path / "pace"):
        for name in sorted(unwrap(list_names(folder)) or ()):
            grows = folder.name == "pace" or name.removesuffix(".jsonl") in GROWING
            if name.endswith(".jsonl"):
                found += _of_events(f"{folder}/{name}", ends=grows and not whole)
    return found


def _of_events(path: str, *, ends: bool = False) -> list[str]:
    try:
        return event_file.problems(path, ends=ends)
    except UnavailableError:
        raise
    except RunError as error:
        return [str(error)]


def _wrong(outcome: Outcome[object]) -> list[str]:
    if isinstance(outcome, Unavailable):
        raise UnavailableError(outcome.reason)
    return [outcome.reason] if isinstance(outcome, Wrong) else []
