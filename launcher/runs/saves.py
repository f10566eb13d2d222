"""Whether a program or function of the user's own gets further: its files are not read, but seen to change.

What counts, besides the steps that it tells with `launcher.progress`:

| `workload.checkpoint` | files |
|---|---|
| empty | all below LAUNCHER_CHECKPOINT_DIR; in the folder that the job starts in, those named like checkpoints |
| a file, a folder, a pattern (`out/*.pt`) | all below LAUNCHER_CHECKPOINT_DIR; it, or all below it |
"""

from __future__ import annotations

import glob
import os
import time
from collections.abc import Iterator
from pathlib import Path

from launcher.files.shared_files import is_transient
from launcher.spec.plan import JobPlan

PATIENCE = 3.0  # seconds; a node counts as lost after launch.heartbeat
ENDINGS = (".pt", ".pth", ".ckpt", ".safetensors", ".distcp")


def newest(plan: JobPlan) -> int:
    """When the newest of these files was written, in nanoseconds since the epoch; -1: there is none.

    Of more files than can be looked at in PATIENCE seconds only some count: an agent that asks must not seem dead.

    Raises:
        OSError: some cannot be looked at now, which does not say that nothing was saved.
    """
    give_up, found = time.monotonic() + PATIENCE, -1
    for path in _files(plan):
        changed = _changed(path)
        found = found if changed is None else max(found, changed)
        if time.monotonic() > give_up:
            break
    return found


def described(plan: JobPlan) -> str:
    """Where these files are, in words."""
    named = plan.workload.params.get("checkpoint")
    where = named or f"{'*' + ', *'.join(ENDINGS)} in {plan.workdir}"
    return f"{plan.checkpoint.dir}, {where}"


def _files(plan: JobPlan) -> Iterator[Path]:
    yield from _below(Path(plan.checkpoint.dir))
    named = plan.workload.params.get("checkpoint")
    if named is None:
        try:
            entries = [Path(entry.path) for entry in os.scandir(plan.workdir)]
        except OSError as error:
            _unless_it_passes(error)
            return
        yield from (path for path in entries if path.suffix in ENDINGS)
        return
    pattern = os.path.join(plan.workdir, os.path.expanduser(named))
    for match in [pattern, *glob.glob(pattern, recursive=True)]:  # noqa: PTH207  the pattern may be absolute
        path = Path(match)
        yield path
        yield from _below(path)


def _below(folder: Path) -> Iterator[Path]:
    for path, _, names in os.walk(folder, onerror=_unless_it_passes):
        yield from (Path(path, name) for name in names)


def _changed(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns if not path.is_dir() else None
    except OSError as error:  # it was just replaced
        _unless_it_passes(error)
        return None


def _unless_it_passes(error: OSError) -> None:
    if is_transient(error):
        raise error
