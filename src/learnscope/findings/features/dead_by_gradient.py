"""Units that are dead by what their gradients show, where activations were not looked at."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from learnscope.findings import analysis, findings_of
from learnscope.findings.evidence import evidence_over
from learnscope.findings.gradients.absent import absent
from learnscope.findings.gradients.unread import unread_embeddings
from learnscope.findings.outputs.posterior import posterior_collapse
from learnscope.findings.ruled_out import rate_is_right, said
from learnscope.quantities.features import Activations
from learnscope.quantities.gradients import GradientFlow
from learnscope.reading.course.chance import guessing
from learnscope.reading.course.loss_course import loss_course
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import grid
from learnscope.reading.words import between, count, listed
from learnscope.record import Finding
from learnscope.store.reader import RunReader


@analysis(
    place=79, check="dead units by their gradients", needs=[GradientFlow.norm.of("layer")], at_least="measurements"
)
def dead_by_gradient(reader: RunReader, cuts: Cuts) -> list[Finding]:
    """Layers that get a gradient of exactly 0 from a layer that gets another, in a run that does not learn."""
    zero = [f for f in findings_of(absent, reader, cuts) if f.kind == "zero_gradients" and f.severity != "info"]
    if not zero or grid(reader, Activations.dead_share) or unread_embeddings(reader, cuts):
        return []
    names = list(zero[0].scopes)
    norms = grid(reader, GradientFlow.norm, stage="stepped")
    last = max(norms.scopes.index(name) for name in names)
    after = norms.values[:, last + 1 :]
    if not after.size or not (np.nan_to_num(after) > 0).any():
        return []
    if _whole_branch(names, norms.scopes):
        return []
    course, found = loss_course(reader), guessing(reader)
    stuck = (found is not None and found.better is False) or (course is not None and course.flat(cuts.little_gain))
    stuck = stuck or bool(findings_of(posterior_collapse, reader, cuts))
    if not stuck:
        return []
    evidence = zero[0].evidence
    steps = int(evidence.first_step or norms.steps[0]), int(evidence.last_step or norms.steps[-1])
    return [
        Finding(
            kind="dead_units",
            severity="warning",
            title=f"Nothing passes back through {norms.scopes[last]}: its units are dead, or what follows is 0",
            detail=f"Gradients arrive at {norms.scopes[last + 1]} and are exactly 0 in "
            f"{listed(names, cuts.names_listed)} "
            f"({count(evidence.n, 'measurement')}, {between(*steps)}), and the loss does not fall. A unit whose "
            "activation "
            "is flat for every input (a ReLU below 0, a saturated sigmoid), or whose outgoing weights are 0, passes no "
            "gradient back.",
            advice=f"Look at the outputs of {norms.scopes[last]} (ls.Activations records the share of dead units): "
            "its bias "
            "and initialisation, the scale of the inputs, and weights that are all 0. LeakyReLU, GELU or a smaller "
            "learning rate at the start keep units alive.",
            evidence=evidence_over(steps, norms.probe, GradientFlow.norm, evidence.n, 0.0),
            scopes=names,
            cause=True,
            explains=["zero_gradients", "not_moving", "not_learning", "labels_unrelated", "plateau", "vanishing",
                      "posterior_collapse"],
            ruled_out=said(rate_is_right(reader)),
            alternatives=["Weights of 0 after these layers, or a multiplication by 0: the activations are not 0 then."],
            since=steps[0],
        )
    ]  # fmt: skip


def _whole_branch(names: Sequence[str], layers: Sequence[str]) -> bool:
    """Whether the layers are all of one part of the model: it is what the loss is given of it that has no slope."""
    parts = {name.split(".")[0] for name in names}
    inside = [layer for layer in layers if layer.split(".")[0] in parts]
    return len(inside) >= 2 * len(parts) and set(inside) == set(names)
