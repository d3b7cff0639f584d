"""Domination against all pairs, and damages between measured widths against the law that they follow."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from learnscope.tensor.bits.allocation import Point
from learnscope.tensor.bits.frontier import at_widths, crossing, dominates, undominated


def test_what_no_other_dominates() -> None:
    draw = random.Random(0)
    for _ in range(200):
        points = [Point(f"p{n}", draw.randint(1, 6), draw.choice([0.0, 0.1, 0.2, math.nan])) for n in range(8)]
        kept = undominated(points)
        finite = {p.name: p for p in points if not math.isnan(p.damage)}
        best = {(p.bytes, p.damage) for p in finite.values() if not any(dominates(q, p) for q in finite.values())}
        assert {(finite[name].bytes, finite[name].damage) for name in kept} == best
        assert len(kept) == len(best)
        sizes = [finite[name].bytes for name in kept]
        assert all(a < b for a, b in itertools.pairwise(sizes))


def test_damages_between_widths_follow_their_law() -> None:
    exact = {bits: 0.3 * 4.0**-bits for bits in range(2, 17)}
    found = at_widths({bits: exact[bits] for bits in (8, 4, 2)}, range(2, 17))
    assert found == pytest.approx(exact, rel=1e-12)
    assert 2 not in at_widths({8: 0.1, 4: 0.2}, (8, 4, 2)), "nothing is known below"
    assert at_widths({8: 0.0, 4: 1e-3}, [6])[6] == pytest.approx(math.sqrt(1e-3 * 1e-15))
    assert math.isnan(at_widths({8: 1e-3, 4: math.inf}, [6])[6])
    assert math.isnan(at_widths({8: 1e-3, 4: math.nan}, [4])[4])
    assert at_widths({}, [4]) == {}


def test_up_to_which_damage_the_loss_is_kept() -> None:
    assert crossing([(0.1, True), (0.2, False), (0.3, True)]) == pytest.approx(math.sqrt(0.02)), "the first that is not"
    assert crossing([(0.0, True), (0.2, False)]) is None, "the model as it is says nothing"
    assert crossing([(math.nan, False), (0.2, True)]) == 0.2
