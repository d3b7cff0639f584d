"""Measurements as a probe returned them: a history makes cells of them when somebody asks, not in the training loop."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray

from learnscope.core.moment import Moment
from learnscope.record import Measurement, Record
from learnscope.session.bound import Bound
from learnscope.session.manual import ManualSession
from learnscope.session.materialise import as_measurement, read_arrays, read_measured


@dataclass(frozen=True, slots=True)
class Unread:
    """What the probes of a session measured at one step, with the seconds that each took."""

    step: int
    source: str
    measured: Mapping[str, tuple[Measurement, float]]
    """By the label of the probe."""

    def records(self) -> Iterator[tuple[Record, dict[str, NDArray[Any]]]]:
        """The records with their arrays: here the numbers leave the device."""
        for probe, (measurement, cost) in self.measured.items():
            tables = read_measured(measurement)
            record = Record(
                probe=probe, step=self.step, phase="tracked", source=self.source, time=0.0, cost=cost, tables=tables,
                notes=measurement.notes,
            )  # fmt: skip
            yield record, read_arrays(measurement.arrays)


def measure_now(session: ManualSession, moment: Moment) -> Unread:
    """Let every probe of a session measure. Nothing is written anywhere: a tracker has no run."""
    measured: dict[str, tuple[Measurement, float]] = {}
    for bound in () if session.engine.inherited else session.bound.values():
        started = time.perf_counter()
        result = _measured(bound, moment)
        if result is not None:
            measured[bound.label] = result, time.perf_counter() - started
    return Unread(moment.step, moment.source, measured)


def _measured(bound: Bound, moment: Moment) -> Measurement | None:
    assert bound.probe.reads_only, "a tracker's probes do not disturb the model"
    moment.state = bound.state
    with torch.no_grad(), bound.first_time("measure"):
        return as_measurement(bound.probe.measure(moment))
