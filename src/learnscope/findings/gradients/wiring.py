"""How a model is put together, by the graph of its outputs: what they come from and who trains it."""

from __future__ import annotations

import numpy as np

from learnscope.findings import analysis
from learnscope.findings.evidence import evidence_over
from learnscope.quantities.features import Inputs
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import labels_of, series
from learnscope.reading.words import count, listed, num, percent
from learnscope.record import Finding
from learnscope.store.reader import RunReader

UNTRAINED = (
    "not_learning", "labels_unrelated", "plateau", "majority_guess", "vanishing", "learning_rate_too_low",
    "not_generalising", "memorised", "embedding_collapse", "worsening", "overfitting", "zero_gradients",
)  # fmt: skip
"""What a model shows of which a part is never trained, or hears nothing of the loss."""


@analysis(place=9, check="every part of the model is known to it", needs=[Inputs.outside_parameters])
def outside_model(reader: RunReader, cuts: Cuts) -> list[Finding]:  # noqa: ARG001  (there should be none)
    """Layers in a plain list or behind a function: the model computes with them, and nobody trains them."""
    found = series(reader, Inputs.outside_parameters).finite
    if not len(found) or not found.values.min() > 0:
        return []
    entries, own = float(found.values.min()), int((reader.manifest.get("model") or {}).get("parameters") or 0)
    share = f", {percent(entries / (entries + own))} of all that it computes with" if own else ""
    steps = int(found.steps[0]), int(found.steps[-1])
    return [
        Finding(
            kind="not_optimised",
            severity="warning",
            title=f"The model computes with {num(entries)} trainable numbers that are not among its parameters",
            detail=f"The graph of its output leads to tensors with {num(entries)} entries{share}, which ask for a "
            "gradient, and which neither model.parameters() nor an optimizer has "
            f"({count(len(found), 'measurement')}): they stay as they were drawn, and are in no checkpoint.",
            advice="Look for layers in a plain list, dict or tuple (nn.ModuleList and nn.ModuleDict make them known), "
            "for tensors that are made inside of forward, and for modules that are reached through a function. If they "
            "are meant to stay as they are, set requires_grad to False.",
            evidence=evidence_over(steps, found.probe, Inputs.outside_parameters, len(found), entries),
            cause=True,
            explains=UNTRAINED,
            since=steps[0],
        )
    ]


@analysis(place=9, check="every call of a module reaches the output", needs=[Inputs.lost_calls])
def lost_calls(reader: RunReader, cuts: Cuts) -> list[Finding]:
    """A candidate: a module that is called again and again, and whose earlier calls the output knows nothing of."""
    found = series(reader, Inputs.lost_calls).finite
    if not len(found) or not found.values.min() > 0:
        return []
    columns = reader.columns()
    noted = [note for label in labels_of(reader, Inputs) for _, note in columns.notes(label, "lost_calls") if note]
    names = [str(name) for name in noted[-1]] if noted else []
    share, steps = float(np.median(found.values)), (int(found.steps[0]), int(found.steps[-1]))
    return [
        Finding(
            kind="no_gradient",
            severity="info",
            title=f"No gradient goes back through {percent(share)} of the calls of {listed(names, cuts.names_listed)}",
            detail="In one forward of the model it is called several times, and the graph of the output leads to "
            f"{percent(1 - share)} of these calls alone ({count(len(found), 'measurement')}): what the others gave was "
            "detached, or is not used. Of a state that is carried from call to call only the last steps are learned.",
            advice="Look for detach(), .data, no_grad or .item() between the calls. A state is detached between two "
            "pieces of a long text, not between its words.",
            evidence=evidence_over(steps, found.probe, Inputs.lost_calls, len(found), share),
            scopes=names,
            cause=True,
            explains=UNTRAINED,
            since=steps[0],
        )
    ]
