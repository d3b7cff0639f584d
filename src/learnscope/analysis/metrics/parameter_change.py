"""How far and how densely the weights have moved, by the documented keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from learnscope.analysis.metrics.base import ProbeMetrics
from learnscope.analysis.naming import parameter_change_keys
from learnscope.analysis.primitives import THRESHOLDS, ParameterDelta
from learnscope.probes.updates.parameter_change import ParameterChange
from learnscope.record import Table


class ParameterChangeMetrics(ProbeMetrics):
    """`param_change/*`: norms, mean and std of the change, sparsity at thresholds, per layer and component if asked."""

    def __init__(
        self,
        thresholds: Sequence[float] = THRESHOLDS,
        per_layer: bool = False,
        track_components: bool = False,
        **snapshot: Any,
    ) -> None:
        super().__init__(ParameterChange(thresholds=list(thresholds), per_tensor=False, **snapshot), "param_change")
        self.thresholds = list(thresholds)
        self.kinds = ["model", *(["layer"] if per_layer else []), *(["component"] if track_components else [])]

    def compute(self, *, delta: ParameterDelta | None = None, **others: Any) -> dict[str, float]:
        """Needs the change only: two snapshots' difference will do, `ParameterChangeMetrics().compute(delta=b - a)`."""
        if delta is None:
            return super().compute(**others)
        return self.keys([delta.table(kind, self.thresholds) for kind in self.kinds or ()])

    def plain(self, tables: Sequence[Table]) -> Mapping[str, float]:
        return parameter_change_keys(tables, self.thresholds)
