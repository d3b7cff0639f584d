"""Records in a run of Weights & Biases."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from learnscope.record import Finding, Record
from learnscope.sinks.base import Opening, load
from learnscope.sinks.keys import Keys
from learnscope.sinks.selection import KINDS, Selection

STEP = "learnscope/step"
"""The metric that all others are drawn over: steps of the optimizer, as the run folder counts them."""
_LEVELS = {"info": "INFO", "warning": "WARN", "critical": "ERROR"}
_TITLE = 63
"""Characters of an alert's title."""


class WandbSink:
    """Writes to a run of wandb: one that is open already, or one of its own.

    Keys are those of [docs/sinks.md](../../../docs/sinks.md): `gradients/norm`, `gradients/norm/layers-max`. All are
    drawn over `learnscope/step`. Alerts become wandb's alerts. A resumed session goes on in the same run.

    Args:
        run: a run that is open already; it is not closed by the sink. Without one, and without `options`, it is the
            active `wandb.run`, if there is one.
        everything: write every number of the tables, not only summaries and the largest of many layers.
        kinds: which tables to write.
        prefix: stands before every key.
        own_rows: each step is a row of wandb's history, as trainers' loggers do it. If your loop passes `step=` to
            `wandb.log` itself, rows of ours would push that step on: with False, numbers join the loop's next row.
        options: for `wandb.init`, such as `project=`, `name=`, `mode="offline"`.
    """

    def __init__(
        self, *, run: Any = None, everything: bool = False, kinds: Iterable[str] = KINDS, prefix: str = "",
        own_rows: bool = True, **options: Any,
    ) -> None:  # fmt: skip
        if run is not None and options:
            raise ValueError(f"WandbSink: a run that is open already takes no options: leave out {', '.join(options)}")
        self._wandb = load("wandb", "WandbSink", "wandb", "wandb")
        self._keys = Keys(Selection(kinds, everything), prefix)
        self._options, self._own_rows = options, own_rows
        if run is None and not options:
            run = self._wandb.run
        self.run, self._is_ours, self._closed = run, run is None, False
        self._defined: set[str] = set()

    @property
    def kept(self) -> dict[str, Any]:
        return {} if self.run is None or not self._is_ours else {"run_id": self.run.id}

    def open(self, opening: Opening) -> None:
        if self.run is None:
            again = {"id": opening.kept["run_id"], "resume": "allow"} if opening.kept.get("run_id") else {}
            named = {"name": opening.name} if opening.name and not again else {}
            given = {"config": {"learnscope": opening.config()}, "reinit": "create_new", **named, **again}
            self.run = self._wandb.init(**given | self._options)
        if self._own_rows:
            self.run.define_metric(STEP, hidden=True)

    def write(self, record: Record) -> None:
        self.write_all([record])

    def write_all(self, records: Sequence[Record]) -> None:
        if self.run is None:
            self.open(Opening())
        for step, _, values in self._keys.steps(records):
            if self._own_rows:
                self._define(values)
                self.run.log({STEP: step, **values})
            else:
                self.run.log({STEP: step, **values}, commit=False)

    def alert(self, finding: Finding) -> None:
        if self.run is None:
            self.open(Opening())
        title = finding.title if len(finding.title) <= _TITLE else finding.title[: _TITLE - 1] + "…"
        text = f"{finding.title}. {finding.detail}\n{finding.advice}"
        self.run.alert(title=title, text=text, level=_LEVELS[finding.severity])

    def close(self) -> None:
        """End the run if the sink has opened it. Closing twice does nothing."""
        if self.run is not None and self._is_ours and not self._closed:
            self._closed = True
            self.run.finish()

    def _define(self, keys: Iterable[str]) -> None:
        """A new section of charts is drawn over our step."""
        depth = self._keys.prefix.count("/") + 2 if self._keys.prefix else 1
        sections = {"/".join(key.split("/")[:depth]) for key in keys}
        for section in sorted(sections - self._defined):
            self.run.define_metric(f"{section}/*", step_metric=STEP)
            self._defined.add(section)
