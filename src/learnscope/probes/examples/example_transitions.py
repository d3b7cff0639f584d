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
from learnscope.model.examples.noted import Noted
from learnscope.record import Column, Measurement, Table

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
TOP = 0.1
"""Share of the examples that is called the top."""


class ExampleTransitions(Probe):
    """Each training example's gradient and loss at the weights of the last measurement, against those of now.

    Its score is the cosine of the two gradients times the loss that it lost. Both sides are in eval mode, and buffers
    (the statistics of batch norm) are those of now on both.

    | name | kind | meaning |
    |---|---|---|
    | `examples`, `without_score` | model | of the training data that are looked at |
    | `mean_<number>` | model | mean over the examples with a score of `cosine` and `loss_drop` (loss then − now) |
    | `<number>` | quantile | quantiles of the same |
    | `top_share` | model | of the loss that all examples lost together, what the tenth with the highest scores \
lost; above 1 if others gained |

    Arrays, an entry an example: `scores`, `cosine`, `loss_before`, `loss_after`, and `example`, its id or position.
    Costs two backward passes an example, many at a time; gradients take at most `max_mb`.
    """

    every: int = 1
    at: At = "epoch"
    parameters: str | None = None
    """A pattern that chooses among the parameters; None for all that are trained."""
    max_mb: float = 256.0
    keep_arrays: bool = True
    needs: ClassVar[frozenset[str]] = frozenset({"previous", "train_data"})
    reads_only: ClassVar[bool] = True  # every pass has a guard of its own

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.max_mb > 0:
            raise ValueError(f"ExampleTransitions(max_mb={self.max_mb!r}): megabytes, more than 0")

    def measure(self, moment: Moment) -> Measurement:
        before = moment.previous
        before.check(moment.subject.by_name())
        data = Noted(list(moment.train_data), moment.task)
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
    spread = {"cosine": found.cosine[known], "loss_drop": drop[known]}
    none = {} if known.any() else {0: "no example has a score"}
    columns = [Column("examples", [len(known)]), Column("without_score", [int((~known).sum())])]
    for name, values in spread.items():
        columns.append(Column(f"mean_{name}", [float(values.mean()) if len(values) else None], status=none))
    columns.append(Column("top_share", [share], status={0: why} if why else {}))
    tables = [Table("model", ["model"], columns)]
    at = torch.tensor(QUANTILES, dtype=torch.float64)
    reasons = {place: why for place in range(len(QUANTILES)) for why in none.values()}
    made = [
        Column(name, torch.quantile(values, at).tolist() if len(values) else [None] * len(QUANTILES), status=reasons)
        for name, values in spread.items()
    ]
    return [*tables, Table("quantile", [str(q) for q in QUANTILES], made)]


def _top_share(scores: Tensor, drop: Tensor, every_drop: Tensor) -> tuple[float | None, str | None]:
    total = float(every_drop.sum())
    if not len(scores):
        return None, "no example has a score"
    if not total > 0:
        return None, "the examples together lost no loss"
    top = scores.argsort(descending=True, stable=True)[: math.ceil(TOP * len(scores))]
    return float(drop[top].sum()) / total, None
