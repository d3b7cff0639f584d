"""Which training examples the way from the last measurement to this one rests on."""

from __future__ import annotations

import math
from collections import Counter
from typing import ClassVar

import torch
from torch import Tensor

from learnscope.core.moment import Moment
from learnscope.core.probe import At, Probe
from learnscope.model.examples.attribution import Transition, transition_since
from learnscope.model.examples.noted import NotedBatches
from learnscope.quantities import Quantities
from learnscope.quantities.examples import ExampleTransitions as Q
from learnscope.record import Measurement, Table

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
TOP = 0.1
"""Share of the examples that is called the top."""


class ExampleTransitions(Probe):
    """Each training example's gradient and loss at the weights of the last measurement, against those of now.

    Its score is the cosine of the two gradients times the loss that it lost. Both sides are in eval mode, and buffers
    (the statistics of batch norm) are those of now on both.

    Arrays, an entry an example: `scores`, `cosine`, `loss_before`, `loss_after`, and `example`, its id or position.
    Gradients take at most `max_mb`.
    """

    every: int = 1
    at: At = "epoch"
    parameters: str | None = None
    """A pattern that chooses among the parameters; None for all that are trained."""
    max_mb: float = 256.0
    keep_arrays: bool = True
    needs: ClassVar[frozenset[str]] = frozenset({"previous", "train_data"})
    reads_only: ClassVar[bool] = True  # every pass has a guard of its own
    quantities: ClassVar[type[Quantities]] = Q
    cost: ClassVar[str] = "two backward passes of every training example that the session keeps, many at a time"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.max_mb > 0:
            raise ValueError(f"ExampleTransitions(max_mb={self.max_mb!r}): megabytes, more than 0")

    def measure(self, moment: Moment) -> Measurement:
        before = moment.previous
        before.check(moment.subject.by_name())
        data = NotedBatches(list(moment.train_data), moment.task)
        batches = list(data)
        found = transition_since(
            moment.model, before.tensors, moment.task, batches,
            parameters=self.parameters, max_bytes=int(self.max_mb * 1e6),
        )  # fmt: skip
        arrays = {
            "scores": found.score, "cosine": found.cosine, "loss_before": found.loss_before,
            "loss_after": found.loss_after, "example": data.notes().ids,
        }  # fmt: skip
        notes = {"since_step": before.step, "how": found.how, "without_score": dict(Counter(found.reasons.values()))}
        return Measurement(_tables(found), arrays if self.keep_arrays else {}, notes)


def _tables(found: Transition) -> list[Table]:
    known = found.score.isfinite()
    drop = found.loss_before - found.loss_after
    share, why = _top_share(found.score[known], drop[known], drop[drop.isfinite()])
    cosine, drops = found.cosine[known], drop[known]
    none = {} if known.any() else {0: "no example has a score"}
    columns = [Q.examples.column([len(known)]), Q.without_score.column([int((~known).sum())])]
    for quantity, values in ((Q.mean_cosine, cosine), (Q.mean_loss_drop, drops)):
        columns.append(quantity.column([float(values.mean()) if len(values) else None], status=none))
    columns.append(Q.top_share.column([share], status={0: why} if why else {}))
    at = torch.tensor(QUANTILES, dtype=torch.float64)
    reasons = {place: why for place in range(len(QUANTILES)) for why in none.values()}
    made = [
        quantity.column(torch.quantile(values, at).tolist() if len(values) else [None] * len(QUANTILES), status=reasons)
        for quantity, values in ((Q.cosine, cosine), (Q.loss_drop, drops))
    ]
    return [Table("model", ["model"], columns), Table("quantile", [str(q) for q in QUANTILES], made)]


def _top_share(scores: Tensor, drop: Tensor, every_drop: Tensor) -> tuple[float | None, str | None]:
    total = float(every_drop.sum())
    if not len(scores):
        return None, "no example has a score"
    if not total > 0:
        return None, "the examples together lost no loss"
    top = scores.argsort(descending=True, stable=True)[: math.ceil(TOP * len(scores))]
    return float(drop[top].sum()) / total, None
