"""Model analysis within any training loop: parameter change, sparse and low-rank quality, and metrics of your own.

from learnscope.analysis import AnalysisConfig, ModelAnalysisManager

analyzer = ModelAnalysisManager.create(AnalysisConfig(interval=100))
for batch in loader:
    ...
    optimizer.step()
    metrics = analyzer.on_optimizer_step(model, inputs=batch)  # {} unless a measurement is due
"""

from learnscope.analysis.config import AnalysisConfig
from learnscope.analysis.manager import ModelAnalysisManager
from learnscope.analysis.metrics import (
    ActivationMetrics,
    AnalysisContext,
    GradientMetrics,
    LossLandscapeMetrics,
    LowRankQualityMetrics,
    MetricComputer,
    MomentumMetrics,
    ParameterChangeMetrics,
    ProbeMetrics,
    SparseQualityMetrics,
)
from learnscope.analysis.primitives import ParameterDelta, ParameterSnapshot

__all__ = [
    "ActivationMetrics",
    "AnalysisConfig",
    "AnalysisContext",
    "GradientMetrics",
    "LossLandscapeMetrics",
    "LowRankQualityMetrics",
    "MetricComputer",
    "ModelAnalysisManager",
    "MomentumMetrics",
    "ParameterChangeMetrics",
    "ParameterDelta",
    "ParameterSnapshot",
    "ProbeMetrics",
    "SparseQualityMetrics",
]
