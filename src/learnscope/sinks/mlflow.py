"""Records in a run of MLflow."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from learnscope.record import Finding, Record
from learnscope.sinks.base import Opening, load
from learnscope.sinks.keys import Keys, plain
from learnscope.sinks.selection import KINDS, Selection

AT_ONCE = 1000
"""Metrics that MLflow takes in one call."""
LONGEST_TAG = 5000
"""Characters of a tag's value."""


class MLflowSink:
    """Writes to a run of MLflow: one that is open already, or one of its own.

    Metrics are named as in [docs/sinks.md](../../../docs/sinks.md), with the optimizer's step. Alerts become tags,
    `learnscope.alert.nonfinite`. A resumed session goes on in the same run.

    Args:
        run: a run that is open already, `mlflow.active_run()` or its id; it is not closed by the sink. Without one it
            is the active run, if there is one and neither `experiment` nor `name` is given.
        tracking_uri: where MLflow keeps its runs; by default as MLflow itself is told.
        experiment: the experiment of a run of its own; by default the active one.
        name: of a run of its own; by default that of the run folder.
        everything: write every number of the tables, not only summaries and the largest of many layers.
        kinds: which tables to write.
        prefix: stands before every key.
    """

    def __init__(
        self, *, run: Any = None, tracking_uri: str | None = None, experiment: str | None = None,
        name: str | None = None, everything: bool = False, kinds: Iterable[str] = KINDS, prefix: str = "",
    ) -> None:  # fmt: skip
        if run is not None and (experiment or name):
            raise ValueError("MLflowSink: a run that is open already has an experiment and a name: leave these out")
        self._mlflow = load("mlflow", "MLflowSink", "MLflow", "mlflow")
        self._entities = load("mlflow.entities", "MLflowSink", "MLflow", "mlflow")
        if run is None and not (tracking_uri or experiment or name):
            run = self._mlflow.active_run()
        self._keys = Keys(Selection(kinds, everything), prefix)
        self._client = self._mlflow.MlflowClient(tracking_uri)
        self._experiment, self._name = experiment, name
        self.run_id: str | None = run if run is None or isinstance(run, str) else run.info.run_id
        self._is_ours, self._closed = run is None, False

    @property
    def kept(self) -> dict[str, Any]:
        return {} if self.run_id is None or not self._is_ours else {"run_id": self.run_id}

    def open(self, opening: Opening) -> None:
        if self.run_id is not None:
            return
        if earlier := opening.kept.get("run_id"):
            self._client.update_run(earlier, status="RUNNING")
            self.run_id = str(earlier)
            return
        name = self._name or opening.name
        run = self._client.create_run(self._experiment_id(), run_name=name, tags={"mlflow.source.name": "learnscope"})
        self.run_id = str(run.info.run_id)
        told = {key: value if isinstance(value, str) else json.dumps(value) for key, value in opening.config().items()}
        params = [self._entities.Param(f"learnscope.{key}", value[:LONGEST_TAG]) for key, value in told.items()]
        self._client.log_batch(self.run_id, params=params)

    def _experiment_id(self) -> str:
        if self._experiment is None:
            return str(self._mlflow.tracking.fluent._get_experiment_id())
        found = self._client.get_experiment_by_name(self._experiment)
        return str(self._client.create_experiment(self._experiment) if found is None else found.experiment_id)

    def write(self, record: Record) -> None:
        self.write_all([record])

    def write_all(self, records: Sequence[Record]) -> None:
        if self.run_id is None:
            self.open(Opening())
        metrics = [
            self._entities.Metric(key, value, int(1000 * record.time), record.step)
            for record in records
            for key, value in self._keys.values(record).items()
        ]
        for first in range(0, len(metrics), AT_ONCE):
            self._client.log_batch(self.run_id, metrics=metrics[first : first + AT_ONCE])

    def alert(self, finding: Finding) -> None:
        if self.run_id is None:
            self.open(Opening())
        text = f"{finding.severity}: {finding.title}. {finding.detail}\n{finding.advice}"
        self._client.set_tag(self.run_id, f"learnscope.alert.{plain(finding.kind)}", text[:LONGEST_TAG])

    def close(self) -> None:
        """End the run if the sink has opened it. Closing twice does nothing."""
        if self.run_id is not None and self._is_ours and not self._closed:
            self._closed = True
            self._client.set_terminated(self.run_id, "FINISHED")
