"""The records of a run by their form: few texts, and the numbers of all records of a form as one array.

lines ─take_apart─> texts and numbers ─Decoder─> segments of blocks ─Columns─> heads, frames, records
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from learnscope.record import SKIPPED, Record
from learnscope.store.columnar.blocks import Block, Bools, Floats, Ints, Segment
from learnscope.store.columnar.forms import ABSENT, Form, filled


@dataclass(frozen=True)
class Heads:
    """What records say besides their tables and notes, in the order of writing."""

    probes: list[str]
    """The labels of the probes in the order in which they first fired."""
    probe: Ints
    """Of each record, the place of its probe in `probes`."""
    step: Ints
    attempt: Ints
    time: Floats
    cost: Floats
    numbers: Ints
    """How many numbers each has, those included that are missing."""
    errors: dict[int, str]
    """Of the records that are failures, by their place: the message."""

    def __len__(self) -> int:
        return len(self.step)

    def of(self, probe: str) -> Ints:
        """The places of a probe's records."""
        places: Ints = np.flatnonzero(self.probe == self.probes.index(probe)) if probe in self.probes else _NONE
        return places

    @cached_property
    def failed(self) -> Bools:
        failed = np.zeros(len(self), bool)
        failed[list(self.errors)] = True
        return failed


_NONE = np.zeros(0, np.int64)


@dataclass(frozen=True)
class Chosen:
    """The records of a block that are not superseded."""

    block: Block
    mask: Bools | None
    """Which; None for all."""
    shift: int = 0

    @property
    def form(self) -> Form:
        return self.block.form

    @property
    def order(self) -> Ints:
        order = self.block.order + self.shift
        return order if self.mask is None else order[self.mask]

    def rows(self, places: Sequence[int]) -> Floats:
        """A row for each place, of NaN where the form has no number."""
        there = [place for place in places if place != ABSENT]
        rows = self.block.rows(there)
        rows = rows if self.mask is None else rows[:, self.mask]
        if len(there) == len(places):
            return rows
        full = np.full((len(places), rows.shape[1]), np.nan)
        full[[i for i, place in enumerate(places) if place != ABSENT]] = rows
        return full

    def header(self, name: str) -> Floats:
        row: Floats = self.rows([self.form.place(name)])[0]
        return row


