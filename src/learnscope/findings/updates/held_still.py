"""Candidates for a model that does not learn: an output layer that is frozen, or has next to no learning rate."""

from __future__ import annotations

from typing import Any

import numpy as np

from learnscope.findings import analysis
from learnscope.findings.evidence import evidence_over
from learnscope.findings.updates.rates import Group, groups_of
from learnscope.quantities.updates import LearningRate, LoopCalls
from learnscope.reading.course.chance import NEAR_EVEN, guessing
from learnscope.reading.course.movement import highest_rates, moves_of, optimizers_of
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import series
from learnscope.reading.words import between, count, listed, num
from learnscope.record import Evidence, Finding
from learnscope.store.reader import RunReader

STUCK = (
    "not_learning", "labels_unrelated", "plateau", "majority_guess", "learning_rate_too_low", "vanishing",
    "not_generalising", "memorised",
)  # fmt: skip
"""What a model shows whose output layer stays as it was drawn."""
ADAPTERS = ("lora_", ".base_layer.", "adapter", "prompt", "prefix")
"""Parts of the names of parameters of models of which little is trained on purpose."""
HARDLY_BELOW = 0.75
"""Share of the loss of guessing above which hardly anything was learned."""
NEW_HEAD = (
    " The first loss is that of guessing all classes alike, as of a layer that was just made and never trained, and "
    "what the adapters can do about it is little."
)
MOST = 0.5
"""Share of the parameters from which a group is most of a model."""


@analysis(place=9, check="anything to train", needs=[LoopCalls.steps], described=["model"])
def nothing_trainable(reader: RunReader, cuts: Cuts) -> list[Finding]:
    """Steps of an optimizer that holds the model's parameters, none of which asks for a gradient."""
    model: dict[str, Any] = reader.manifest.get("model") or {}
    steps, moves = series(reader, LoopCalls.steps).finite, moves_of(reader)
    backwards = series(reader, LoopCalls.backwards).finite
    parameters = int(model.get("parameters") or 0)
    held = sum(int(group.get("tensors") or 0) for each in optimizers_of(reader) for group in each.get("groups") or [])
    all_frozen = parameters > 0 and int(model.get("frozen_parameters") or 0) == parameters
    if not all_frozen or not held or len(steps) < cuts.measurements or backwards.values.any():
        return []
    if moves is not None and moves.ratio.any():
        return []
    span, total = (int(steps.steps[0]), int(steps.steps[-1])), int(steps.values.sum())
    return [
        Finding(
            kind="frozen",
            severity="critical",
            title=f"Nothing of the model is trained: all of its {count(parameters, 'parameter')} are frozen",
            detail=f"requires_grad is False for every tensor of it, and no backward has reached one in "
            f"{count(total, 'step')} ({between(*span)}): the optimizer holds tensors without gradients and does "
            "nothing.",
            advice="Look at what froze them: adapters that were loaded for inference (inference_mode, "
            "is_trainable=False), requires_grad_(False) on more than was meant, a part that was to be trained and was "
            "added later. A loss that has to be told to need a gradient (requires_grad_) is a sign of it.",
            evidence=evidence_over(span, steps.probe, LoopCalls.backwards, total, 0.0),
            cause=True,
            explains=[*STUCK, "not_moving", "no_gradient", "zero_gradients", "steps_without_backward", "dead_adapters"],
            since=span[0],
        )
    ]


@analysis(place=41, check="output layer that is not trained", needs=[LearningRate.learning_rate], described=["model"])
def held_still(reader: RunReader, cuts: Cuts) -> list[Finding]:
    """Nothing is wrong with either as such: it is told only where the model does not learn."""
    model: dict[str, Any] = reader.manifest.get("model") or {}
    layers = list(model.get("layers") or [])
    if len(layers) < 2:
        return []
    frozen = _frozen(reader, model, layers)
    return [*([frozen] if frozen is not None else []), *_slow(reader, model, layers, cuts)]


