"""Numbers that the loop logs."""

from __future__ import annotations

import math
from functools import lru_cache

import torch

from learnscope.core.moment import Moment
from learnscope.core.probe import Probe
from learnscope.quantities import Quantity
from learnscope.quantities.outputs import Loss as Q
from learnscope.record import Measurement, Table


class Loss(Probe):
    """The loss, and whatever else the loop passes to `w.log`.

    If the loss stands out from those before, or is not finite, the notes `rows` and `rows_before` hold the ids of the
    examples of this step and of the one before, where the loop hands them over (`w.examples`, `w.batch`).
    """

    needs = frozenset({"logged"})
    reads_only = True
    cost = "nothing but keeping the numbers"

    def may_measure_later(self, moment: Moment) -> bool:
        for values in moment.handed.logged.values():
            if len(values) != 1 or type(values[0]) is not float or not math.isfinite(values[0]):
                return False
        return True

    def measure(self, moment: Moment) -> Measurement:
        columns = []
        for name, values in moment.logged.items():
            for value in values:
                if isinstance(value, torch.Tensor) and value.numel() != 1:
                    raise ValueError(
                        f"w.log({name}=…) was given a tensor of shape {tuple(value.shape)}; log one number"
                    )
            logged, deviation = _quantities(name)
            if len(values) == 1:
                columns.append(logged.column(list(values)))
            else:
                parts = [torch.as_tensor(value).reshape(()).to(torch.float64) for value in values]
                stacked = torch.stack([part.to(parts[0].device) for part in parts])
                columns += [logged.column(stacked.mean().reshape(1)), deviation.column(stacked.std().reshape(1))]
        notes = {name: list(rows) for name, rows in moment.handed.rows.items()}
        return Measurement([Table("model", ["model"], columns)], notes=notes)


@lru_cache(maxsize=256)
def _quantities(name: str) -> tuple[Quantity, Quantity]:
    return Q.logged.at(key=name), Q.deviation.at(key=name)
