"""What `watch` records unless it is told otherwise."""

from __future__ import annotations

from collections.abc import Sequence

from learnscope.core.probe import Probe
from learnscope.core.schedules import dense_at_first, regular_at_first, thinning
from learnscope.core.subject import Subject
from learnscope.probes.features.inputs import Inputs
from learnscope.probes.gradients.gradient_flow import GradientFlow
from learnscope.probes.gradients.lost_steps import LostSteps
from learnscope.probes.outputs.holdout import Holdout
from learnscope.probes.outputs.loss import Loss
from learnscope.probes.outputs.objective import Objective
from learnscope.probes.updates.learning_rate import LearningRate
from learnscope.probes.updates.loop_calls import LoopCalls
from learnscope.probes.updates.parameter_change import ParameterChange
from learnscope.session.bound import Bound

HOLDOUT_SHARE = 0.1
"""Of the wall time, for a holdout that is measured by default, once it has taken more than two seconds."""


def default_probes(*, optimizer: bool = True, holdout: bool = False) -> list[Probe]:
    """What `watch` records unless told otherwise: cheap enough for every run.

    Learning rates need an optimizer. Holdout data is measured if there is any: often at first, then every 100 steps.
    """
    probes: list[Probe] = [GradientFlow(every=regular_at_first), ParameterChange(every=dense_at_first), Loss()]
    probes += [LoopCalls(every=thinning), LostSteps(), Objective(every=thinning), Inputs(every=thinning)]
    probes += [LearningRate(every=regular_at_first)] if optimizer else []
    return [*probes, Holdout(every=dense_at_first)] if holdout else probes


def choose_probes(probes: Sequence[Probe] | None, subject: Subject) -> list[Probe]:
    """Those that were asked for, or the default ones for what the session has."""
    if probes is not None:
        return list(probes)
    return default_probes(optimizer=bool(subject.optimizers), holdout=subject.holdout is not None)


def limit_defaults(bound: Sequence[Bound]) -> None:
    """Nobody has chosen these probes: what may take long has a limit, and no warning says that one was never due."""
    for each in bound:
        each.by_default = True
        each.share = HOLDOUT_SHARE if isinstance(each.probe, Holdout) else None
