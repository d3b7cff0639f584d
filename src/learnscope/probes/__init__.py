"""The probes that come with learnscope, one a file."""

from learnscope.probes.batch_stats import BatchStats
from learnscope.probes.gradient_flow import GradientFlow
from learnscope.probes.holdout import Holdout
from learnscope.probes.learning_rate import LearningRate
from learnscope.probes.loss import Loss
from learnscope.probes.parameter_change import ParameterChange

ALL_PROBES = (GradientFlow, ParameterChange, LearningRate, Loss, BatchStats, Holdout)

__all__ = [
    "ALL_PROBES",
    "BatchStats",
    "GradientFlow",
    "Holdout",
    "LearningRate",
    "Loss",
    "ParameterChange",
]
