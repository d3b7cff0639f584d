"""What came first: which layer's features and weights moved, and which group of examples was learned."""

from __future__ import annotations

import numpy as np

from learnscope.findings import analysis
from learnscope.findings.evidence import evidence_over
from learnscope.intervals import Z, wilson
from learnscope.quantities import Quantity
from learnscope.quantities.examples import GroupAccuracy
from learnscope.quantities.features import FeatureEvolution
from learnscope.quantities.updates import ParameterChange
from learnscope.reading.course.events import rise, spikes
from learnscope.reading.course.loss_course import loss_course
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import Floats, Grid, grid
from learnscope.reading.group_curves import GroupCurves, group_curves
from learnscope.reading.ordering import HALF, Order, half_way, margin, noise, plural
from learnscope.reading.words import capital, count, listed, percent
from learnscope.record import Evidence, Finding
from learnscope.store.reader import RunReader

UNMEASURED = "not measured at every step"
FROM_START = "past half of its way at the first measurement already, be it by chance or because it was learned before"


@analysis(place=160, check="order of learning", needs=[(FeatureEvolution.cka_first, ParameterChange.update_to_weight)])
def first_moved(reader: RunReader, cuts: Cuts) -> list[Finding]:
    """At most one finding about layers and one about groups of examples; none where no order is clear."""
    findings = _layers(reader, cuts)
    for curves in group_curves(reader):  # test data before training data
        order = by_accuracy(curves, cuts)
        if order.tells(cuts):
            return [*findings, _learned(curves, order, cuts)]
    return findings


def _layers(reader: RunReader, cuts: Cuts) -> list[Finding]:
    features, updates = FeatureEvolution.cka_first, ParameterChange.update_to_weight
    ways = [
        (features, by_features(grid(reader, features), cuts), "from its first features (1 − CKA)"),
        (updates, by_updates(grid(reader, updates)), "of its weights (the sum of ‖Δ‖/‖W‖)"),
    ]
    clear = [way for way in ways if way[1].tells(cuts)]
    # which weights moved first is measured in every run, and says something only of one in which something went wrong
    if not clear or (not len(ways[0][1].steps) and not _happened(reader)):
        return []
    first, order, _ = clear[0]
    detail = [f"Half of the way {way} was made by {by.sentence('layer', cuts.names_listed)}." for _, by, way in clear]
    detail += [
        f"By {quantity.probe} there is no order: the layers lie within what its {count(len(by.steps), 'measurement')} "
        "can tell."
        for quantity, by, _ in ways
        if not by.tells(cuts) and len(by.places) > 1
    ]
    detail.append(_left_out_sentence(order, cuts))
    return [
        Finding(
            kind="first_moved_layer",
            severity="info",
            title=_title("layer", order, "moved", cuts),
            detail=" ".join(part for part in detail if part),
            advice=_layer_advice(order, cuts),
            evidence=_evidence(order, first.probe, first),
            scopes=[scope for _, scopes in order.ranks for scope in scopes],
        )
    ]


def _happened(reader: RunReader) -> bool:
    """Whether the loss did not simply fall: it rose, jumped, or stayed where it was."""
    course = loss_course(reader)
    if course is None:  # nobody knows
        return True
    return course.broken > 0 or not course.improved or rise(course) is not None or bool(spikes(course))


def by_features(cka: Grid, cuts: Cuts) -> Order:
    """Half of the way of 1 − CKA with the first features, which begins at 0."""
    distances = 1 - cka.values
    if len(distances):
        distances[0] = np.where(np.isnan(distances[0]), 0.0, distances[0])  # these are the first
    order = Order(cka.steps)
    for layer, values in zip(cka.scopes, distances.T, strict=True):
        if not np.isfinite(values).all():
            order.left_out[layer] = UNMEASURED
            continue
        place, end = half_way(values, 0.0, cuts.measurements), float(values[-cuts.measurements :].mean())
        if end < cuts.moved_distance or place is None:
            order.left_out[layer] = "hardly moved"
        else:
            order.add(layer, place, margin(values, end / 2, noise(values)))
    return order


def by_updates(ratios: Grid) -> Order:
    """Half of Σ‖Δ‖/‖W‖ over all measurements, the length of the way that the weights went."""
    order = Order(ratios.steps)
    n = len(ratios.steps)
    done = np.arange(1, n + 1)
    for layer, values in zip(ratios.scopes, ratios.values.T, strict=True):
        if not np.isfinite(values).all():
            order.left_out[layer] = UNMEASURED
        elif not values.sum() > 0:
            order.left_out[layer] = "did not move"
        else:
            way = values.cumsum()
            # a sum compared with its own end has the errors of a bridge of independent errors
            errors = noise(values) * np.sqrt(done * (n - done) / n)
            order.add(layer, int((way >= way[-1] * HALF).argmax()), margin(way, way[-1] / 2, errors))
    return order


