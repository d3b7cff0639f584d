"""How good a finished model is on its data: loss, perplexity, accuracy, each with an interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

from torch import Tensor

from learnscope.core.moment import Moment
from learnscope.core.probe import At, Probe
from learnscope.intervals import wilson
from learnscope.model.outputs.metrics import Sums, summed_by_example
from learnscope.options import check_whole, is_whole
from learnscope.quantities import Quantities, Quantity
from learnscope.quantities.outputs import Performance as Q
from learnscope.record import Label, Measurement, Table
from learnscope.tensor.bootstrap import FEWEST, TOO_FEW, ratio_interval

NO_CLASSES = "float targets: numbers, or several yes/no answers, of which none is the right class"
NO_TOKENS = "the model does not predict tokens: its classes are no vocabulary, or its task has a loss of its own"
NO_POSITIONS = "no position of the data has a target"


class Performance(Probe):
    """Loss and accuracy over all of the data, in one pass.

    Intervals are a bootstrap over examples; of shares, Wilson's over examples where each has one position, and where
    all or none are right, of which a bootstrap knows nothing.
    Of equal logits the first counts as the larger, as argmax has it. A row of logits with a NaN is never right.
    """

    at: At = "once"
    top_k: Sequence[int] = (1, 5, 10)
    resamples: int = 1000
    """How often the examples are drawn again for an interval."""
    seed: int = 0
    needs: ClassVar[frozenset[str]] = frozenset({"holdout"})
    reads_only: ClassVar[bool] = True  # the pass has a guard of its own
    quantities: ClassVar[type[Quantities]] = Q
    cost: ClassVar[str] = "one forward of all of the data"

    def __post_init__(self) -> None:
        super().__post_init__()
        ks = list(self.top_k) if isinstance(self.top_k, Sequence) else [0]
        if not all(is_whole(k, 1) for k in ks) or len(set(ks)) < len(ks):
            raise ValueError(f"Performance(top_k={self.top_k!r}): different whole numbers from 1")
        check_whole(self, resamples=1, seed=0)

    def measure(self, moment: Moment) -> Measurement:
        part = {"what": "performance", "top_k": list(self.top_k), "resamples": self.resamples, "seed": self.seed}
        found = moment.remember(part, lambda: self._measured(moment))
        columns = [
            Q.named(name).column([value], labels, {0: status} if status else {})
            for name, labels, value, status in found["columns"]
        ]
        return Measurement([Table("model", ["model"], columns)])

    def _measured(self, moment: Moment) -> dict[str, Any]:
        batches = moment.track(list(moment.subject.holdout or ()), "loss and accuracy")
        sums = summed_by_example(moment.model, moment.task, batches, self.top_k)
        positions, examples = int(sums.positions.sum()), int((sums.positions > 0).sum())
        out = _Numbers()
        loss = float(sums.loss.sum()) / positions if positions else math.nan
        ends = ratio_interval(sums.loss, sums.positions, resamples=self.resamples, seed=self.seed)
        why = None if positions else NO_POSITIONS
        if math.isnan(loss) and positions:
            why = f"the losses of {int(sums.loss.isnan().sum())} of {examples} examples are NaN"
        few = TOO_FEW if why is None and examples < FEWEST else why
        out.put(Q.loss, loss, ends, why, few)
        why, few = (why, few) if sums.tokens else (NO_TOKENS, NO_TOKENS)
        exps = _exp(loss), (_exp(ends[0]), _exp(ends[1]))
        out.put(
            Q.perplexity,
            *(exps if sums.tokens else _NOTHING),
            why,
            TOO_FEW if sums.tokens and examples < FEWEST else why,
        )
        self._share(out, Q.accuracy, {}, sums.right, sums)
        for k in self.top_k:
            self._share(out, Q.top_k_accuracy, {"k": k}, sums.within.get(k), sums)
        counts = (Q.examples, examples), (Q.positions, positions)
        return {"columns": [*out.columns, *([quantity.name, {}, number, None] for quantity, number in counts)]}

    def _share(
        self, out: _Numbers, quantity: Quantity, labels: dict[str, Label], right: Tensor | None, sums: Sums
    ) -> None:
        positions, examples = float(sums.positions.sum()), int((sums.positions > 0).sum())
        if right is None or not positions:
            why = NO_CLASSES if sums.classes is None else NO_POSITIONS if not positions else (
                f"the model tells only {sums.classes} classes apart"
            )  # fmt: skip
            out.put(quantity, *_NOTHING, why, why, labels)
            return
        share = float(right.sum()) / positions
        if share in (0.0, 1.0) or positions == examples:
            ends = wilson(share, examples)
        else:
            ends = ratio_interval(right, sums.positions, resamples=self.resamples, seed=self.seed)
        out.put(quantity, share, ends, None, TOO_FEW, labels)


_NOTHING: tuple[float, tuple[float, float]] = math.nan, (math.nan, math.nan)


class _Numbers:
    """Columns as JSON keeps them: name, labels, value, and why there is none."""

    def __init__(self) -> None:
        self.columns: list[list[Any]] = []

    def put(
        self, quantity: Quantity, value: float, ends: tuple[float, float], why: str | None,
        why_no_interval: str | None, labels: dict[str, Label] | None = None,
    ) -> None:  # fmt: skip
        reasons = why, why_no_interval, why_no_interval
        for end, number, reason in zip(("", "_low", "_high"), (value, *ends), reasons, strict=True):
            missing = math.isnan(number)
            self.columns.append(
                [f"{quantity.name}{end}", labels or {}, None if missing else number, reason if missing else None]
            )


def _exp(number: float) -> float:
    try:
        return math.exp(number)
    except OverflowError:
        return math.inf
