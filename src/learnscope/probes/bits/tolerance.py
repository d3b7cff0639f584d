"""What a model may lose in fewer bits: how much, and whether the examples can tell that it lost anything."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from learnscope.intervals import wilson
from learnscope.model.outputs.scores import interval

Scores = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Loss:
    """What a configuration loses: the number, its 95 % interval (NaN, and a reason, if there is none), what is allowed.

    `measure` is "perplexity" (a share more), "accuracy" (a share of the answers less), "loss" (a share more), or the
    distance of the outputs, "kl" or "mse", where there are no targets.
    """

    measure: str
    change: float
    low: float
    high: float
    allowed: float
    reason: str | None
    n: int

    @property
    def near(self) -> bool:
        """Whether the number itself is at most what is allowed."""
        return self.change <= self.allowed

    @property
    def within(self) -> bool:
        """Whether the examples show that no more is lost than is allowed: the upper end of the interval is within, so
        that few examples do not make a bad model good. Without an interval, and for accuracies, whose intervals take
        hundreds of examples to be so narrow, the number itself decides."""
        decided = self.reason is not None or self.measure == "accuracy"
        return self.near and (decided or self.high <= self.allowed)

    @property
    def told_apart(self) -> bool | None:
        """Whether the loss is more than chance; None if there is no interval.

        A distance is always above 0: it counts as told apart if it may be more than what is allowed.
        """
        if self.reason is not None or math.isnan(self.low):
            return None
        return self.high > self.allowed if self.measure in ("kl", "mse") else self.low > 0

    def to_json(self) -> dict[str, Any]:
        low, high = (end if math.isfinite(end) else None for end in (self.low, self.high))
        return {
            "measure": self.measure, "change": self.change, "low": low, "high": high,
            "allowed": self.allowed, "within": self.within, "told_apart": self.told_apart, "reason": self.reason,
            "n": self.n,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tolerance:
    """`share`: of the perplexity, of the loss, or of the answers that are right."""

    share: float

    def loss(self, original: Scores, scores: Scores) -> Loss:
        """What these scores lose beside the model's own on the same examples."""
        n = sum(1 for count in scores["sums"]["positions"] if count)
        if scores.get("loss") is None:
            name = "mse" if scores["regression"] else "kl"
            allowed = self.share if name == "mse" else math.log1p(self.share)
            return Loss(name, scores[name], *interval(scores, name)[:2], allowed, interval(scores, name)[2], n)
        if not scores["tokens"] and scores["accuracy"] is not None:
            low, high, reason = interval(original, "right", scores)
            if reason is not None and original["sums"]["right"] == scores["sums"]["right"]:
                low, high, reason = 0.0, wilson(0.0, n)[1], None  # not one answer changed
            return Loss("accuracy", original["accuracy"] - scores["accuracy"], low, high, self.share, reason, n)
        change = scores["loss"] - original["loss"]
        low, high, reason = interval(scores, "loss", original)
        if scores["tokens"]:
            ratio = _ratio(change), _ratio(low), _ratio(high)
            return Loss("perplexity", *ratio, self.share, reason, n)
        size = abs(original["loss"]) or 1.0
        return Loss("loss", change / size, low / size, high / size, self.share, reason, n)

    def is_near(self, original: Scores, scores: Scores) -> bool:
        return self.loss(original, scores).near

    def excess(self, original: Scores, scores: Scores) -> float:
        """How many times what is allowed is lost."""
        loss = self.loss(original, scores)
        return loss.change / loss.allowed


def _ratio(change: float) -> float:
    """By which share exp(loss) grows."""
    try:
        return math.expm1(change)
    except OverflowError:
        return math.inf
