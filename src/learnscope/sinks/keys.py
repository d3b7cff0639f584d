"""The names of numbers in trackers: `gradients/norm`, `gradients/norm/layer/encoder.0`.

| number | key |
|---|---|
| of the model | `gradients/norm`: the family of the probe, and the recorded name |
| summed up over layers | `gradients/norm/layers-max`, `…-median`, `…-min` |
| of a layer, group, … | `gradients/norm/layer/encoder.0` |
| with labels | `gradients/norm/stage-before_clip`, labels in alphabetical order; `stage-stepped` is left out |
| of a probe whose family has the name already | `gradients/LostSteps/norm` |
| of a second probe of one class | `gradients-2/norm` |
| of your own probe | `WeightNorm/weight_norm`: the class of the probe |

Keys have only letters, digits and `_-./`, which every tool takes; other characters become `_`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from learnscope.quantities import declared
from learnscope.record import Label, Record
from learnscope.sinks.selection import Number, Selection, probe_class

USUAL: Mapping[str, Label] = {"stage": "stepped"}
"""The values of labels that a number has where nothing else is said."""
LONGEST = 250
"""Characters of a key, which is what MLflow takes."""
_NOT_IN_KEYS = re.compile(r"[^\w./-]", re.ASCII)


@cache
def families() -> dict[str, str]:
    """The family of every probe of the package: the module in which its quantities are declared."""
    return {probe: quantities.__module__.rpartition(".")[2] for probe, quantities in declared().items()}


@cache
def owners() -> dict[tuple[str, str], str]:
    """For each family and name, the probe that has it without its own name in front: the first that declares it."""
    first: dict[tuple[str, str], str] = {}
    for probe, quantities in declared().items():
        for quantity in quantities.all():
            first.setdefault((families()[probe], quantity.name), probe)
    return first


def section_and_name(number: Number) -> list[str]:
    """The family of the probe, by which trackers group charts, and the name; between them the probe, if it has to be.

    >>> section_and_name(Number("GradientFlow_2", "norm", "model", "model", {}, 1.0))
    ['gradients', 'norm']
    >>> section_and_name(Number("MyProbe", "norm", "model", "model", {}, 1.0))
    ['MyProbe', 'norm']
    """
    probe, _ = probe_class(number.probe)
    section = families().get(probe, probe)
    shared = owners().get((section, number.name), probe) != probe
    return [section, probe, number.name] if shared else [section, number.name]


def key_of(number: Number) -> str:
    """
    >>> key_of(Number("GradientFlow", "norm", "layer", "encoder.0", {"stage": "before_clip"}, 1.0))
    'gradients/norm/stage-before_clip/layer/encoder.0'
    >>> key_of(Number("LostSteps", "norm", "model", "model", {}, 1.0))
    'gradients/LostSteps/norm'
    """
    _, again = probe_class(number.probe)
    section, *parts = section_and_name(number)
    parts = [f"{section}-{again}" if again else section, *parts]
    labels = sorted((name, value) for name, value in number.labels.items() if USUAL.get(name) != value)
    parts += [f"{name}-{value}" for name, value in labels]
    if number.summary is not None:
        parts.append(f"{number.kind}s-{number.summary}")
    elif number.kind != "model":
        parts += [number.kind, number.scope]
    return "/".join(map(plain, parts))


def plain(text: str) -> str:
    return _NOT_IN_KEYS.sub("_", text) or "_"


@dataclass
class Keys:
    """The numbers of records by key: what every tracker is given."""

    selection: Selection = field(default_factory=Selection)
    prefix: str = ""
    """Stands before every key, with a slash: `learnscope` gives `learnscope/gradients/norm`."""
    _known: dict[tuple[Any, ...], str] = field(default_factory=dict)
    _taken: set[str] = field(default_factory=set)

    def numbers(self, record: Record) -> Iterator[tuple[str, Number]]:
        for number in self.selection.numbers(record):
            yield self._key(number), number

    def values(self, record: Record) -> dict[str, float]:
        """Without the numbers that were not measured or are not finite."""
        return {key: number.value for key, number in self.numbers(record) if number.value is not None}

    def steps(self, records: Iterable[Record]) -> Iterator[tuple[int, float, dict[str, float]]]:
        """Step, time and values of consecutive records of one step together: a row of a tracker's history."""
        row: tuple[int, float, dict[str, float]] | None = None
        for record in records:
            values = self.values(record)
            if row is not None and (row[0] != record.step or row[2].keys() & values.keys()):
                yield row
                row = None
            if values:
                row = (record.step, record.time, {**(row[2] if row else {}), **values})
        if row is not None:
            yield row

    def _key(self, number: Number) -> str:
        """Two numbers never share a key, though two names may become the same text."""
        key = self._known.get(number.identity)
        if key is None:
            wanted = f"{self.prefix}/{key_of(number)}".lstrip("/")[:LONGEST]
            key, again = wanted, 1
            while key in self._taken:
                again += 1
                key = f"{wanted[: LONGEST - 8]}-{again}"
            self._taken.add(key)
            self._known[number.identity] = key
        return key
