"""`ls.compare` and the `Comparison` that it returns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from learnscope.comparison.audits import asked_for, audit_json, read_audits
from learnscope.comparison.opening import facts_of, notes_on, open_runs
from learnscope.comparison.parting import Parting, find_parting
from learnscope.comparison.ranking import ranking_json, read_ranking
from learnscope.comparison.series import Key, SeriesOf, aligned, read_series
from learnscope.comparison.settings import differences
from learnscope.comparison.table import Line, as_frame, line
from learnscope.comparison.weights import compare_weights
from learnscope.options import nearest
from learnscope.reading.gather import Series
from learnscope.reading.words import count, listed
from learnscope.record.display import one_line
from learnscope.run import Run
from learnscope.store.backend import RunError

if TYPE_CHECKING:
    import pandas as pd

SCHEMA_VERSION = 1


def compare(
    runs: Sequence[str | Path | Run], *, names: Sequence[str] | None = None, metrics: Sequence[str] | None = None,
    tolerance: float = 0.0,
) -> Comparison:  # fmt: skip
    """Compare two or more runs, each with the first.

    `names` are labels for the runs (by default their folders' names), `metrics` the quantities to compare (`"loss"`,
    `"norm"`; by default all). Two values are the same if they differ by no more than `tolerance`, relative to the
    larger; 0 asks for the same bits. Reads the run folders and writes nothing.
    """
    if not (tolerance >= 0 and math.isfinite(tolerance)):
        raise RunError(f"tolerance={tolerance!r}: a relative difference is a number from 0 on")
    if isinstance(metrics, str):
        raise RunError(f"metrics={metrics!r}: pass a list, metrics=[{metrics!r}]")
    return Comparison(open_runs(runs, names), metrics, tolerance)


class Comparison:
    """Runs side by side. Everything is read at construction: a run that is still being written does not change it."""

    def __init__(
        self,
        runs: dict[str, Run],
        metrics: Sequence[str] | None = None,
        tolerance: float = 0.0,
        *,
        weights: bool = True,
    ) -> None:
        manifests = {label: run.manifest for label, run in runs.items()}
        folders = {label: run.path for label, run in runs.items()}
        self.tolerance = tolerance
        self.opened = runs
        """The runs themselves, by label."""
        self._series: dict[str, SeriesOf] = {label: read_series(run) for label, run in runs.items()}
        self.runs = [facts_of(label, run, manifests[label], self._series[label]) for label, run in runs.items()]
        """Label, folder, steps and status of each run, in the order given."""
        if metrics is not None:
            self._series = _only(metrics, self._series)
        self.notes: list[str] = notes_on(self.runs)
        """Warnings about the runs: damaged lines, runs that have not ended."""
        self.keys: tuple[Key, ...] = tuple(dict.fromkeys(key for run in self._series.values() for key in run))
        """Every series that at least one run has."""
        self.differences = differences(manifests, folders)
        """The settings that are not the same in all runs."""
        self.partings: list[Parting] = [self.parting(self.labels[0], other) for other in self.labels[1:]]
        """Where each of the other runs parts from the first."""
        self.lines: list[Line] = [line(key, self._series, self.partings) for key in self.keys]
        """A summary of every series, for `table()`."""
        self.audits = read_audits(runs, self._series) if metrics is None else {}
        """What was measured of finished models, where runs hold that."""
        self.ranking = read_ranking(runs, *asked_for(self.audits)) if self.audits else None
        """Audited models on one frontier of bytes and loss, where they were measured on the same texts."""
        self.weights = compare_weights(folders if weights else {}, manifests if weights else {})
        """How far the last weights are from the first run's, where runs kept any; empty if not asked for."""

    @property
    def labels(self) -> list[str]:
        return list(self._series)

    def parting(self, first: str, other: str) -> Parting:
        """Where any two of the runs part, by their labels."""
        for label in (first, other):
            if label not in self._series:
                raise RunError(f"there is no run {label!r} in this comparison: there are {', '.join(self.labels)}")
        return find_parting(first, other, self._series, self.tolerance)

    def of(self, key: Key) -> dict[str, Series]:
        """The recorded series of every run that has it."""
        return {label: series[key] for label, series in self._series.items() if key in series}

    def aligned(self, key: Key) -> pd.DataFrame:
        """A column for each run, a row for each step that any of them has; NaN where a run has no value there."""
        return aligned((label, series.get(key)) for label, series in self._series.items())

    def curve(
        self, name: str, *, probe: str | None = None, kind: str | None = "model", scope: str | None = None,
        **labels: Any,
    ) -> pd.DataFrame:  # fmt: skip
        """`aligned` for the one series of that name: `comparison.curve("norm", stage="stepped")`."""
        matches = [
            key for key in self.keys
            if key.name == name and probe in (None, key.probe) and kind in (None, key.kind)
            and scope in (None, key.scope) and set(labels.items()) <= set(key.labels)
        ]  # fmt: skip
        if len(matches) == 1:
            return self.aligned(matches[0])
        if not matches:
            names = sorted({key.name for key in self.keys if key.kind == kind or kind is None})
            raise RunError(
                f"no run has a series {name!r} of that kind, with these labels; there are: {listed(names, 20)}"
            )
        several = "; ".join(map(str, matches[:5]))
        raise RunError(f"{len(matches)} series are called {name!r}: {several}. Say probe=, kind=, scope= or a label")

    def table(self, kind: str | None = None) -> pd.DataFrame:
        """A row for each series: last and best value, number of steps, difference from the first run, step of parting.

        Columns are pairs: `table()["last"]` has a column for each run. `kind="model"` keeps the series of the model.
        """
        return as_frame([line for line in self.lines if kind in (None, line.key.kind)], self.labels)

    def plot(self, folder: str | Path) -> list[Path]:
        """Write the figures: curves of the runs over each other, and the distance of their weights."""
        from learnscope.comparison.figures import write_figures

        return write_figures(self, Path(folder))

    def save_audits(self, folder: str | Path) -> Path:
        """Write comparison.md and its figures, the audits of finished models side by side; the path of the first."""
        from learnscope.comparison.audit_page import save_audits

        if not self.audits:
            raise RunError("none of these runs holds an audit: ls.audit and `learnscope audit` make them")
        return save_audits(self, Path(folder))

    def page(self, folder: str | Path) -> Path:
        """Write compare.html: one file with what differs, curves over each other and differences of heatmaps."""
        from learnscope.comparison.page import write_comparison_page

        return write_comparison_page(self, Path(folder))

    def save(self, folder: str | Path) -> Path:
        """Write compare.md with its figures, and compare.json; the path of compare.md."""
        from learnscope.comparison.markdown import write_comparison

        return write_comparison(self, Path(folder))

    def to_json(self) -> dict[str, Any]:
        """Everything but the curves, which are in the runs: strict JSON, with null for unknown values."""
        return {
            "schema": SCHEMA_VERSION,
            "tolerance": self.tolerance,
            "runs": [{**vars(run)} for run in self.runs],
            "notes": self.notes,
            "differences": [difference.to_json() for difference in self.differences],
            "partings": [parting.to_json() for parting in self.partings],
            "series": [line.to_json() for line in self.lines],
            "audits": audit_json(self.audits),
            "ranking": ranking_json(self.ranking),
            "weights": self.weights.to_json(),
        }

    def __repr__(self) -> str:
        from learnscope.comparison.words import parting_text

        partings = [parting_text(parting, self.tolerance) for parting in self.partings]
        return one_line(
            f"Comparison of {', '.join(self.labels)}",
            count(len(self.differences), "setting differs", "settings differ"),
            *partings,
        )

    def _repr_html_(self) -> str:
        from learnscope.comparison.shown import comparison_card

        return comparison_card(self)


def _only(metrics: Sequence[str], series: dict[str, SeriesOf]) -> dict[str, SeriesOf]:
    names = sorted({key.name for run in series.values() for key in run})
    for metric in metrics:
        if metric not in names:
            close = nearest(metric, names)
            hint = f"did you mean {close[0]!r}?" if close else f"there are: {listed(names, 20)}"
            raise RunError(f"no run recorded {metric!r}; {hint}")
    return {label: {key: run[key] for key in run if key.name in metrics} for label, run in series.items()}
