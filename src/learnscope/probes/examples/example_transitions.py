"""Which training examples account for the change since the last measurement."""

from __future__ import annotations

import math
from collections import Counter

import torch
from torch import Tensor

from learnscope.core.moment import Moment
from learnscope.core.probe import At, Probe
from learnscope.model.examples.attribution import Transition, transition_since
from learnscope.model.examples.groups import BatchesWithMetadata
from learnscope.model.selection import check_pattern
from learnscope.model.weights.rounded import as_they_were, precision_note
from learnscope.quantities.examples import ExampleTransitions as Q
from learnscope.record import Measurement, Table

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
TOP = 0.1
"""Share of the examples that is called the top."""
NO_SCORE = "no example has a score"


class ExampleTransitions(Probe):
    """Each training example's gradient and loss at the weights of the last measurement, against those of now.

    Its score is the cosine of the two gradients times the loss that it lost. Both sides are in eval mode, and buffers
    (the statistics of batch norm) are those of now on both.

    Arrays, one entry per example: `scores`, `cosine`, `loss_before`, `loss_after`, and `example`, its id or position.
    Gradients take at most `max_mb`.
    """

    at: At = "epoch"
    parameters: str | None = None
    """A pattern that chooses among the parameters; None for all that are trained."""
    max_mb: float = 256.0
    keep_arrays: bool = True
    needs = frozenset({"previous", "train_data"})
    reads_only = True  # every pass has a guard of its own
    cost = "two backward passes of every training example that the session keeps, many at a time"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.max_mb > 0:
            raise ValueError(f"ExampleTransitions(max_mb={self.max_mb!r}): megabytes, more than 0")

    def open(self, moment: Moment) -> None:
        check_pattern(moment.model, type(self).__name__, self.parameters)

    def measure(self, moment: Moment) -> Measurement:
        before = moment.previous
        now = moment.subject.by_name()
        before.check(now)
        data = BatchesWithMetadata(list(moment.train_data), moment.task)
        transition = transition_since(
            moment.model, dict(as_they_were(before, now)), moment.task, list(data),
            parameters=self.parameters, max_bytes=int(self.max_mb * 1e6),
        )  # fmt: skip
        arrays = {
            "scores": transition.score, "cosine": transition.cosine, "loss_before": transition.loss_before,
            "loss_after": transition.loss_after, "example": data.metadata().ids,
        }  # fmt: skip
        without_score = dict(Counter(transition.reasons.values()))
        notes = {"since_step": before.step, "how": transition.how, "without_score": without_score}
        notes |= precision_note(before, now)
        return Measurement(_tables(transition), arrays if self.keep_arrays else {}, notes)


def _tables(transition: Transition) -> list[Table]:
    scored = transition.score.isfinite()
    drop = transition.loss_before - transition.loss_after
    cosines, drops = transition.cosine[scored], drop[scored]
    share: float | str = NO_SCORE
    means: list[float | str] = [NO_SCORE, NO_SCORE]
    quantiles: list[list[float | str]] = [[NO_SCORE] * len(QUANTILES)] * 2
    if len(drops):
        share = _top_share(transition.score[scored], drops, float(drop[drop.isfinite()].sum()))
        means = [float(cosines.mean()), float(drops.mean())]
        at = torch.tensor(QUANTILES, dtype=torch.float64)
        quantiles = [torch.quantile(values, at).tolist() for values in (cosines, drops)]
    model = [
        Q.examples.cells([len(scored)]), Q.without_score.cells([int((~scored).sum())]),
        Q.mean_cosine.cells([means[0]]), Q.mean_loss_drop.cells([means[1]]), Q.top_share.cells([share]),
    ]  # fmt: skip
    spread = [Q.cosine.cells(quantiles[0]), Q.loss_drop.cells(quantiles[1])]
    return [Table("model", ["model"], model), Table("quantile", [str(q) for q in QUANTILES], spread)]


def _top_share(scores: Tensor, drop: Tensor, total: float) -> float | str:
    if not total > 0:
        return "the examples together lost no loss"
    top = scores.argsort(descending=True, stable=True)[: math.ceil(TOP * len(scores))]
    return float(drop[top].sum()) / total
