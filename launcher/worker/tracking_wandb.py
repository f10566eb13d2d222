"""The tracker that writes to Weights & Biases: one W&B run for all attempts of a run.

W&B keeps every value that it gets, so values of steps that a later attempt repeats are left out. In offline mode each
start of rank 0 writes a folder of its own; `wandb sync` combines them into one run by its id.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Sequence
from typing import Any

from launcher.files import run_files
from launcher.files.shared_files import read_text, unwrap
from launcher.worker import tracker
from launcher.worker.tracker import About, Entry

RUN = "wandb_run"  # JSON file in the run directory: W&B's id of the run, its rows, the last step of each metric
STEP = "step"  # the metric on W&B's horizontal axis
# Limits, in seconds and tries, for a server that does not respond. W&B's defaults take minutes, also when it finishes.
# Values that did not reach the server are still in the run directory, for `wandb sync`.
LIMITS = {
    "init_timeout": 10, "x_graphql_timeout_seconds": 5, "x_graphql_retry_max": 1, "x_file_stream_timeout_seconds": 5,
    "x_file_stream_retry_max": 3, "x_file_stream_retry_wait_max_seconds": 2, "x_file_transfer_timeout_seconds": 5,
    "x_file_transfer_retry_max": 1,
}  # fmt: skip


class WandB:
    """The tracker that writes one W&B run for all attempts of a run."""

    def __init__(self, about: About) -> None:
        # Lazily: W&B takes a second, and may not be here
        import wandb

        self._about, self._wandb = about, wandb
        self._run: Any = None
        self._id, self._rows, self._last = _earlier(about)

    def log(self, entries: Sequence[Entry]) -> None:
        if self._run is None:
            self._run = self._begin()
        for entry in entries:
            new = {name: value for name, value in entry.values.items() if entry.step > self._last.get(name, -1)}
            if new:
                # Rows are numbered across attempts, so that none replaces another when they are synced.
                self._rows = max(self._rows, self._run.step)
                self._run.log({**new, STEP: entry.step}, step=self._rows)
                self._rows += 1
                self._last.update(dict.fromkeys(new, entry.step))
        self._keep()

    def close(self, done: bool) -> None:
        if self._run is not None:
            self._run.finish(exit_code=0 if done else 1)

    def _begin(self) -> Any:
        about = self._about
        self._keep()  # before W&B makes the run: an attempt that is killed now causes no second run
        run = self._wandb.init(
            project=about.project, entity=about.entity, group=about.group, id=self._id, name=about.run_id,
            resume="allow", mode=about.mode, dir=str(about.folder), config=dict(about.config),
            settings=self._wandb.Settings(
                console="off", silent=True, disable_git=True, disable_code=True, x_disable_meta=True,
                finish_timeout=tracker.LOCAL_TIMEOUT if about.mode == "offline" else tracker.CLOSE_TIMEOUT, **LIMITS,
            ),
        )  # fmt: skip
        for prefix in ("train", "eval", "result"):
            run.define_metric(f"{prefix}/*", step_metric=STEP)
        run.config.update({f"launcher.{name}": value for name, value in about.tags.items()}, allow_val_change=True)
        return run

    def _keep(self) -> None:
        text = json.dumps({"id": self._id, "rows": self._rows, "last": self._last})
        run_files.write(self._about.folder / RUN, text + "\n", sync=False)


def _earlier(about: About) -> tuple[str, int, dict[str, int]]:
    try:
        kept = json.loads(unwrap(read_text(about.folder / RUN)) or "")
        return str(kept["id"]), int(kept["rows"]), {str(name): int(step) for name, step in kept["last"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        # W&B cannot make a removed run again, hence the random part.
        name = re.sub(r"[^\w.+-]", "-", about.run_id)[:100]
        return f"{name}-{secrets.token_hex(4)}", 0, {}
