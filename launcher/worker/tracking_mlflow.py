"""The tracker that writes to MLflow: one MLflow run for all attempts of a run.

MLflow keeps every value that it gets, so values of steps that a later attempt repeats are left out. Parameters cannot
be changed either: those of the first attempt stay.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any

from launcher.files import run_files
from launcher.worker.tracker import About, Entry

# Limits, in seconds and tries, for a server that does not respond. By default one call takes minutes.
ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ALLOW_FILE_STORE": "true",  # MLflow 3 prefers a database, which does not suit a cluster's file system
}
RUN = "mlflow_run"  # file in the run directory: the tracking URI and the id of the run there
METRICS = 1000  # most metrics per call
PARAMETERS = 100  # most parameters per call
LONGEST = 500  # characters of a parameter's value


class MLflow:
    """The tracker that writes one MLflow run for all attempts of a run."""

    def __init__(self, about: About) -> None:
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        # Lazily: MLflow takes a second, and may not be here
        from mlflow.tracking import MlflowClient

        logging.getLogger("mlflow").setLevel(logging.WARNING)
        self._about = about
        self._client: Any = MlflowClient(tracking_uri=about.uri)
        self._run: str | None = None
        self._known: frozenset[str] = frozenset()  # metrics that earlier attempts have logged
        self._last: dict[str, int] = {}  # the last step of each of those metrics, as far as it was looked up

    def log(self, entries: Sequence[Entry]) -> None:
        # Lazily: MLflow takes a second, and may not be here
        from mlflow.entities import Metric

        run = self._run or self._begin()
        metrics = [
            Metric(name, value, int(entry.moment * 1000), entry.step)
            for entry in entries
            for name, value in entry.values.items()
            if entry.step > self._last_step(name)
        ]
        for start in range(0, len(metrics), METRICS):
            self._client.log_batch(run, metrics=metrics[start : start + METRICS])

    def close(self, done: bool) -> None:
        if self._run is not None:
            self._client.set_terminated(self._run, "FINISHED" if done else "KILLED")

    def _begin(self) -> str:
        run = self._earlier()
        if run is None:
            experiment = self._client.get_experiment_by_name(self._about.experiment)
            number = experiment.experiment_id if experiment else self._new_experiment()
            made = self._client.create_run(number, run_name=self._about.run_id, tags=self._tags())
            run = made.info.run_id
            run_files.write(self._about.folder / RUN, f"{self._about.uri} {run}\n")
            self._log_parameters(run)
        else:
            self._client.update_run(run, status="RUNNING")
            for name, value in self._tags().items():
                self._client.set_tag(run, name, value)
        self._run = run
        return run

    def _new_experiment(self) -> str:
        try:
            return str(self._client.create_experiment(self._about.experiment))
        except Exception:  # another point of the sweep may have just made it
            found = self._client.get_experiment_by_name(self._about.experiment)
            if found is None:
                raise
            return str(found.experiment_id)

    def _earlier(self) -> str | None:
        try:
            uri, _, run = (self._about.folder / RUN).read_text().strip().rpartition(" ")
        except OSError:
            return None
        if uri != self._about.uri:  # another server
            return None
        self._known = frozenset(self._client.get_run(run).data.metrics)
        return run

    def _log_parameters(self, run: str) -> None:
        # Lazily: MLflow takes a second, and may not be here
        from mlflow.entities import Param

        all_of_them = [Param(name, value[:LONGEST]) for name, value in self._about.config.items()]
        for start in range(0, len(all_of_them), PARAMETERS):
            self._client.log_batch(run, params=all_of_them[start : start + PARAMETERS])

    def _tags(self) -> dict[str, str]:
        return {f"launcher.{name}": value for name, value in self._about.tags.items()}

    def _last_step(self, name: str) -> int:
        if name not in self._last:
            history = self._client.get_metric_history(self._run, name) if name in self._known else ()
            self._last[name] = max((metric.step for metric in history), default=-1)
        return self._last[name]
