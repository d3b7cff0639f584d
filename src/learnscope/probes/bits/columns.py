"""The table of configurations that the probes of bit widths record."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from learnscope.model.bits.ledger import Ledger
from learnscope.model.outputs.scores import interval
from learnscope.probes.bits.damage import judged_by
from learnscope.probes.outputs.columns import REGRESSION, SAMPLED, SINGLE
from learnscope.quantities.bits import BitWidths
from learnscope.record import Table
from learnscope.tensor.bits.allocation import FrontierPoint, Point, pareto
from learnscope.tensor.outputs.divergence import NEEDED_P999

_COMPARED = ("kl", "kl_median", "kl_p99", "kl_p999", "top1_agree", "cosine", "mse", "broke", "mended")
_OF_CLASSES = "there are no classes to be right of"
_BYTES = ("block_bits", "model_bits", "packed_bytes", "original_bytes", "compression")


@dataclass(frozen=True, slots=True)
class Configuration:
    """A configuration that was measured."""

    name: str
    bits: Mapping[str, int]
    scores: Mapping[str, Any]
    ledger: Ledger
    additivity: float | str = "single units were not measured on these examples"


def undefined(scores: Mapping[str, Any]) -> dict[str, str]:
    """The comparisons that have no meaning for outputs of this kind, and why."""
    names = ("kl", "kl_median", "kl_p99", "kl_p999", "top1_agree")
    positions: int = scores["positions"]
    few = f"{positions:,} positions are too few for the 99.9th percentile: it needs {NEEDED_P999:,}, so give more data"
    reasons = {"kl_p999": few} if positions < NEEDED_P999 else {}
    reasons |= dict.fromkeys(names, REGRESSION) if scores["regression"] else {}
    return reasons | ({"cosine": SINGLE} if scores["single"] else {})


def frontier(configurations: Sequence[Configuration]) -> tuple[list[FrontierPoint], dict[str, str]]:
    """By packed bytes and damage; paired over the examples, see `learnscope.tensor.bits.allocation.pareto`.

    And a note `no_intervals` if a difference that decided had none, with the reason.
    """
    by_name = {item.name: item.scores for item in configurations}
    damage = judged_by(configurations[0].scores)
    points = [Point(item.name, item.ledger.packed_bytes, item.scores[damage]) for item in configurations]
    reasons: list[str] = []

    def paired(larger_damage: str, smaller_damage: str) -> tuple[float, float]:
        low, high, reason = interval(by_name[larger_damage], damage, by_name[smaller_damage])
        reasons.extend([] if reason is None else [reason])
        return low, high

    front = pareto(points, paired)
    return front, {"no_intervals": reasons[0]} if reasons else {}


def configuration_table(
    quantities: type[BitWidths], configurations: Sequence[Configuration], original: Mapping[str, Any],
    front: Sequence[FrontierPoint], *, sampled: bool = False,
) -> Table:  # fmt: skip
    """A row a configuration; on sequences that were `sampled` from the model itself there is no perplexity."""
    on_frontier = {point.name for point in front}
    rows = [
        {**_row(item, original), "on_frontier": int(item.name in on_frontier), "additivity": item.additivity}
        | ({"perplexity": SAMPLED} if sampled else {})
        for item in configurations
    ]
    columns = [quantities.named(name).cells([row[name] for row in rows]) for name in rows[0]]
    return Table("configuration", [item.name for item in configurations], columns)


def _row(item: Configuration, original: Mapping[str, Any]) -> dict[str, float | str]:
    """Every number of a configuration, or the reason for none."""
    scores = item.scores
    reasons = undefined(scores)
    reasons |= dict.fromkeys(("broke", "mended", "accuracy"), _OF_CLASSES) if scores["accuracy"] is None else {}
    row = {name: _value(scores.get(name), reasons.get(name)) for name in _COMPARED}
    loss = scores["loss"]
    missing = "the data has no targets" if loss is None else None
    row["kl_low"], row["kl_high"] = _ends(item, reasons.get("kl"), "kl")
    row["loss"] = _value(loss, missing)
    row["loss_change"] = _value(None if loss is None else loss - original["loss"], missing)
    row["loss_change_low"], row["loss_change_high"] = _ends(item, missing, "loss", original)
    row["perplexity"] = _perplexity(scores)
    row["accuracy"] = _value(scores["accuracy"], reasons.get("accuracy"))
    return row | {name: getattr(item.ledger, name) for name in _BYTES}


def _ends(
    item: Configuration, missing: str | None, name: str, less: Mapping[str, Any] | None = None
) -> tuple[float | str, float | str]:
    """The ends of an interval over examples, or the reason for none, twice."""
    if missing is not None:
        return missing, missing
    if not item.bits and math.isfinite(item.scores[name]):
        return 0.0, 0.0  # the model beside itself: nothing is estimated
    low, high, reason = interval(item.scores, name, less)
    return (low, high) if reason is None else (reason, reason)


def _value(value: float | None, reason: str | None) -> float | str:
    """The number, or the reason if it has no meaning. What is not finite says so by itself."""
    if value is None or (reason is not None and math.isnan(value)):
        return reason or "not measured"
    return value


def _perplexity(scores: Mapping[str, Any]) -> float | str:
    if not scores["tokens"] or scores["loss"] is None:
        return "the model does not predict tokens"
    try:
        return math.exp(scores["loss"])
    except OverflowError:
        return f"e to the loss of {scores['loss']:.4g} is beyond what a number holds"