@dataclass(frozen=True)
class Columns:
    """All records of a run; those that are superseded are left out unless `starts` is empty."""

    segments: Sequence[Segment]
    starts: Mapping[int, int] = field(default_factory=dict)
    """The step that each attempt started from."""

    @property
    def problems(self) -> list[str]:
        return [problem for segment in self.segments for problem in segment.problems]

    @cached_property
    def counts(self) -> Counter[int]:
        """How many records of each attempt there are, superseded ones included."""
        counts: Counter[int] = Counter(loose.record.attempt for segment in self.segments for loose in segment.loose)
        for block in (block for segment in self.segments for block in segment.blocks):
            attempts, n = np.unique(block.rows([block.form.place("attempt")])[0], return_counts=True)
            counts.update(dict(zip(map(int, attempts), map(int, n), strict=True)))
        return counts

    def chosen(self, probe: str | None = None) -> Iterator[Chosen]:
        """The blocks of a probe, or of all, in the order of segments."""
        for shift, block in ((segment.shift, block) for segment in self.segments for block in segment.blocks):
            if probe is not None and block.form.probe != probe:
                continue
            if len(self.starts) < 2:  # nothing can be superseded
                yield Chosen(block, None, shift)
                continue
            step, attempt = block.rows([block.form.place("step"), block.form.place("attempt")])
            left_out = is_superseded(attempt, step, self.starts)
            if not left_out.all():
                yield Chosen(block, ~left_out if left_out.any() else None, shift)

    def loose(self, probe: str | None = None) -> list[tuple[int, Record]]:
        """Single records, each with its place in the order of writing."""
        return [
            (loose.order + segment.shift, loose.record)
            for segment in self.segments
            for loose in segment.loose
            if (probe is None or loose.record.probe == probe)
            and not is_superseded(np.array(loose.record.attempt), np.array(loose.record.step), self.starts)
        ]

    @cached_property
    def last_step(self) -> int:
        """Of a step that was skipped, the one before it was taken."""
        taken = [chosen for chosen in self.chosen() if chosen.form.header["phase"] != SKIPPED]
        steps = [int(chosen.header("step").max()) for chosen in taken]
        return max([*steps, *(record.step for _, record in self.loose() if record.phase != SKIPPED)], default=0)

    def records(self, probe: str | None = None) -> Iterator[Record]:
        """The records in the order of writing; a segment's at once, and then the next one's."""
        for segment in self.segments:
            part = Columns([segment], self.starts)
            loose = part.loose(probe)
            orders = [np.array([order for order, _ in loose], np.int64)]
            makers: list[Sequence[Record]] = [[record for _, record in loose]]
            for chosen in part.chosen(probe):
                orders.append(chosen.order)
                makers.append(_Made(chosen))
            source = np.repeat(np.arange(len(orders)), [len(order) for order in orders])
            place = np.concatenate([np.arange(len(order)) for order in orders])
            for at in np.argsort(np.concatenate(orders), kind="stable").tolist():
                yield makers[source[at]][place[at]]

    def names(self, probe: str, kind: str) -> list[str]:
        """The names that a probe recorded of a kind, by the order of writing."""
        if self.loose(probe):
            tables = [table for record in self.records(probe) for table in record.tables if table.kind == kind]
            return list(dict.fromkeys(c.name for table in tables if table.scopes for c in table.columns))
        first = sorted(((part.order[0], part.form.columns) for part in self.chosen(probe)), key=lambda part: part[0])
        return list(dict.fromkeys(c.name for _, columns in first for c in columns if c.kind == kind and c.scopes))

    def notes(self, probe: str, key: str) -> list[tuple[int, Any]]:
        """A note of all records of a probe that have it, each with its step."""
        found = [(order, r.step, r.notes[key]) for order, r in self.loose(probe) if r.notes.get(key) is not None]
        for chosen in self.chosen(probe):
            note = (chosen.form.body.get("notes") or {}).get(key)
            if note is not None:
                made = _Made(chosen)
                steps = chosen.header("step").astype(np.int64).tolist()
                values = (filled(note, made.numbers(place)) for place in range(len(steps)))
                found += zip(chosen.order.tolist(), steps, values, strict=True)
        return [(step, note) for _, step, note in sorted(found, key=lambda entry: entry[0])]

    @cached_property
    def heads(self) -> Heads:
        parts = [*self.chosen()]
        loose = self.loose()
        order = np.concatenate([*(part.order for part in parts), np.array([at for at, _ in loose], np.int64)])
        sort = np.argsort(order, kind="stable")
        names = list(dict.fromkeys([*(part.form.probe for part in parts), *(record.probe for _, record in loose)]))
        lengths = [len(part.order) for part in parts]

        def joined(of_form: Sequence[int], of_record: Sequence[int]) -> Ints:
            values = np.concatenate([np.repeat(np.array(of_form, np.int64), lengths), np.array(of_record, np.int64)])
            sorted_: Ints = values[sort]
            return sorted_

        def header(name: str, dtype: type) -> NDArray[Any]:
            of_loose: NDArray[Any] = np.array([getattr(record, name) for _, record in loose], dtype)
            return np.concatenate([*(part.header(name).astype(dtype) for part in parts), of_loose])[sort]

        codes = {name: code for code, name in enumerate(names)}
        probe = joined([codes[part.form.probe] for part in parts], [codes[record.probe] for _, record in loose])
        present, first = np.unique(probe, return_index=True)
        fired = present[np.argsort(first)]
        rank = np.zeros(len(names), np.int64)
        rank[fired] = np.arange(len(fired))
        source = joined(range(len(parts)), range(len(parts), len(parts) + len(loose)))
        messages = [part.form.header["error"] for part in parts] + [record.error for _, record in loose]
        failing = np.flatnonzero(np.isin(source, [i for i, message in enumerate(messages) if message]))
        return Heads(
            probes=[names[code] for code in fired],
            probe=rank[probe],
            step=header("step", np.int64),
            attempt=header("attempt", np.int64),
            time=header("time", np.float64),
            cost=header("cost", np.float64),
            numbers=joined([part.form.numbers for part in parts], [size(record) for _, record in loose]),
            errors={int(place): str(messages[source[place]]) for place in failing},
        )


class _Made(Sequence[Record]):
    """The records of a block, made when they are asked for."""

    def __init__(self, chosen: Chosen) -> None:
        self._form = chosen.form
        self._numbers = chosen.rows(range(chosen.form.width)).T

    def numbers(self, place: int) -> list[Any]:
        return self._form.plain(self._numbers[place].tolist())

    def __getitem__(self, place: Any) -> Any:
        return self._form.record(self._numbers[place].tolist())

    def __len__(self) -> int:
        return len(self._numbers)


def is_superseded(attempt: NDArray[Any], step: NDArray[Any], starts: Mapping[int, int]) -> Bools:
    """Which records lie after the step that a later attempt started from."""
    superseded = np.zeros(step.shape, bool)
    for later, start in starts.items():
        superseded |= (attempt < later) & (step > start)
    return superseded


def size(record: Record) -> int:
    """How many numbers a record has, those included that are missing."""
    return sum(len(table.scopes) * len(table.columns) for table in record.tables)
