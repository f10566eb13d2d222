"""What of a run's files could not be read, or does not fit, by name: commands that show one run say so."""

from __future__ import annotations

from launcher.errors import RunError, UnavailableError
from launcher.files.run_files import open_regular
from launcher.files.shared_files import Outcome, Unavailable, Wrong, list_names, read_json, retry_read, unwrap
from launcher.runs import event_file
from launcher.runs.directory import Attempt, Run

MOST = 20  # lines; of more the number is told


def of(run: Run) -> list[str]:
    """A line for each file, or line of a file, that is left out of what is shown of a run.

    Raises:
        UnavailableError: nobody can tell now.
    """
    found: list[str] = []
    for path in (f"{run.path}/result.json", f"{run.path}/results.json"):
        found += _wrong(read_json(path))
    for output in run.outputs():
        found += _wrong(retry_read(lambda output=output: open_regular(output).close(), output))  # type: ignore[misc]
    found += _of_events(f"{run.path}/journal.jsonl")
    for attempt in run.attempts():
        found += _of_attempt(attempt)
    return found if len(found) <= MOST else [*found[:MOST], f"... and {len(found) - MOST} more"]


def _of_attempt(attempt: Attempt) -> list[str]:
    found: list[str] = []
    for folder in (attempt.path / "events", attempt.path / "pace"):
        for name in sorted(unwrap(list_names(folder)) or ()):
            if name.endswith(".jsonl"):
                found += _of_events(f"{folder}/{name}")
    return found


def _of_events(path: str) -> list[str]:
    try:
        return event_file.problems(path)
    except UnavailableError:
        raise
    except RunError as error:
        return [str(error)]


def _wrong(outcome: Outcome[object]) -> list[str]:
    if isinstance(outcome, Unavailable):
        raise UnavailableError(outcome.reason)
    return [outcome.reason] if isinstance(outcome, Wrong) else []