def by_accuracy(curves: GroupCurves, cuts: Cuts) -> Order:
    """Half of the way from the lowest accuracy of any group at the first measurement to the group's own final level.

    A group that is past it at the first measurement was not seen to be learned: a network that has learned nothing may
    give all examples one answer, which is right for all of a class. Such groups are in the order only if they are more
    than the others, and none of them is then said to be the first.
    """
    grid, start = curves.accuracies, curves.start
    order = Order(grid.steps)
    for group, values in zip(grid.scopes, grid.values.T, strict=True):
        n = curves.examples.get(group)
        if n is not None and n < cuts.group_examples:
            order.left_out[group] = f"fewer than {count(cuts.group_examples, 'example')}"
            continue
        if not np.isfinite(values).all():
            order.left_out[group] = UNMEASURED
            continue
        place, end = half_way(values, start, cuts.measurements), float(values[-cuts.measurements :].mean())
        if end - start < cuts.learned_rise or place is None:
            order.left_out[group] = "not learned"
        else:
            order.add(group, place, margin(values, (start + end) / 2, _errors(values, n)))
    early = [group for group in order.places if order.margins[group][0] >= 0]
    if 2 * len(early) <= len(order.places):
        for group in early:
            order.left_out[group] = FROM_START
            del order.places[group], order.margins[group]
    return order


def _errors(values: Floats, n: int | None) -> Floats:
    """Standard errors of shares of `n` examples: from how they waver, and from how few examples they are of."""
    sampled = np.zeros(len(values))
    if n is not None:
        ends = np.array([wilson(float(np.clip(value, 0, 1)), n) for value in values])
        sampled = (ends[:, 1] - ends[:, 0]) / (2 * Z)
    return np.hypot(sampled, noise(values))


def _learned(curves: GroupCurves, order: Order, cuts: Cuts) -> Finding:
    ranks = order.ranks
    column = curves.accuracies.scopes.index(ranks[-1][1][0])
    then = float(curves.accuracies.values[min(order.places.values()), column])
    late = f"{plural(curves.word, len(ranks[-1][1]))} {listed(ranks[-1][1], cuts.names_listed)}"
    detail = (
        f"Half of the way from {percent(curves.start)}, the lowest accuracy at the first measurement, to "
        f"its own final accuracy was made by {order.sentence(curves.word, cuts.names_listed)}. "
        f"When the first of these had made it, accuracy on {curves.word} {ranks[-1][1][0]} was {percent(then)}. "
        f"{_left_out_sentence(order, cuts)}"
    )
    return Finding(
        kind="first_moved_group",
        severity="info",
        title=_title(curves.word, order, "learned", cuts),
        detail=detail.strip(),
        advice=f"Stopped before step {ranks[-1][0]:,}, the run would not be half way on {late}. To be there sooner, "
        f"see how many of the training examples are of {late}, against {listed(ranks[0][1], cuts.names_listed)}, and "
        "look at some of them.",
        evidence=_evidence(order, curves.probe, GroupAccuracy.accuracy),
        scopes=[scope for _, scopes in ranks for scope in scopes],
    )


def _title(word: str, order: Order, done: str, cuts: Cuts) -> str:
    """By the few: many that tie as the first say less than the one that is last."""
    (start, first), (end, last) = order.ranks[0], order.ranks[-1]
    # one that is past its half from the start on is not known to come after, or before, any other
    early = [scope for scope, reason in order.left_out.items() if reason == FROM_START]
    unknown = bool(early) or (done == "learned" and start == order.steps[0])
    few = last if unknown or len(last) < len(first) else first
    was = "" if done == "moved" else "was " if len(few) == 1 else "were "
    named = f"{capital(plural(word, len(few)))} {listed(few, cuts.names_listed)} {was}{done}"
    if few is last:
        total = len(order.places) + len(early)
        before = " or before" if start == order.steps[0] else ""
        others = f"{len(first):,} of {total:,} {plural(word, total)} at step {start:,}{before}"
        return f"{named} last, at step {end:,}; {others}"
    return f"{named} first, at step {start:,}; {listed(last, cuts.names_listed)} last, at step {end:,}"


def _layer_advice(order: Order, cuts: Cuts) -> str:
    ends = (order.ranks[-1][1], order.ranks[0][1])
    late, early = (f"{plural('layer', len(names))} {listed(names, cuts.names_listed)}" for names in ends)
    return (
        f"If {late} should learn sooner, hold gradients and learning rate there against those of {early}; what builds "
        "on others may just have to come after them."
    )


def _evidence(order: Order, label: str, quantity: Quantity) -> Evidence:
    first, last = order.ranks[0][0], order.ranks[-1][0]
    return evidence_over((first, last), label, quantity, len(order.steps), float(last - first))


def _left_out_sentence(order: Order, cuts: Cuts) -> str:
    reasons: dict[str, list[str]] = {}
    for scope, reason in order.left_out.items():
        reasons.setdefault(reason, []).append(scope)
    parts = [f"{listed(scopes, cuts.names_listed)} ({reason})" for reason, scopes in reasons.items()]
    return f"Not in this order: {'; '.join(parts)}." if parts else ""
