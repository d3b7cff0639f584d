"""The probes that come with learnscope, one a file."""

from learnscope.probes.activations import Activations
from learnscope.probes.adapter_gradients import AdapterGradients
from learnscope.probes.adapter_spectrum import AdapterSpectrum
from learnscope.probes.adapter_truncation import AdapterTruncation
from learnscope.probes.attacks import Attacks
from learnscope.probes.batch_stats import BatchStats
from learnscope.probes.bit_optimum import BitOptimum
from learnscope.probes.bit_robustness import BitRobustness
from learnscope.probes.bit_sensitivity import BitSensitivity
from learnscope.probes.bit_widths import BitWidths
from learnscope.probes.example_ledger import ExampleLedger
from learnscope.probes.exported_speed import ExportedSpeed
from learnscope.probes.feature_evolution import FeatureEvolution
from learnscope.probes.gradient_flow import GradientFlow
from learnscope.probes.group_accuracy import GroupAccuracy
from learnscope.probes.holdout import Holdout
from learnscope.probes.inference_speed import InferenceSpeed
from learnscope.probes.input_perturbation import InputPerturbation
from learnscope.probes.layer_times import LayerTimes
from learnscope.probes.learning_rate import LearningRate
from learnscope.probes.loss import Loss
from learnscope.probes.loss_landscape import LossLandscape
from learnscope.probes.low_rank_quality import LowRankQuality
from learnscope.probes.memorization import Memorization
from learnscope.probes.memory_use import MemoryUse
from learnscope.probes.momentum import Momentum
from learnscope.probes.noise_robustness import NoiseRobustness
from learnscope.probes.parameter_change import ParameterChange
from learnscope.probes.performance import Performance
from learnscope.probes.sparse_quality import SparseQuality
from learnscope.probes.transition import ExampleTransitions
from learnscope.probes.weight_spectrum import WeightSpectrum

ALL_PROBES = (
    GradientFlow,
    ParameterChange,
    LearningRate,
    Loss,
    BatchStats,
    Holdout,
    LossLandscape,
    Activations,
    Momentum,
    LowRankQuality,
    SparseQuality,
    FeatureEvolution,
    Memorization,
    GroupAccuracy,
    ExampleTransitions,
)

__all__ = [
    "ALL_PROBES",
    "Activations",
    "AdapterGradients",
    "AdapterSpectrum",
    "AdapterTruncation",
    "Attacks",
    "BatchStats",
    "BitOptimum",
    "BitRobustness",
    "BitSensitivity",
    "BitWidths",
    "ExampleLedger",
    "ExampleTransitions",
    "ExportedSpeed",
    "FeatureEvolution",
    "GradientFlow",
    "GroupAccuracy",
    "Holdout",
    "InferenceSpeed",
    "InputPerturbation",
    "LayerTimes",
    "LearningRate",
    "Loss",
    "LossLandscape",
    "LowRankQuality",
    "Memorization",
    "MemoryUse",
    "Momentum",
    "NoiseRobustness",
    "ParameterChange",
    "Performance",
    "SparseQuality",
    "WeightSpectrum",
]
