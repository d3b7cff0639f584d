"""Latency and throughput of a finished model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from learnscope.core.moment import Moment
from learnscope.model.cost.calls import NO_TOKENS
from learnscope.model.cost.speed import GRID_WORK, measured_speed
from learnscope.model.cost.timing import NEEDED
from learnscope.options import check_whole, is_whole
from learnscope.probes.cost.timing import TimingProbe, first_batch
from learnscope.quantities import Quantity
from learnscope.quantities.cost import InferenceSpeed as Q
from learnscope.record import Column, Measurement, Table

PERCENTILES = {Q.latency_p95.name: NEEDED[0.95], Q.latency_p99.name: NEEDED[0.99]}


class InferenceSpeed(TimingProbe):
    """How long the model takes, in eval mode and without gradients, as it stands.

    Causal language models of transformers are also timed in prefill (reading a text into the cache of keys and values)
    and in decode (one more token, with that cache: `use_cache=True`), each over a grid of batches and lengths. The grid
    is thinned by the number of parameters: (1, 32), (1, 128) and (4, 32) are left for 135 M, (1, 32) for 1 B.

    Percentiles are by nearest rank. All settings take turns. To warm up, each runs until the medians of its last three
    passes and of the three before agree within 5 %, or a quarter of its seconds is over (six passes at least, but one
    only if six would take all of its seconds). The note `warm` says whether the main one settled, `unsettled` names
    all that did not. Longer texts and larger batches than the data's are made by repeating these.
    """

    batches: Sequence[int] | None = None
    """Examples in a batch, besides the data's own, in every phase. None: 1 for a pass over the data; 1, 4 and 16 for
    prefill and decode, fewer for a large model."""
    lengths: Sequence[int] | None = None
    """Tokens in a row. None: the data's own; 32 and 128 for prefill and decode, fewer for a large model."""
    seconds: float = 0.2
    """For each setting; the data's own batch has ten times as many."""
    repeats: int = 300
    work: float = GRID_WORK
    """Multiply-adds that one pass over the grid may take, by one for each parameter and token."""
    threads: int | None = None
    """Threads of torch; None: as many as it has."""

    reads_only = True  # the passes have a guard of their own
    cost = "`seconds` of forward passes for each setting, ten times as many for the data's own batch"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(self, threads=1)
        for name in ("batches", "lengths"):
            given = getattr(self, name)
            if given is not None and (
                not isinstance(given, Sequence) or not all(is_whole(value, 1) for value in given)
            ):
                raise ValueError(f"InferenceSpeed({name}={given!r}): whole numbers from 1")

    def measure(self, moment: Moment) -> Measurement:
        options: dict[str, Any] = {
            "batches": None if self.batches is None else list(self.batches),
            "lengths": None if self.lengths is None else list(self.lengths),
            "seconds": self.seconds, "repeats": self.repeats, "threads": self.threads,
            "work": self.work,
        }  # fmt: skip
        speed = moment.remember(
            {"what": "inference speed", **options},
            lambda: measured_speed(moment.model, moment.task, first_batch(moment), **options),
            on_this_machine=True,
        )
        columns = [_column(quantity, row) for row in speed["settings"] for quantity in Q.all()]
        notes = {name: speed[name] for name in ("threads", "device", "warm", "unsettled")}
        if speed["compiled"]:
            notes["compiled"] = "timed as written: compiled code is not run under examination"
        return Measurement([Table("model", ["model"], columns)], notes=notes)


def _column(quantity: Quantity, row: dict[str, Any]) -> Column:
    labels = {key: row[key] for key in ("phase", "batch", "length", "main")}
    value = row.get(quantity.name)
    return quantity.column([value], labels, {} if value is not None else {0: _reason(quantity.name, row)})


def _reason(name: str, row: dict[str, Any]) -> str:
    if "reason" in row:
        return str(row["reason"])
    if name in PERCENTILES:
        return f"{row['latency_n']} passes are too few: an upper bound needs {PERCENTILES[name]}"
    return str(row["not_counted"]) if name.startswith("flops") else NO_TOKENS
