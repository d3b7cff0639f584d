"""Layers whose update was not needed: the model with their earlier weights is as good."""

from __future__ import annotations

import math

from learnscope.findings import analysis
from learnscope.findings.evidence import evidence_over
from learnscope.quantities.updates import LayerRewind
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import labels_of
from learnscope.reading.words import count, listed, num
from learnscope.record import Finding, Record
from learnscope.store.reader import RunReader

LEAST = 2
"""Changed layers from which on it is said how many of them were not needed."""


@analysis(place=111, check="layers that needed no update", needs=[LayerRewind.could_go_back])
def rewound_layers(reader: RunReader, cuts: Cuts) -> list[Finding]:  # noqa: ARG001  (the bound is the probe's)
    found = []
    for label in labels_of(reader, LayerRewind):
        last = max(reader.records(label), key=lambda record: record.step, default=None)
        finding = None if last is None else _finding(reader, label, last)
        found += [] if finding is None else [finding]
    return found


def _finding(reader: RunReader, label: str, record: Record) -> Finding | None:
    order, go_back = record.notes.get("order") or [], record.notes.get("go_back") or []
    if len(order) < LEAST or not go_back or record.notes.get("judged_by") != "loss":
        return None
    frame = reader.frame(label, kind="model")
    at = frame[(frame["step"] == record.step) & (frame["rewound"] == len(go_back))].set_index("name")["value"]
    change, low, high = (float(at.get(f"loss_change{end}", math.nan)) for end in ("", "_low", "_high"))
    first, last = record.notes["span"]
    base = record.notes.get("base")
    earlier = f"the weights of {base}" if base else f"the weights of step {first:,}"
    model = "of this model" if base else f"of the model of step {last:,}"
    return Finding(
        kind="layers_not_needed",
        severity="info",
        title=f"{len(go_back)} of {count(len(order), 'changed layer')} could have {earlier} back",
        detail=f"With {earlier} in {listed(go_back, 8)} the loss {model} "
        f"changes by {num(change)} ({num(low)} to {num(high)}), on examples that did not choose the layers.",
        advice="Freeze these layers the next time, or store and send only the others: the model is as good with their "
        "earlier weights.",
        evidence=evidence_over([record.step], label, LayerRewind.could_go_back, 1, float(len(go_back))),
    )
