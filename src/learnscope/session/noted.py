"""Numbers that a loop logs at every step, on their way to their line: nothing is made of them before it is written."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from learnscope.characters import visible_json
from learnscope.core.handed import HandedOver
from learnscope.core.moment import Moment
from learnscope.record import Record
from learnscope.session.bound import Bound
from learnscope.session.materialise import as_measurement

LARGEST = 2**53
"""Whole numbers up to which a float holds each."""
MOST_FORMS = 64
_PLACE = "<a number>"


@dataclass(slots=True)
class Noted:
    """One finite number of each name, logged for one step."""

    bound: Bound
    step: int
    epoch: int | None
    time: float
    numbers: Mapping[str, Sequence[float]]
    cost: float = 0.0


def are_plain(numbers: Mapping[str, Sequence[Any]]) -> bool:
    """Whether each name has one number, which is finite and plain.

    >>> are_plain({"loss": [0.5], "tokens": [64]}), are_plain({"loss": [float("nan")]}), are_plain({"loss": [1.0, 2.0]})
    (True, False, False)
    """
    for values in numbers.values():
        if len(values) != 1:
            return False
        number = values[0]
        if not (math.isfinite(number) if type(number) is float else type(number) is int and abs(number) < LARGEST):
            return False
    return True


class Lines:
    """Makes the lines. Those of the same names differ in their numbers alone: the text around these is made once."""

    def __init__(self, moment: Callable[..., Moment], record: Callable[..., Record]) -> None:
        self._moment, self._record = moment, record
        self._forms: dict[tuple[str, ...], str | None] = {}
        self._last: tuple[str, ...] = ()
        """The names of the last numbers that there is a line for; most loops log the same at every step."""

    def takes(self, bound: Bound, numbers: Mapping[str, Sequence[Any]]) -> bool:
        """Whether there is a line for what was logged; if not, it has to be measured as anything else."""
        if not are_plain(numbers):
            return False
        key = (bound.label, *numbers)
        if key != self._last:
            if self._form(bound, numbers) is None:
                return False
            self._last = key
        return True

    def of(self, noted: Noted) -> str:
        """As `Record.to_json` writes it."""
        epoch = "null" if noted.epoch is None else noted.epoch
        header = (noted.step, epoch, round(noted.time, 6), round(noted.cost, 7))
        form = self._form(noted.bound, noted.numbers)
        assert form is not None
        return form % (*header, *[values[0] for values in noted.numbers.values()])

    def _form(self, bound: Bound, numbers: Mapping[str, Sequence[Any]]) -> str | None:
        key = (bound.label, *numbers)
        if key not in self._forms:
            if len(self._forms) == MOST_FORMS:
                self._forms.clear()
            self._forms[key] = self._made(bound, list(numbers))
        return self._forms[key]

    def _made(self, bound: Bound, names: Sequence[str]) -> str | None:
        place: Any = _PLACE
        moment = self._moment("after_step", place, epoch=place, handed=HandedOver({name: [place] for name in names}))
        measured = as_measurement(bound.probe.measure(moment))
        assert measured is not None
        body = self._record(bound, moment, place, place, tables=measured.tables).body()
        text = json.dumps(body, separators=(",", ":"))
        text, places = visible_json(text).replace("%", "%%"), f'"{_PLACE}"'
        return text.replace(places, "%s") if text.count(places) == 4 + len(names) else None
