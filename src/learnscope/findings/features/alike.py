"""Outputs that are the same for every input from the start: copies of one unit, or nothing that comes through."""

from __future__ import annotations

import numpy as np

from learnscope.findings import analysis, findings_of
from learnscope.findings.evidence import evidence_over
from learnscope.findings.gradients.absent import absent
from learnscope.findings.gradients.unread import unread_embeddings
from learnscope.findings.gradients.vanishing import vanishing
from learnscope.quantities.features import Inputs
from learnscope.quantities.outputs import Loss
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import series
from learnscope.reading.words import between, count, listed, num
from learnscope.record import Evidence, Finding
from learnscope.store.reader import RunReader

STUCK = (
    "not_learning", "labels_unrelated", "plateau", "majority_guess", "not_moving", "worsening", "learning_rate_too_low",
    "not_generalising", "memorised",
)  # fmt: skip
"""What a model shows whose outputs do not depend on its inputs."""
OF_COPIES = (*STUCK, "vanishing", "dead_units", "zero_gradients", "exploding_initialisation")
"""What copies of one unit lead to besides: they die together."""
SAME = 1e-4
"""Spread over the examples, in units of the size of the outputs, below which they are the same for all."""


@analysis(place=40, check="units that differ", described=["model"], needs=[Loss.loss])
def copied_units(reader: RunReader, cuts: Cuts) -> list[Finding]:
    """A candidate: weights that all began at one number, so that all units of a layer are one unit, and stay so."""
    model = reader.manifest.get("model") or {}
    frozen = set(model.get("frozen") or [])
    names = [str(name) for name in model.get("alike") or [] if name not in frozen]
    if not names:
        return []
    return [
        Finding(
            kind="embedding_collapse",
            severity="info",
            title=f"All units of {listed(names, cuts.names_listed)} began as copies of one",
            detail="The rows of these weights were the same numbers when the run began. Units with the same weights "
            "give the same outputs and get the same gradient: however wide a layer is, it is one unit, and training "
            "does not take them apart.",
            advice="Draw weights at random (the default of torch's layers, nn.init.kaiming_normal_, xavier_uniform_); "
            "constants are for biases and for the scales of norms.",
            evidence=Evidence(probe="run.json", name="alike", n=len(names), value=float(len(names))),
            scopes=names,
            cause=True,
            explains=OF_COPIES,
            since=1,
        )
    ]


@analysis(place=40, check="outputs that differ", needs=[Inputs.output_spread, Inputs.output_rms],
          at_least="measurements")  # fmt: skip
def same_outputs(reader: RunReader, cuts: Cuts) -> list[Finding]:
    """A candidate: nothing of the inputs comes through to the outputs, before anything was learned and ever after."""
    spread, size = (series(reader, q, data="train").finite for q in (Inputs.output_spread, Inputs.output_rms))
    _, ours, theirs = np.intersect1d(spread.steps, size.steps, return_indices=True)
    share = spread.values[ours] / np.maximum(size.values[theirs], 1e-300)
    if len(share) < 2 * cuts.measurements or share.max() > SAME or not size.values.any():
        return []
    if _same_inputs(reader) or unread_embeddings(reader, cuts) or _lost_where(reader, cuts):
        return []  # of which others say more
    steps, most = (int(spread.steps[0]), int(spread.steps[-1])), float(share.max())
    return [
        Finding(
            kind="embedding_collapse",
            severity="info",
            title="The outputs are the same for every input, from the start: nothing of the inputs comes through",
            detail=f"Outputs of different examples differ by at most {num(most)} of their size "
            f"({count(len(share), 'measurement')}, {between(*steps)}), though the inputs differ. What tells examples "
            "apart is lost inside of the model, and with it what the loss could say to the layers before.",
            advice="Look at the outputs of one layer after the other for two examples: means over neighbours or over "
            "places that are taken too often, norms over the wrong dimension or with figures of other data, saturated "
            "activations, weights that are too small. Fewer such layers, or a path around each, keep examples apart.",
            evidence=evidence_over(steps, spread.probe, Inputs.output_spread, len(share), most),
            cause=True,
            explains=STUCK,
            since=steps[0],
        )
    ]


def _same_inputs(reader: RunReader) -> bool:
    """Whether the inputs themselves are all the same, or nobody knows."""
    spread = series(reader, Inputs.input_std, data="train").finite.values
    tokens = series(reader, Inputs.token_distinct, data="train").finite.values
    duplicates = series(reader, Inputs.duplicate_share).finite.values
    varied = bool(len(spread) and spread.any()) or bool(len(tokens) and tokens.max() > 1)
    return not varied or bool(len(duplicates) and np.median(duplicates) > 1 / 2)


def _lost_where(reader: RunReader, cuts: Cuts) -> bool:
    """Whether gradients tell in which layers it is lost."""
    found = [*findings_of(vanishing, reader, cuts), *findings_of(absent, reader, cuts)]
    return any(finding.severity != "info" and finding.kind in ("vanishing", "zero_gradients") for finding in found)
