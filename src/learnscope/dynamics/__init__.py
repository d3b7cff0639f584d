"""Learning dynamics as analyzers that a training loop, or a script over checkpoints, calls itself.

Each is a front door to a probe of `learnscope.watch` and `learnscope.replay`: `ExampleLedger`, `GradientFlow`,
`Memorization`, `FeatureEvolution`, `ExampleTransitions`. No call leaves a trace on the model, and what an analyzer
remembers is saved in one file that is never a pickle.
"""

from learnscope.dynamics.feature_evolution import FeatureEvolutionTracker
from learnscope.dynamics.gradient_flow import GradientFlowAnalyzer
from learnscope.dynamics.learning import LearningDynamicsAnalyzer
from learnscope.dynamics.memorization import MemorizationDetector
from learnscope.dynamics.transitions import PhaseTransitionAttributor

__all__ = [
    "FeatureEvolutionTracker",
    "GradientFlowAnalyzer",
    "LearningDynamicsAnalyzer",
    "MemorizationDetector",
    "PhaseTransitionAttributor",
]
