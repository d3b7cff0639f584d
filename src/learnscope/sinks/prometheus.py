"""The latest numbers as Prometheus reads them: a text, or a file for node_exporter's textfile collector."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from learnscope.characters import visible
from learnscope.record import Finding, Label, Record, nonfinite
from learnscope.sinks.base import Opening
from learnscope.sinks.keys import section_and_name
from learnscope.sinks.selection import KINDS, Number, Selection, probe_class, quantity_of
from learnscope.store.files import write_atomically

Labels = tuple[tuple[str, str], ...]
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_]")


class Gauges:
    """The latest value of every number, by name and labels."""

    def __init__(self, always: Mapping[str, str]) -> None:
        self._always = always
        self._values: dict[str, dict[Labels, float]] = {}
        self._meanings: dict[str, str] = {}

    def set(self, name: str, value: float | None, meaning: str, labels: Mapping[str, Label]) -> None:
        """None forgets an earlier value: what was not measured is not shown as the last that was."""
        mixed = {**{in_names(key): str(text) for key, text in labels.items()}, **self._always}
        key = tuple(sorted(mixed.items()))
        if value is None:
            self._values.get(name, {}).pop(key, None)
        else:
            self._meanings[name] = meaning
            self._values.setdefault(name, {})[key] = value

    def text(self) -> str:
        """In the text format of Prometheus, without times, which the textfile collector refuses."""
        lines = []
        for name in sorted(name for name, values in self._values.items() if values):
            lines += [f"# HELP {name} {escaped(self._meanings[name], quotes=False)}", f"# TYPE {name} gauge"]
            for labels, value in sorted(self._values[name].items()):
                inside = ",".join(f'{label}="{escaped(text)}"' for label, text in labels)
                lines.append(f"{name}{{{inside}}} {shown(value)}" if inside else f"{name} {shown(value)}")
        return "".join(f"{line}\n" for line in lines)


class Latest:
    """The latest numbers of a run, as gauges."""

    def __init__(self, run: str | None, selection: Selection) -> None:
        self._selection, self._gauges = selection, Gauges({"run": run} if run else {})
        self.step = 0

    def take(self, record: Record) -> None:
        self.step = max(self.step, record.step)
        for number in self._selection.numbers(record):
            name, meaning, labels = gauge_of(number)
            unbounded = nonfinite(number.status)
            self._gauges.set(name, float(unbounded) if unbounded else number.value, meaning, labels)
        self._gauges.set("learnscope_step", float(self.step), "the last step that was recorded", {})
        self._gauges.set("learnscope_recorded_seconds", round(record.time, 3), "when it was recorded, since 1970", {})

    def tell(self, finding: Finding) -> None:
        labels = {"kind": finding.kind, "severity": finding.severity}
        self._gauges.set("learnscope_alert", float(self.step), "the step at which this alert was told", labels)

    def text(self) -> str:
        return self._gauges.text()


class PrometheusSink:
    """Keeps a file with the latest numbers, written whole or not at all, for the textfile collector.

    | number | line |
    |---|---|
    | of the model | `learnscope_gradients_norm{run="a",stage="stepped"} 0.5` |
    | summed up over layers | `learnscope_gradients_norm_layers{run="a",stage="stepped",summary="max"} 0.2` |
    | of a layer | `learnscope_gradients_norm_by_layer{layer="encoder.0",run="a",stage="stepped"} 0.1` |
    | the last step, and when it was recorded | `learnscope_step{run="a"}`, `learnscope_recorded_seconds{run="a"}` |
    | an alert | `learnscope_alert{kind="nonfinite",run="a",severity="critical"}`: the step at which it was told |

    A number that is not finite is `NaN`, `+Inf` or `-Inf`, one that was not measured is left out.

    Args:
        path: the file; it must end in `.prom`, or the collector passes it over.
        run: the value of the label `run`; by default the name of the run folder.
        seconds: the file is written at most that often, and when the session closes.
        everything: write every number of the tables, not only summaries and the largest of many layers.
        kinds: which tables to write.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, run: str | None = None, seconds: float = 5.0, everything: bool = False,
        kinds: Iterable[str] = KINDS, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.path = Path(path)
        if self.path.suffix != ".prom":
            raise ValueError(f"PrometheusSink: {self.path} must end in .prom, or the textfile collector passes it over")
        self._run, self._seconds, self._clock = run, seconds, clock
        self._selection = Selection(kinds, everything)
        self._latest = Latest(run, self._selection)
        self._written_at = -math.inf
        self._is_new = False

    def open(self, opening: Opening) -> None:
        self._latest = Latest(self._run or opening.name, self._selection)

    def write(self, record: Record) -> None:
        self._latest.take(record)
        self._is_new = True
        if self._clock() - self._written_at >= self._seconds:
            self._write()

    def alert(self, finding: Finding) -> None:
        self._latest.tell(finding)
        self._write()

    def close(self) -> None:
        """Write what is new. The file stays: it shows the last numbers of the run."""
        if self._is_new:
            self._write()

    def text(self) -> str:
        """What the file holds when it is written next."""
        return self._latest.text()

    def _write(self) -> None:
        text = self._latest.text()
        write_atomically(self.path, lambda path: path.write_text(text, encoding="utf-8"), durable=False)
        self._written_at, self._is_new = self._clock(), False


def prometheus_text(
    records: Iterable[Record], *, run: str | None = None, everything: bool = False, kinds: Iterable[str] = KINDS
) -> str:
    """The latest numbers of records, such as `run.records()`, in the text format of Prometheus."""
    latest = Latest(run, Selection(kinds, everything))
    for record in records:
        latest.take(record)
    return latest.text()


def gauge_of(number: Number) -> tuple[str, str, dict[str, Label]]:
    """The name, the meaning and the labels of a number.

    >>> gauge_of(Number("MyProbe", "size", "layer", "encoder.0", {"t": 1}, 2.0))
    ('learnscope_MyProbe_size_by_layer', 'size of MyProbe', {'t': 1, 'layer': 'encoder.0'})
    """
    probe, again = probe_class(number.probe)
    quantity = quantity_of(number.probe, number.name)
    meaning = quantity.meaning if quantity is not None else f"{number.name} of {probe}"
    labels = {**number.labels, **({"probe": again} if again else {})}
    name = "_".join(["learnscope", *section_and_name(number)])
    if number.summary is not None:
        return in_names(f"{name}_{number.kind}s"), meaning, {**labels, "summary": number.summary}
    if number.kind != "model":
        return in_names(f"{name}_by_{number.kind}"), meaning, {**labels, number.kind: number.scope}
    return in_names(name), meaning, labels


def in_names(text: str) -> str:
    return _NOT_IN_NAMES.sub("_", text)


def escaped(text: str, *, quotes: bool = True) -> str:
    text = visible(text).replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quotes else text


def shown(value: float) -> str:
    """
    >>> shown(0.5), shown(float("inf")), shown(float("-inf")), shown(float("nan"))
    ('0.5', '+Inf', '-Inf', 'NaN')
    """
    return repr(value) if math.isfinite(value) else "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
