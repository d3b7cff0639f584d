"""The metric computers that come with the analysis, and the class that your own derive from."""

from learnscope.analysis.metrics.base import AnalysisContext, MetricComputer, ProbeMetrics
from learnscope.analysis.metrics.others import (
    ActivationMetrics,
    GradientMetrics,
    LossLandscapeMetrics,
    LowRankQualityMetrics,
    MomentumMetrics,
)
from learnscope.analysis.metrics.parameter_change import ParameterChangeMetrics
from learnscope.analysis.metrics.sparse_quality import SparseQualityMetrics

__all__ = [
    "ActivationMetrics",
    "AnalysisContext",
    "GradientMetrics",
    "LossLandscapeMetrics",
    "LowRankQualityMetrics",
    "MetricComputer",
    "MomentumMetrics",
    "ParameterChangeMetrics",
    "ProbeMetrics",
    "SparseQualityMetrics",
]
