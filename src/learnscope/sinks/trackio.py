"""Records in a run of Trackio."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from learnscope.record import Finding, Record
from learnscope.sinks.base import Opening, load
from learnscope.sinks.keys import Keys
from learnscope.sinks.selection import KINDS, Selection

_LEVELS = {"info": "INFO", "warning": "WARN", "critical": "ERROR"}
_QUIET: dict[str, Any] = {"embed": False, "auto_log_cpu": False, "auto_log_gpu": False}


class TrackioSink:
    """Writes to a run of Trackio: one that is open already, or one of its own.

    Keys are those of [docs/sinks.md](../../../docs/sinks.md), with the optimizer's step. Alerts become Trackio's
    alerts. A resumed session goes on in the same run.

    Args:
        run: a run that is open already, as `trackio.init` returned it; it is not closed by the sink. Without one, and
            without `options`, it is the current run, if there is one.
        everything: write every number of the tables, not only summaries and the largest of many layers.
        kinds: which tables to write.
        prefix: stands before every key.
        options: for `trackio.init`, such as `project=`, `name=`, `space_id=`.
    """

    def __init__(
        self, *, run: Any = None, everything: bool = False, kinds: Iterable[str] = KINDS, prefix: str = "",
        **options: Any,
    ) -> None:  # fmt: skip
        if run is not None and options:
            raise ValueError(f"TrackioSink: an open run takes no options: leave out {', '.join(options)}")
        self._trackio = load("trackio", "TrackioSink", "Trackio", "trackio")
        if run is None:
            run = current_run(self._trackio)
            if run is not None and options:  # `trackio.init` would end it
                raise ValueError(
                    f"TrackioSink: the run {run.name} of {run.project} is open, and Trackio has one at a time: pass "
                    "run= to write to it, or finish it first"
                )
        self._keys = Keys(Selection(kinds, everything), prefix)
        self._options = options
        self.run, self._is_ours, self._closed, self._step = run, run is None, False, 0

    @property
    def kept(self) -> dict[str, Any]:
        return {} if self.run is None or not self._is_ours else {"project": self.run.project, "name": self.run.name}

    def open(self, opening: Opening) -> None:
        if self.run is None:
            again = {**opening.kept, "resume": "must"} if opening.kept.get("name") else {}
            named = {"name": opening.name} if opening.name and not again else {}
            given = {"project": "learnscope", "config": {"learnscope": opening.config()}, **_QUIET, **named}
            self.run = self._trackio.init(**given | self._options | again)
            self._trackio.context_vars.current_run.set(None)  # it is the sink's: `trackio.log` does not write to it

    def write(self, record: Record) -> None:
        self.write_all([record])

    def write_all(self, records: Sequence[Record]) -> None:
        if self.run is None:
            self.open(Opening())
        for step, _, values in self._keys.steps(records):
            self._step = max(self._step, step)
            self.run.log(values, step=step)

    def alert(self, finding: Finding) -> None:
        if self.run is None:
            self.open(Opening())
        level = getattr(self._trackio.AlertLevel, _LEVELS[finding.severity])
        text = f"{finding.detail}\n{finding.advice}"
        self.run.alert(title=finding.title, text=text, level=level, step=self._step)

    def close(self) -> None:
        """End the run if the sink has opened it. Closing twice does nothing."""
        if self.run is not None and self._is_ours and not self._closed:
            self._closed = True
            self.run.finish()


def current_run(trackio: Any) -> Any:
    """The run that `trackio.log` would write to, or None."""
    return trackio.context_vars.current_run.get()
