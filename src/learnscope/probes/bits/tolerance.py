"""What a model may lose in fewer bits: how much, and whether the examples can tell that it lost anything."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from learnscope.intervals import wilson
from learnscope.model.outputs.scores import interval

Scores = Mapping[str, Any]
NEGLIGIBLE = 0.1
"""Of what may be lost: no more than this does not tell two models apart, however many examples show it."""


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
    kl: float = math.nan
    """The upper end of the interval of the mean KL, or the mean itself if there is none; NaN: it does not decide."""
    kl_allowed: float = math.nan

    @property
    def same(self) -> bool:
        """Whether it cannot be told from the model itself: no loss that is more than chance and counts, and outputs so
        close that seeing one of them hardly tells which of the two it is from."""
        return not self.told_apart and not self.kl > self.kl_allowed

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
        """Whether the loss is more than chance, and more than a tenth of what is allowed; None if there is no interval.

        A distance is always above 0: it counts as told apart if it may be more than what is allowed.
        """
        if self.reason is not None or math.isnan(self.low):
            return None
        if self.measure in ("kl", "mse"):
            return self.high > self.allowed
        return self.low > NEGLIGIBLE * self.allowed

    def to_json(self) -> dict[str, Any]:
        low, high = (end if math.isfinite(end) else None for end in (self.low, self.high))
        return {
            "measure": self.measure, "change": self.change, "low": low, "high": high,
            "allowed": self.allowed, "within": self.within, "told_apart": self.told_apart, "reason": self.reason,
            "n": self.n, "same": self.same, **({} if math.isnan(self.kl) else {"kl_allowed": self.kl_allowed}),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tolerance:
    """`share`: of the perplexity, of the loss, or of the answers that are right."""

    share: float

    @property
    def same_kl(self) -> float:
        """The mean KL up to which the outputs of a language model are the same, whatever its perplexity: 2 share².

        By Pinsker's inequality (Cover and Thomas, *Elements of Information Theory*, 2006, lemma 11.6.1) the total
        variation of the next token's distributions is then at most `share`: of 100 tokens, 99 can be drawn alike, and
        the best guess from which of the two a token is is right in 50.5 % of cases. Perplexity alone does not see
        answers that change for the better as often as for the worse (Dutta, Krishnan, Kwatra and Ramjee, *Accuracy is
        Not All You Need*, NeurIPS 2024).
        """
        return 2 * self.share**2

    def loss(self, original: Scores, scores: Scores) -> Loss:
        """What these scores lose beside the model's own on the same examples."""
        found = self._loss(original, scores)
        if found.measure not in ("perplexity", "kl"):
            return found
        _, high, reason = interval(scores, "kl")
        return replace(found, kl=scores["kl"] if reason is not None else high, kl_allowed=self.same_kl)

    def _loss(self, original: Scores, scores: Scores) -> Loss:
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