def _frozen(reader: RunReader, model: dict[str, Any], layers: list[str]) -> Finding | None:
    """The last layer is frozen, and one before it is trained."""
    last, names = layers[-1], [str(name) for name in model.get("frozen") or []]
    own = [name for name in names if f".{last}." in f".{name}"]
    other = [layer for layer in layers[:-1] if not any(f".{layer}." in f".{name}" for name in names)]
    adapted = any(part in name for name in [*names, *layers] for part in ADAPTERS)
    new = adapted and not any(part in name for name in own for part in ADAPTERS) and _knew_nothing(reader)
    if not own or (not other and not adapted) or (adapted and not new):
        return None
    others = listed(other, 4) if not adapted else "adapters"
    return Finding(
        kind="frozen",
        severity="warning" if new else "info",
        title=f"The output layer is frozen: {last} keeps the weights that it began with",
        detail=f"requires_grad is False for {listed(own, 4)}, while {others} "
        f"{'is' if len(other) == 1 and not adapted else 'are'} trained: what is learned has to pass through {last} as "
        f"it is.{NEW_HEAD if new else ''}",
        advice=f"If {last} is new, train it: check by which names or types layers are frozen and unfrozen (fc, head "
        "and "
        f"classifier are all in use{'; with adapters of peft, task_type or modules_to_save' if new else ''}).",
        evidence=Evidence(probe="run.json", name="frozen", n=len(names), value=float(len(own))),
        scopes=[last, *own],
        cause=True,
        explains=STUCK,
        alternatives=[f"A trained {last} that is kept on purpose: then it is not what keeps the loss up."],
        since=1,
    )


def _knew_nothing(reader: RunReader) -> bool:
    """Whether the first loss is that of guessing all classes alike, as of a layer that was just made, and the last is
    hardly below. One that was trained is sure of something before any step, be it wrong. Where nothing at all was
    learned, the adapters may have done nothing, of which others speak."""
    found = guessing(reader)
    if found is None or found.course is None or found.chance.loss is None or found.starts_high is None:
        return False
    if not found.better or not found.course.improved:
        return False
    low, high = NEAR_EVEN
    return low < found.starts_high < high and found.course.end.value > HARDLY_BELOW * found.chance.loss


def _slow(reader: RunReader, model: dict[str, Any], layers: list[str], cuts: Cuts) -> list[Finding]:
    """A group with the output layer, or with most of the model, whose rate is far below the highest."""
    rates, groups = highest_rates(reader).finite, groups_of(reader)
    sizes = {str(layer): int(n) for layer, n in (model.get("layer_parameters") or {}).items()}
    total = sum(sizes.values())
    known = [group for group in groups if group.rate is not None and group.layers]
    if len(known) < 2 or not len(rates):
        return []
    fastest = max(known, key=lambda group: group.rate or 0.0)
    highest = fastest.rate or 0.0
    found = []
    for group in known:
        has_output = layers[-1] in group.layers
        most = total > 0 and sum(sizes.get(layer, 0) for layer in group.layers) > MOST * total
        slow = group.rate is not None and 0 < group.rate < highest / cuts.slow_group
        if slow and (has_output or most):
            found.append(
                _slow_finding(group, fastest, layers[-1] if has_output else "", rates.steps, rates.probe, cuts)
            )
    return found


def _slow_finding(group: Group, fastest: Group, output: str, steps: Any, probe: str, cuts: Cuts) -> Finding:
    span, rate, high = (int(steps[0]), int(steps[-1])), float(group.rate or 0.0), float(fastest.rate or 0.0)
    who = output or f"most of the model ({listed(group.layers, cuts.names_listed)})"
    return Finding(
        kind="slow_head" if output else "learning_rate_too_low",
        severity="info",
        title=f"{who} has a learning rate of {num(rate)}, and {listed(fastest.layers, 2)} one of {num(high)}",
        detail=f"The optimizer's group of {listed(group.layers, cuts.names_listed)} has {num(rate)}, "
        f"{num(high / rate)} "
        f"times less than that of {listed(fastest.layers, cuts.names_listed)} (medians of "
        f"{count(len(np.asarray(steps)), 'measurement')}, {between(*span)}).",
        advice="Check that the two learning rates are not exchanged: a new layer needs the larger one, and what was "
        "learned before the smaller.",
        evidence=evidence_over(span, probe, LearningRate.learning_rate, len(steps), rate),
        scopes=list(group.layers),
        cause=True,
        explains=STUCK,
        since=1,
    )
