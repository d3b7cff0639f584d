"""Whether a sparse update would have sufficed, by the documented keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from learnscope.analysis.metrics.base import ALL_EXAMPLES, ProbeMetrics
from learnscope.analysis.naming import sparse_quality_keys
from learnscope.analysis.primitives import THRESHOLDS
from learnscope.probes.updates.sparse_quality import Baseline, SparseQuality
from learnscope.record import Table


class SparseQualityMetrics(ProbeMetrics):
    """`sparse/*`: how close the outputs would be without the changes up to each threshold."""

    def __init__(
        self,
        thresholds: Sequence[float] = THRESHOLDS,
        include_random: bool = True,
        include_random_changed: bool = True,
        **snapshot: Any,
    ) -> None:
        baselines: list[Baseline] = ["random"] if include_random else []
        baselines += ["random_changed"] if include_random and include_random_changed else []
        self.thresholds = list(thresholds)
        probe = SparseQuality(thresholds=self.thresholds, baselines=baselines, examples=ALL_EXAMPLES, **snapshot)
        super().__init__(probe, "sparse")

    def plain(self, tables: Sequence[Table]) -> Mapping[str, float]:
        return sparse_quality_keys(tables, self.thresholds)
