"""Several models on one frontier: every way to store each of them, by bytes and by the loss on the same texts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from learnscope.intervals import ratio_interval
from learnscope.quantities.bits import SharedTexts as Q
from learnscope.reading.audit_numbers import Number, Part, entries_of
from learnscope.reading.gather import Floats, class_of
from learnscope.run import Run

ORIGINAL = "original"
PERPLEXITY, PER_BYTE, LOSS = "perplexity", "perplexity per byte", "loss"
ALLOWED = 0.01
"""The loss that is accepted where a run does not say which."""


@dataclass(frozen=True, eq=False)
class Stored:
    """A model in one way to store it: its bytes, and by text the sum of its losses and its right predictions."""

    model: str
    name: str
    bytes: float
    losses: Floats
    right: Floats | None = None

    @property
    def title(self) -> str:
        return f"{self.model}, {'as stored' if self.name == ORIGINAL else self.name}"


@dataclass(frozen=True, eq=False)
class Ranking:
    """Points of all models that can be compared. `weights` are what the losses of each text are divided by: tokens,
    bytes, or 1 for an answer to each."""

    measure: str
    points: Sequence[Stored]
    weights: Floats
    not_ranked: Mapping[str, str] = field(default_factory=dict)
    allowed: float = ALLOWED
    max_bytes: float | None = None
    bytes_per_token: Mapping[str, float] = field(default_factory=dict)
    """By model, on these texts, where it is known."""
    not_finite: Sequence[str] = ()
    """Points without a finite loss, which take no part."""

    def __post_init__(self) -> None:
        values = np.array([point.losses.sum() for point in self.points]) / self.weights.sum()
        object.__setattr__(self, "_values", dict(zip(map(id, self.points), values.tolist(), strict=True)))

    def loss(self, point: Stored) -> float:
        """Mean over tokens, bytes or answers."""
        return float(self._values[id(point)])  # type: ignore[attr-defined]

    def shown(self, value: float) -> float:
        """A loss as it is drawn: perplexities are e to it."""
        return value if self.measure == LOSS else math.exp(min(value, 700.0))

    def quality(self, point: Stored) -> Number:
        """Its perplexity or loss, with the interval over texts."""
        low, high, reason = ratio_interval(point.losses, self.weights)
        return _number(self.shown(self.loss(point)), self.shown(low), self.shown(high), reason)

    def accuracy(self, point: Stored) -> float | None:
        return None if point.right is None else float(point.right.sum() / self.weights.sum())

    @property
    def ranked(self) -> list[Stored]:
        """The points, the best first; of equal losses the smaller."""
        return sorted(self.points, key=lambda point: (self.loss(point), point.bytes))

    @property
    def best(self) -> Stored:
        """The best model as stored, which all are compared with: the best of many roundings is so by chance."""
        return next((point for point in self.ranked if point.name == ORIGINAL), self.ranked[0])

    def dominates(self, one: Stored, other: Stored) -> bool:
        """Whether `one` is as small and as good as `other`, and better in one of the two."""
        mine, theirs = (one.bytes, self.loss(one)), (other.bytes, self.loss(other))
        return mine[0] <= theirs[0] and mine[1] <= theirs[1] and mine != theirs

    def dominated_by(self, point: Stored) -> list[Stored]:
        """All points that dominate it, the best first."""
        return [other for other in self.ranked if self.dominates(other, point)]

    @property
    def frontier(self) -> list[Stored]:
        """Points that no other dominates, from small to large."""
        return sorted((p for p in self.ranked if not self.dominated_by(p)), key=lambda point: point.bytes)

    def change(self, point: Stored, beside: Stored) -> Number:
        """What it loses beside another, paired by text: a share of perplexity, right answers or loss."""
        if point is beside:
            return Number(0.0, 0.0, 0.0)
        if self.measure == LOSS and point.right is not None and beside.right is not None:
            less = beside.right - point.right
            low, high, reason = ratio_interval(less, self.weights)
            return _number(float(less.sum() / self.weights.sum()), low, high, reason)
        more = point.losses - beside.losses
        value, (low, high, reason) = float(more.sum() / self.weights.sum()), ratio_interval(more, self.weights)
        if self.measure != LOSS:
            value, low, high = (math.expm1(min(end, 700.0)) for end in (value, low, high))
            return _number(value, low, high, reason)
        size = abs(self.loss(beside)) or 1.0
        return _number(value / size, low / size, high / size, reason)

    def is_within(self, point: Stored) -> bool:
        """Whether the texts show that it loses no more than is allowed beside the best, at the upper end of the
        interval; of right answers, and without an interval, by the number itself."""
        change = self.change(point, self.best)
        assert change.value is not None
        by_number = change.high is None or (self.measure == LOSS and point.right is not None)
        return change.value <= self.allowed and (by_number or (change.high or 0.0) <= self.allowed)

    def smallest(self) -> Stored:
        """The smallest on the frontier that is within the loss of the best; the best itself if none is."""
        return next((point for point in self.frontier if self.is_within(point)), self.best)

    def at_size(self, size: float) -> Stored | None:
        """The best of at most so many bytes."""
        return next((point for point in self.ranked if point.bytes <= size), None)


def _number(value: float, low: float, high: float, reason: str | None) -> Number:
    return Number(value, None, None, no_interval=reason) if reason is not None else Number(value, low, high)


class Texts(Part):
    """What `SharedTexts` recorded of a model."""

    quantities = Q

    def of_texts(self, name: str, ids: Sequence[str], **labels: str) -> Floats | None:
        """A number of each text; None if one is missing."""
        found = {e.scope: e.cells[name][0] for e in self.entries if e.kind == "text" and name in e.cells
                 and dict(e.labels) == labels}  # fmt: skip
        values = [found.get(each) for each in ids]
        return None if any(value is None for value in values) else np.array(values, dtype=np.float64)

    @property
    def sizes(self) -> dict[str, float]:
        return {e.scope: e["packed_bytes"].value or 0.0 for e in self.entries if e.kind == "configuration"}


def read_ranking(
    runs: Mapping[str, Run], allowed: float | None = None, max_bytes: float | None = None
) -> Ranking | None:
    """The ranking of the models that were measured on the same texts; None if the runs were not made for one."""
    why: dict[str, str] = {}
    found: dict[str, Texts] = {}
    for label, run in runs.items():
        about = (run.manifest.get("audited") or {}).get("about") or {}
        records = [r for r in run.reader.records() if class_of(r.probe) == Q.probe and not r.error]
        if "not_ranked" in about:
            why[label] = str(about["not_ranked"])
        elif records:
            found[label] = Texts(records[-1].probe, records[-1].notes, entries_of(records[-1:]))
    if not found:
        return Ranking(LOSS, [], np.ones(1), why) if why else None
    why |= {label: "it was not audited together with the others" for label in runs if label not in found | why}
    return _ranked(found, why, allowed, max_bytes)


def _ranked(found: Mapping[str, Texts], why: dict[str, str], allowed: float | None, max_bytes: float | None) -> Ranking:
    first, *_ = found
    kept: dict[str, Texts] = {}
    ids = list(found[first].notes["read_as"])
    for label, texts in found.items():
        reason = _unlike(found[first], texts, first)
        common = [each for each in ids if each in texts.notes["read_as"]]
        if reason is None and not common:
            reason = f"it was measured on other texts than {first}"
        if reason is not None:
            why[label] = reason
            continue
        ids, kept[label] = common, texts
    tokens = bool(kept[first].notes["tokens"])
    same = all(t.notes["read_as"][i] == kept[first].notes["read_as"][i] for t in kept.values() for i in ids)
    measure = LOSS if not tokens else PERPLEXITY if same else PER_BYTE
    if measure == PER_BYTE and any(t.of_texts("text_bytes", ids) is None for t in kept.values()):
        why |= {label: f"it reads the texts as other tokens than {first}, and their bytes are not known"
                for label in kept if label != first}  # fmt: skip
        kept, measure = {first: kept[first]}, PERPLEXITY
    weights = kept[first].of_texts("text_bytes" if measure == PER_BYTE else "text_positions", ids)
    assert weights is not None
    points = [point for label, texts in kept.items() for point in _points(label, texts, ids)]
    broken = [p.title for p in points if not np.isfinite(p.losses).all()]
    points = [point for point in points if point.title not in broken]
    per_token = {label: rate for label, texts in kept.items() if (rate := _bytes_per_token(texts, ids)) is not None}
    accepted = ALLOWED if allowed is None else allowed
    return Ranking(measure, points, weights, why, accepted, max_bytes, per_token, broken)


def _unlike(first: Texts, other: Texts, name: str) -> str | None:
    """Why the losses of two models are not the same thing."""
    if first.notes["tokens"] != other.notes["tokens"]:
        return f"it does not answer as {name} does: one predicts tokens, the other does not"
    if not first.notes["tokens"] and first.notes["classes"] != other.notes["classes"]:
        return f"it has {other.notes['classes']} classes, and {name} has {first.notes['classes']}"
    given = all(value is not None for texts in (first, other) for value in texts.notes["read_as"].values())
    if given and first.notes["tokens"] and first.notes["classes"] != other.notes["classes"] and _ids_only(other):
        return f"it has {other.notes['classes']:,} tokens, and {name} has {first.notes['classes']:,}: give data as text"
    return None


def _ids_only(texts: Texts) -> bool:
    """Whether the data were token ids: what they stand for is not known."""
    return texts.of_texts("text_bytes", list(texts.notes["read_as"])) is None


def _points(label: str, texts: Texts, ids: Sequence[str]) -> list[Stored]:
    points = []
    for name, size in texts.sizes.items():
        losses = texts.of_texts("text_loss", ids, configuration=name)
        losses = np.full(len(ids), np.nan) if losses is None else losses
        points.append(Stored(label, name, size, losses, texts.of_texts("text_right", ids, configuration=name)))
    return points


def _bytes_per_token(texts: Texts, ids: Sequence[str]) -> float | None:
    sizes, tokens = texts.of_texts("text_bytes", ids), texts.of_texts("text_positions", ids)
    return None if sizes is None or tokens is None else float(sizes.sum() / tokens.sum())


def ranking_json(ranking: Ranking | None) -> dict[str, Any] | None:
    """Every point with its numbers and what dominates it, as plain values."""
    if ranking is None:
        return None
    return {
        "measure": ranking.measure, "texts": len(ranking.weights) if ranking.points else 0,
        "allowed": ranking.allowed, "not_ranked": dict(ranking.not_ranked), "not_finite": list(ranking.not_finite),
        "points": [_point_json(ranking, point) for point in ranking.points],
    }  # fmt: skip


def _point_json(ranking: Ranking, point: Stored) -> dict[str, Any]:
    number, change = ranking.quality(point), ranking.change(point, ranking.best)
    above = ranking.dominated_by(point)
    return {
        "model": point.model, "name": point.name, "bytes": point.bytes, "value": number.value, "low": number.low,
        "high": number.high, "no_interval": number.no_interval, "accuracy": ranking.accuracy(point),
        "change": change.value, "change_low": change.low, "change_high": change.high,
        "dominated_by": above[0].title if above else None, "dominated_by_count": len(above),
    }  # fmt: skip
