"""The course of the features of layers over epochs: every number's series, its jumps, and who moved first.

In the runs that are read here a step is an epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from learnscope.findings.examples.first_moved import by_features
from learnscope.quantities import Quantity
from learnscope.quantities.features import FeatureEvolution
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import Series, grid, one_pass, series
from learnscope.reading.jumps import ALPHA, MIN_SIZE, SIMULATIONS, jumps, why_none
from learnscope.reading.words import count
from learnscope.store.reader import RunReader


@dataclass(frozen=True)
class Transitions:
    """The epochs at which a number jumps out of its smooth course, and what that rests on."""

    epochs: list[int]
    """The first epoch after each jump."""
    p_value: float
    """Of the largest jump: how often a smooth curve with the same noise seems to have one as clear; see `jumps`."""
    alpha: float
    n: int
    simulations: int
    trend: str
    """What the smooth course is."""
    left_out: dict[int, str]
    """Epochs without a value, and why they have none."""
    reason: str | None


def course(reader: RunReader, layer: str, quantity: Quantity) -> Series:
    """A number of a layer over the epochs; NaN, with its reason, where it was not measured."""
    return series(reader, quantity, kind="layer", scope=layer)


def unmeasured(series: Series) -> dict[int, str]:
    each = zip(series.steps.tolist(), series.values, series.status, strict=True)
    return {int(step): status or "not measured" for step, value, status in each if not np.isfinite(value)}


def transitions(
    series: Series, *, alpha: float = ALPHA, simulations: int = SIMULATIONS, min_size: int = MIN_SIZE, seed: int = 0
) -> Transitions:
    """Where a series jumps. Values that were not measured are left out, and named."""
    finite = series.finite
    found = jumps(finite.values, finite.steps, alpha=alpha, simulations=simulations, min_size=min_size, seed=seed)
    epochs = [int(finite.steps[place]) for place in found.places]
    reason = None if epochs else why_none(found, finite.values, alpha, min_size)
    trend = f"a polynomial of degree {found.degree} in {found.axis}"
    return Transitions(epochs, found.p_value, alpha, found.n, simulations, trend, unmeasured(series), reason)


def evolution(reader: RunReader, layers: Sequence[str]) -> dict[str, dict[str, Any]]:
    """By layer: its epochs, the series of every number with first, last and change, and when it moved.

    A layer has moved halfway at the first epoch at which 1 − `cka_first`, which begins at 0, is half of what it is at
    the last epoch. Of layers that end less than `Cuts.moved_distance` away from their first features nothing is said.
    """
    reader = one_pass(reader)
    names = set(reader.frame(FeatureEvolution.probe, kind="layer")["name"])
    recorded = [quantity for quantity in FeatureEvolution.all() if quantity.name in names]
    order = by_features(grid(reader, FeatureEvolution.cka_first), replace(Cuts(), measurements=1))
    ranks = {layer: rank for rank, (_, tied) in enumerate(order.ranks, start=1) for layer in tied}
    by_layer: dict[str, dict[str, Any]] = {}
    for layer in layers:
        courses = {quantity.name: course(reader, layer, quantity) for quantity in recorded}
        epochs = next(iter(courses.values())).steps.tolist() if courses else []
        halfway = int(order.steps[order.places[layer]]) if layer in order.places else None
        by_layer[layer] = {
            "epochs": epochs,
            "metrics": {name: _summary(series) for name, series in courses.items()},
            "halfway_epoch": halfway,
            "order": ranks.get(layer),
            "changed_first": ranks.get(layer) == 1 and len(order.ranks) > 1,
            "how": _how(layer, courses, order.left_out, halfway, len(ranks)),
        }
    return by_layer


def _summary(series: Series) -> dict[str, Any]:
    finite = [float(value) for value in series.finite.values]
    return {
        "values": [float(value) if np.isfinite(value) else None for value in series.values],
        "first": finite[0] if finite else None,
        "last": finite[-1] if finite else None,
        "change": finite[-1] - finite[0] if len(finite) > 1 else None,
        "reasons": unmeasured(series),
    }


def _how(layer: str, courses: dict[str, Series], left_out: Any, halfway: int | None, ranked: int) -> str:
    series = courses.get(FeatureEvolution.cka_first.name)
    if series is None or len(series) < 2:
        return f"{count(len(series) if series is not None else 0, 'epoch')}: there is nothing to compare with"
    if halfway is None:
        return f"not in the order: {left_out.get(layer, 'not measured')}"
    last, then = float(series.values[-1]), series.at(halfway)
    alone = "" if ranked > 1 else "; no other layer is in the order"
    return f"CKA with its first features fell to {last:.3f}; halfway, at {then:.3f}, by epoch {halfway}{alone}"
