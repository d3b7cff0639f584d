"""Latency and throughput of a finished model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

from learnscope.core.moment import Moment
from learnscope.core.probe import At, Probe
from learnscope.model.cost.speed import NO_TOKENS, measured_speed
from learnscope.model.cost.timing import NEEDED
from learnscope.quantities import Quantities, Quantity
from learnscope.quantities.cost import InferenceSpeed as Q
from learnscope.record import Column, Measurement, Table

PERCENTILES = {Q.latency_p95.name: NEEDED[0.95], Q.latency_p99.name: NEEDED[0.99]}


class InferenceSpeed(Probe):
    """How long the model takes, in eval mode and without gradients, as it stands.

    Prefill and decode are measured for causal language models of transformers.

    Percentiles are by nearest rank. All settings take turns. Before, each runs until the medians of its last three
    passes and of the three before agree within 5 %, or a quarter of its seconds is spent (six passes at least, but one
    only if six would take all of its seconds). The note `warm` says whether the main one settled, `unsettled` names
    all that did not. Texts longer than the data's are made by repeating them, larger batches by repeating examples.
    """

    at: At = "once"
    batches: Sequence[int] = (1, 8)
    """Examples in a batch, besides the data's own."""
    lengths: Sequence[int] = ()
    """Tokens in a row; none: the data's own."""
    seconds: float = 0.3
    """For each setting; the data's own batch has ten times as many."""
    repeats: int = 300
    """Passes after which a setting is done before its seconds are spent."""
    threads: int | None = None
    """torch's threads meanwhile; None: as many as it has."""
    needs: ClassVar[frozenset[str]] = frozenset({"holdout"})
    reads_only: ClassVar[bool] = True  # the passes have a guard of their own
    quantities: ClassVar[type[Quantities]] = Q
    cost: ClassVar[str] = "`seconds` of forward passes for each setting, ten times as many for the data's own batch"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("batches", "lengths"):
            given = getattr(self, name)
            if not isinstance(given, Sequence) or not all(_whole(value) for value in given):
                raise ValueError(f"InferenceSpeed({name}={getattr(self, name)!r}): whole numbers from 1")
        if not _whole(self.repeats):
            raise ValueError(f"InferenceSpeed(repeats={self.repeats!r}): a whole number from 1")
        if self.threads is not None and not _whole(self.threads):
            raise ValueError(f"InferenceSpeed(threads={self.threads!r}): a whole number from 1, or None")
        if not (isinstance(self.seconds, int | float) and 0 < self.seconds < math.inf):
            raise ValueError(f"InferenceSpeed(seconds={self.seconds!r}): a number above 0")

    def measure(self, moment: Moment) -> Measurement:
        options: dict[str, Any] = {
            "batches": list(self.batches), "lengths": list(self.lengths), "seconds": self.seconds,
            "repeats": self.repeats, "threads": self.threads,
        }  # fmt: skip
        first = next(iter(moment.subject.holdout or ()))
        found = moment.remember(
            {"what": "inference speed", **options},
            lambda: measured_speed(moment.model, moment.task, first, **options),
            on_this_machine=True,
        )
        columns = [_column(quantity, row) for row in found["settings"] for quantity in Q.all()]
        notes = {name: found[name] for name in ("threads", "device", "warm", "unsettled")}
        if found["compiled"]:
            notes["compiled"] = "timed as written: compiled code is not run under examination"
        return Measurement([Table("model", ["model"], columns)], notes=notes)


def _column(quantity: Quantity, row: dict[str, Any]) -> Column:
    labels = {key: row[key] for key in ("phase", "batch", "length", "main")}
    value = row.get(quantity.name)
    return quantity.column([value], labels, {} if value is not None else {0: _why(quantity.name, row)})


def _why(name: str, row: dict[str, Any]) -> str:
    if "reason" in row:
        return str(row["reason"])
    if name in PERCENTILES:
        return f"{row['latency_n']} passes are too few: an upper bound needs {PERCENTILES[name]}"
    return str(row["not_counted"]) if name.startswith("flops") else NO_TOKENS


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
