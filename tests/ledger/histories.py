"""Histories of examples kept whole, and what they come to, computed in the plainest way."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from learnscope.ledger import Ledger

N, CLASSES = 90, 4


def data() -> TensorDataset:
    """Examples for loops that visit them."""
    generator = torch.Generator().manual_seed(3)
    return TensorDataset(torch.randn(N, 6, generator=generator), torch.randint(CLASSES, (N,), generator=generator))


@dataclass(frozen=True)
class Visit:
    id: int
    epoch: int
    p_gold: float
    correct: bool
    margin: float
    loss: float
    el2n: float
    grand: float = math.nan

    @property
    def finite(self) -> bool:
        return all(map(math.isfinite, (self.p_gold, self.margin, self.loss, self.el2n)))


def visits_of(ids: Tensor, logits: Tensor, targets: Tensor, epoch: int) -> list[Visit]:
    """The examples of a batch one by one, in float64."""
    made = []
    for i, z, y in zip(ids.tolist(), logits.detach().double(), targets.tolist(), strict=True):
        p = z.softmax(0)
        others = torch.cat([z[:y], z[y + 1 :]])
        el2n = float((p - torch.eye(len(z), dtype=torch.float64)[y]).norm())
        made.append(
            Visit(i, epoch, float(p[y]), int(z.argmax()) == y, float(z[y] - others.max()), -float(p[y].log()), el2n)
        )
    return made


def fill(visits: list[Visit], batch: int = 4, **settings: Any) -> Ledger:
    """A ledger that has seen these, so many at a time; a batch does not go beyond its epoch."""
    ledger = Ledger(**settings)
    epochs: dict[int, list[Visit]] = defaultdict(list)
    for visit in visits:
        epochs[visit.epoch].append(visit)
    for epoch, all_of_it in epochs.items():
        for start in range(0, len(all_of_it), batch):
            part = all_of_it[start : start + batch]
            names = ("p_gold", "correct", "margin", "loss", "el2n", "grand")
            values: dict[str, Any] = {name: [getattr(visit, name) for visit in part] for name in names}
            ledger.update([visit.id for visit in part], epoch=epoch, **values)
    return ledger


def expected(visits: list[Visit]) -> pd.DataFrame:
    """The same numbers from whole histories, with nothing streamed."""
    histories: dict[int, list[Visit]] = defaultdict(list)
    for visit in visits:
        histories[visit.id].append(visit)
    return pd.DataFrame([_row(id_, history) for id_, history in sorted(histories.items())])


def _row(id_: int, history: list[Visit]) -> dict[str, Any]:
    right = [visit.correct for visit in history]
    finite = [visit for visit in history if visit.finite]
    grand = [visit.grand for visit in history if math.isfinite(visit.grand)]
    learned = next((n for n in range(1, len(right) + 1) if all(right[n - 1 :])), None)
    return {
        "id": id_,
        "presentations": len(history),
        "nonfinite": len(history) - len(finite),
        "confidence": _mean([visit.p_gold for visit in finite]),
        "variability": statistics.pstdev([visit.p_gold for visit in finite]) if finite else math.nan,
        "correctness": sum(right) / len(right),
        "forgetting_events": sum(a and not b for a, b in itertools.pairwise(right)),
        "never_learned": not any(right),
        "unforgettable": any(right) and all(right[right.index(True) :]),
        "first_correct": right.index(True) + 1 if any(right) else None,
        "last_correct": len(right) - right[::-1].index(True) if any(right) else None,
        "first_learned": learned,
        "learned_epoch": None if learned is None else history[learned - 1].epoch,
        "first_epoch": history[0].epoch,
        "last_epoch": history[-1].epoch,
        "aum": _mean([visit.margin for visit in finite]),
        "cumulative_loss": math.fsum(visit.loss for visit in finite) if finite else math.nan,
        "el2n_mean": _mean([visit.el2n for visit in finite]),
        "el2n_last": finite[-1].el2n if finite else math.nan,
        "grand_mean": _mean(grand),
        "grand_last": grand[-1] if grand else math.nan,
    }


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


def assert_same(found: pd.DataFrame, wanted: pd.DataFrame) -> None:
    """Every column of `wanted`: whole numbers and flags exactly, the rest to float64's rounding."""
    assert len(found) == len(wanted)
    for name in wanted:
        a = np.array([math.nan if pd.isna(v) else float(v) for v in found[name]])
        b = np.array([math.nan if pd.isna(v) else float(v) for v in wanted[name]])
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12, err_msg=str(name))
