"""What takes the effect from gradients: clipping to almost nothing, and weight decay that outweighs them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from learnscope.findings import analysis
from learnscope.findings.evidence import evidence_over
from learnscope.findings.ruled_out import said, steps_reach
from learnscope.quantities.gradients import GradientFlow
from learnscope.quantities.outputs import Loss
from learnscope.quantities.updates import LearningRate, ParameterChange
from learnscope.reading.course.chance import guessing
from learnscope.reading.course.events import rise
from learnscope.reading.course.loss_course import loss_course
from learnscope.reading.course.movement import (
    Moves,
    adaptive,
    gradient_norms,
    highest_rates,
    moves_of,
    optimizers_of,
    options_of,
)
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import Series, grid, one_pass, series
from learnscope.reading.words import between, count, num, percent
from learnscope.record import Evidence, Finding
from learnscope.store.reader import RunReader

ADDED_TO_GRADIENT = ("Adam", "NAdam", "RAdam", "Adamax", "RMSprop", "Adagrad", "Adadelta", "Rprop")
"""Optimizers that add λw to the gradient and then divide by its size; all others take ηλw off the weights a step."""
STRONG = 5e-3
"""ηλ from which decay is strong whatever the loss does: it would halve the weights in 140 steps."""


@dataclass(frozen=True)
class Decay:
    """Weight decay that outweighs what the loss asks for."""

    strength: float
    """λ, the largest of any group."""
    shrinks: float
    """ηλ: the share that it takes from the weights a step."""
    share: float
    """Of the change of the weights (decoupled), or λ‖W‖/‖g‖ (added to the gradient)."""
    coupled: bool
    weights: tuple[float, float]
    """‖W‖ at the first and the last measured change."""
    steps: tuple[int, int]
    n: int
    probe: str


def decay_of(reader: RunReader, cuts: Cuts) -> Decay | None:
    """None unless most of what happens to the weights is decay and they have shrunk."""
    run = one_pass(reader)
    return run.remember(("decay", cuts), lambda: _decay(run, cuts))


def _decay(reader: RunReader, cuts: Cuts) -> Decay | None:
    strengths = grid(reader, LearningRate.weight_decay, kind="group")
    moves, rates = moves_of(reader), highest_rates(reader).finite
    if not strengths or moves is None or not len(rates) or len(moves) < 2:
        return None
    strength = float(np.nanmax(np.where(np.isfinite(strengths.values), strengths.values, 0.0)))
    weights = moves.weights
    known = np.flatnonzero(np.isfinite(weights))
    if strength <= 0 or not len(known):
        return None
    # W before each change; after the last one it is smaller still
    first, last = float(weights[known[0]]), float(weights[known[-1]])
    coupled = any(str(optimizer.get("class")) in ADDED_TO_GRADIENT for optimizer in optimizers_of(reader))
    shrinks = strength * float(np.median(rates.values))
    share = _coupled_share(reader, moves, strength) if coupled else _decoupled_share(moves, rates, strength)
    if share is None or share < (cuts.decay_of_gradient if coupled else cuts.decay_of_update):
        return None
    if last > cuts.shrunk_weights * first:
        return None
    span = int(moves.steps[0]), int(moves.steps[-1])
    return Decay(strength, shrinks, share, coupled, (first, last), span, len(moves), moves.probe)


def _decoupled_share(moves: Moves, rates: Series, strength: float) -> float:
    """Median of 1 − (1 − ηλ)^steps over ‖Δ‖/‖W‖, over the changes until the weights have shrunk to half."""
    weights = moves.weights
    shrunk = np.flatnonzero(weights < 0.5 * weights[np.isfinite(weights)][0])
    moves = moves.until(int(moves.steps[max(int(shrunk[0]) - 1, 0)])) if len(shrunk) else moves
    rate = np.interp(moves.steps, rates.steps, rates.values)
    decayed = -np.expm1(moves.lengths * np.log1p(-np.minimum(rate * strength, 0.999)))
    moved = moves.ratio > 0
    return float(np.median(np.minimum(decayed[moved] / moves.ratio[moved], 1.0))) if moved.any() else 0.0


def _coupled_share(reader: RunReader, moves: Moves, strength: float) -> float | None:
    """λ‖W‖/‖g‖ in the first half: at a minimum of both together the two are alike."""
    norms = gradient_norms(reader)
    weights = moves.weights
    known = np.isfinite(weights)
    if not len(norms) or not known.any():
        return None
    at = norms.steps <= max(int(np.median(norms.steps)), int(norms.steps[0]))
    beside = np.interp(norms.steps[at], moves.steps[known], weights[known])
    gradients = norms.values[at]
    return (
        float(np.median(strength * beside[gradients > 0] / gradients[gradients > 0])) if (gradients > 0).any() else None
    )


@analysis(
    place=14, check="weight decay too strong", needs=[Loss.loss, LearningRate.learning_rate, ParameterChange.l2]
)  # fmt: skip
def weight_decay(reader: RunReader, cuts: Cuts) -> list[Finding]:
    decay, course = decay_of(reader, cuts), loss_course(reader)
    if decay is None or course is None:
        return []
    guessed, risen = guessing(reader), rise(course)
    harmed = (
        (guessed is not None and guessed.better is False) or risen is not None or course.flat(cuts.little_gain)
        or (decay.shrinks >= STRONG and not decay.coupled)
    )  # fmt: skip
    if not harmed:
        return []
    first, last = decay.weights
    what = (
        f"λ‖W‖ is {num(decay.share)} times the gradient ‖g‖ (median of the first half)" if decay.coupled
        else f"it makes up {percent(decay.share)} of what the steps change (median)"
    )  # fmt: skip
    return [
        Finding(
            kind="weight_decay_too_strong",
            severity="critical" if guessed is not None and guessed.better is False else "warning",
            title=f"Weight decay of {num(decay.strength)} outweighs the loss: ‖W‖ went from {num(first)} to "
            f"{num(last)}",
            detail=f"Decay takes {percent(decay.shrinks)} of the weights a step (learning rate times λ), and {what}. "
            f"‖W‖ fell to {percent(last / first)} in {between(*decay.steps)} ({count(decay.n, 'measurement')}).",
            advice=f"Lower weight_decay, not the learning rate: at most {num(decay.strength / 100)} here, so that "
            "decay is "
            "a small part of the update. 0.01 to 0.1 is usual.",
            evidence=evidence_over(decay.steps, decay.probe, ParameterChange.update_to_weight, decay.n, decay.share),
            cause=True,
            explains=[
                "not_learning", "diverging", "vanishing", "plateau", "labels_unrelated",
                "majority_guess", "worsening", "overfitting", "learning_rate_too_high", "dead_units", "zero_gradients",
                "embedding_collapse", "exploding",
            ],
            ruled_out=said("A learning rate that is too high: the weights shrink, they do not jump."),
            since=decay.steps[0],
        )
    ]  # fmt: skip


@analysis(place=14, check="clipping", needs=[GradientFlow.norm.of("layer")])
def clipped_hard(reader: RunReader, cuts: Cuts) -> list[Finding]:
    factors = series(reader, GradientFlow.clip_coefficient).finite
    if len(factors) < cuts.measurements or float(np.median(factors.values)) > cuts.clipped_to:
        return []
    factor, share = float(np.median(factors.values)), float((factors.values < 1).mean())
    starved = _starved(reader)
    if adaptive(reader) and starved is None:
        return [_harmless(factors, factor, share)]
    course = loss_course(reader)
    stuck = course is not None and (course.flat(cuts.little_gain) or steps_reach(reader, course) is False)
    moves = moves_of(reader)
    slow = moves is not None and float(np.median(moves.per_step)) < 1e-4
    if not (stuck or slow):
        return []
    norm = float(np.median(gradient_norms(reader, clipped=False).values))
    return [
        Finding(
            kind="clipped_hard",
            severity="warning",
            title=f"Clipping leaves {percent(factor)} of the gradient at {percent(share)} of the steps",
            detail=f"‖g‖ is {num(norm)} before the clip and {num(norm * factor)} after it (medians of "
            f"{count(len(factors), 'measurement')}, {between(int(factors.steps[0]), int(factors.steps[-1]))}). "
            + (starved or _slow_sentence(moves)),
            advice=f"Clip at about the usual norm, {num(norm)}, or above: a clip is for rare large gradients. With "
            "this one "
            "the learning rate would have to be larger by the same factor.",
            evidence=_clip_evidence(factors, factor),
            cause=True,
            explains=[
                "not_learning", "plateau", "learning_rate_too_low", "vanishing",
                "labels_unrelated", "majority_guess", "not_moving",
            ],
            ruled_out=said(f"Gradients that vanish: they are {num(norm)} before the clip."),
            since=int(factors.steps[0]),
        )
    ]  # fmt: skip


def _clip_evidence(factors: Series, factor: float) -> Evidence:
    span = int(factors.steps[0]), int(factors.steps[-1])
    return evidence_over(span, factors.probe, GradientFlow.clip_coefficient, len(factors), factor)


def _slow_sentence(moves: Moves | None) -> str:
    if moves is None:
        return "The step is in proportion to the gradient, so it shrinks as much."
    per_step = percent(float(np.median(moves.per_step)))
    return f"The step is in proportion to the gradient: weights move by {per_step} a step."


def _starved(reader: RunReader) -> str | None:
    """With Adam: a sentence if clipped gradients are so small that ε decides the step."""
    eps = [float(value) for value in options_of(reader, "eps") if isinstance(value, int | float)]
    norms, parameters = gradient_norms(reader), int((reader.manifest.get("model") or {}).get("parameters") or 0)
    if not adaptive(reader) or not eps or not len(norms) or not parameters:
        return None
    entry = float(np.median(norms.values)) / parameters**0.5
    if entry > 10 * max(eps):
        return None
    return (
        f"An entry of it is {num(entry)} (root mean square), which is no larger than the optimizer's ε of "
        f"{num(max(eps))}: ε makes the steps small."
    )


def _harmless(factors: Series, factor: float, share: float) -> Finding:
    return Finding(
        kind="clipped_hard",
        severity="info",
        title=f"Clipping leaves {percent(factor)} of the gradient at {percent(share)} of the steps",
        detail=f"The median factor of {count(len(factors), 'measurement')} is {num(factor)}. This optimizer divides "
        "the "
        "gradient by its own size, so that a factor which is much the same at every step hardly changes the steps.",
        advice="Nothing to do; a larger bound would let the clip act on rare large gradients only.",
        evidence=_clip_evidence(factors, factor),
        since=int(factors.steps[0]),
    )
