"""The tracker that writes TensorBoard's event files, with torch's SummaryWriter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.files import run_files
from launcher.worker.tracker import About, Entry

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


FILES = "events.out.tfevents.*"  # pattern of the names of event files


class TensorBoard:
    """The tracker that writes one TensorBoard folder for all attempts of a run."""

    def __init__(self, about: About) -> None:
        # Lazily: TensorBoard takes a second, and may not be here
        from torch.utils.tensorboard import SummaryWriter

        self._about, self._kind = about, SummaryWriter
        self._writer: SummaryWriter | None = None
        self._before: set[Path] | None = None  # files of earlier attempts; None once this attempt's file has mode 0600

    def log(self, entries: Sequence[Entry]) -> None:
        writer = self._writer or self._begin(entries[0])
        for entry in entries:
            for name, value in entry.values.items():
                writer.add_scalar(name, value, entry.step, walltime=entry.moment)
        writer.flush()
        if self._before is not None:
            for path in set(self._about.log_dir.glob(FILES)) - self._before:
                path.chmod(0o600)  # it was made with the umask of the user's code
            self._before = None

    def close(self, done: bool) -> None:
        if self._writer is not None:
            self._writer.close()

    def _begin(self, first: Entry) -> SummaryWriter:
        about, step = self._about, redone_from(first)
        self._before = set(about.log_dir.glob(FILES)) if about.log_dir.is_dir() else set()
        run_files.make_folder(about.log_dir)
        self._writer = self._kind(str(about.log_dir), purge_step=step if self._before else None)
        self._writer.add_text("config", _table(about.config), step)
        self._writer.add_text("run", _table(about.tags), step)
        return self._writer


def redone_from(first: Entry) -> int:
    """Returns the first step for which to hide the training values of earlier attempts.

    If the earlier attempt stopped between a step and its evaluation, this attempt starts with that evaluation. The
    training values of the step are then in the earlier file only, and must stay visible.

    first: the first entry of this attempt.
    """
    trains = any(name.startswith("train/") for name in first.values)
    return first.step if trains else first.step + 1


def _table(values: Mapping[str, str]) -> str:
    rows = [f"| {key} | `{value.replace('|', chr(92) + '|')}` |" for key, value in values.items()]
    return "\n".join(["| key | value |", "|---|---|", *rows])
