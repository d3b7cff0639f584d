"""Metrics of low rank, gradients, moments, activations and the loss landscape: probes as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from learnscope.analysis.metrics.base import ALL_EXAMPLES, ProbeMetrics
from learnscope.probes.features.activations import Activations
from learnscope.probes.gradients.gradient_flow import GradientFlow
from learnscope.probes.landscape.loss_landscape import LossLandscape
from learnscope.probes.updates.low_rank_quality import LowRankQuality
from learnscope.probes.updates.momentum import Momentum


class LowRankQualityMetrics(ProbeMetrics):
    """`low_rank/*`: how close the outputs would be with an update of low rank, and which rank would do."""

    kinds = ("model", "layer", "component")

    def __init__(self, ranks: Sequence[int] = (1, 2, 4, 8, 16, 32), **options: Any) -> None:
        super().__init__(LowRankQuality(ranks=list(ranks), examples=ALL_EXAMPLES, **options), "low_rank")


class GradientMetrics(ProbeMetrics):
    """`gradient/*`: norm and variance overall and per layer, NaN, Inf, clipping."""

    kinds = ("model", "layer", "group")

    def __init__(self, **options: Any) -> None:
        super().__init__(GradientFlow(**{"variance": True, **options}), "gradient")


class MomentumMetrics(ProbeMetrics):
    """`momentum/*`: Adam's moments, the effective step, signal-to-noise and staleness, per layer and group."""

    kinds = ("model", "layer", "group")

    def __init__(self, **options: Any) -> None:
        super().__init__(Momentum(**options), "momentum")


class ActivationMetrics(ProbeMetrics):
    """`activation/*`: dead and saturated units, scale and kurtosis, overall and per layer."""

    def __init__(self, **options: Any) -> None:
        super().__init__(Activations(**{"examples": ALL_EXAMPLES, "per_site": False, **options}), "activation")


class LossLandscapeMetrics(ProbeMetrics):
    """`landscape/*`: sharpness, preconditioned sharpness, trace, and the loss along a direction."""

    def __init__(self, **options: Any) -> None:
        super().__init__(LossLandscape(**{"examples": ALL_EXAMPLES, **options}), "landscape")
