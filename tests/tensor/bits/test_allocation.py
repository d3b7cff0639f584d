"""Allocations against all choices there are, and the frontier against its definition."""

from __future__ import annotations

import itertools
import math
import random
import subprocess
import sys

import pytest

from learnscope.tensor.bits.allocation import NoAllocation, Point, allocate, pareto

Table = dict[str, dict[int, float]]
Sizes = dict[str, dict[int, int]]


def instance(seed: int, units: int = 5) -> tuple[Table, Sizes]:
    """Damages over ten orders of magnitude, some of them equal, some of them not falling; sizes up to 10^10."""
    rng = random.Random(seed)
    damage: Table = {}
    size: Sizes = {}
    for unit in range(units):
        weights = rng.choice([1, 7, 48, 10**4 + 1, 7 * 10**7, 10**10])
        name = f"unité {unit}"
        widths = rng.sample([2, 3, 4, 8, 16], rng.randint(1, 4))
        damage[name] = {w: rng.choice([0.0, 1e-9, 2e-9, rng.random(), 10 ** rng.uniform(-9, 1)]) for w in widths}
        size[name] = {w: weights * w // 8 + rng.choice([0, 1, 64]) for w in widths}
    return damage, size


def every_choice(damage: Table, size: Sizes) -> list[tuple[float, int]]:
    return [
        (
            math.fsum(damage[u][w] for u, w in zip(damage, widths, strict=True)),
            sum(size[u][w] for u, w in zip(damage, widths, strict=True)),
        )
        for widths in itertools.product(*damage.values())
    ]


@pytest.mark.parametrize("seeds", [range(0, 60), range(60, 120)])
def test_allocations_are_the_best_of_all_choices(seeds: range) -> None:
    for seed in seeds:
        damage, size = instance(seed)
        choices = every_choice(damage, size)
        rng = random.Random(seed)
        # at the very size of a choice, one byte below it, and anywhere
        at = rng.choice(choices)[1]
        for limit in (at, at - 1, rng.randint(min(b for _, b in choices), max(b for _, b in choices))):
            fitting = [(d, b) for d, b in choices if b <= limit]
            if not fitting:
                with pytest.raises(NoAllocation, match=f"takes {min(b for _, b in choices)} bytes"):
                    allocate(damage, size, max_bytes=limit)
                continue
            found = allocate(damage, size, max_bytes=limit)
            best = min(d for d, _ in fitting)
            assert found.bytes == sum(size[u][w] for u, w in found.choice.items()) <= limit
            assert found.damage == math.fsum(damage[u][w] for u, w in found.choice.items())
            assert found.damage <= best * (1 + 1e-11), (seed, limit)
            assert found.bytes <= min(b for d, b in fitting if d == best), (seed, limit)
        bound = rng.choice(choices)[0]
        within = [(b, d) for d, b in choices if d <= bound]
        found = allocate(damage, size, max_damage=bound)
        assert found.damage <= bound
        assert (found.bytes, found.damage) == (min(within)[0], pytest.approx(min(within)[1], rel=1e-11)), seed


def test_of_equal_damages_the_fewest_bytes_and_of_equal_bytes_the_least_damage() -> None:
    rng = random.Random(5)
    for _ in range(40):
        damage = {str(u): {w: float(rng.randint(0, 4)) for w in (2, 4, 8)} for u in range(5)}
        size = {str(u): {w: rng.randint(1, 9) for w in (2, 4, 8)} for u in range(5)}
        choices = every_choice(damage, size)
        limit, bound = rng.choice(choices)[1], rng.choice(choices)[0]
        found = allocate(damage, size, max_bytes=limit)
        assert (found.damage, found.bytes) == min((d, b) for d, b in choices if b <= limit)
        found = allocate(damage, size, max_damage=bound)
        assert (found.bytes, found.damage) == min((b, d) for d, b in choices if d <= bound)

    # a search that takes the best step first goes by x and y, and 8 bytes; z saves as much in 7
    damage = {"x": {4: 0.0, 2: 1.0}, "y": {4: 0.0, 2: 2.0}, "z": {4: 0.0, 2: 3.0}}
    size = {"x": {4: 3, 2: 1}, "y": {4: 7, 2: 1}, "z": {4: 8, 2: 1}}
    assert allocate(damage, size, max_bytes=11).choice == {"x": 2, "y": 2, "z": 4}


def test_a_budget_is_kept_beyond_the_solvers_tolerance() -> None:
    damage, size = {"a": {8: 0.0, 4: 1.0}, "b": {8: 0.0, 4: 0.25}}, {"a": {8: 80, 4: 40}, "b": {8: 8, 4: 4}}
    assert allocate(damage, size, max_damage=1.25).choice == {"a": 4, "b": 4}
    assert allocate(damage, size, max_damage=math.nextafter(1.25, 0)).choice == {"a": 4, "b": 8}
    assert allocate(damage, size, max_damage=math.nextafter(1.0, 0)).choice == {"a": 8, "b": 4}


def test_a_small_optimum_beside_large_damages_is_still_exact() -> None:
    damage = {str(u): {8: (u + 1) * 1e-9, 4: (u + 1) * 1.0000001e-9, 2: 10.0} for u in range(8)}
    size = {str(u): {8: 80, 4: 40 + u, 2: 20} for u in range(8)}
    choices = every_choice(damage, size)
    for limit in (330, 400, 520, 630):
        best = min(d for d, b in choices if b <= limit)
        assert allocate(damage, size, max_bytes=limit).damage == pytest.approx(best, rel=1e-12)


def test_many_units_are_quick_and_keep_their_budget() -> None:
    rng = random.Random(3)
    damage = {f"u{u}": {w: rng.random() * 4.0**-w for w in (2, 3, 4, 8)} for u in range(200)}
    size = {name: {w: 98_304 * w + 1_536 * 4 for w in widths} for name, widths in damage.items()}
    limit = sum(widths[4] for widths in size.values())
    found = allocate(damage, size, max_bytes=limit)
    assert found.bytes <= limit
    assert found.damage < math.fsum(widths[4] for widths in damage.values())
    # no exchange of two units' widths that still fits is better
    names = list(damage)
    for a, b in itertools.combinations(names[:40], 2):
        for x, y in itertools.product((2, 3, 4, 8), repeat=2):
            more = size[a][x] + size[b][y] - size[a][found.choice[a]] - size[b][found.choice[b]]
            if found.bytes + more <= limit:
                less = damage[a][x] + damage[b][y] - damage[a][found.choice[a]] - damage[b][found.choice[b]]
                assert less >= -1e-10


def test_what_has_no_answer_is_refused_by_name() -> None:
    damage, size = {"a": {4: 0.5, 2: math.nan}, "b": {4: 0.25}}, {"a": {4: 8, 2: 4}, "b": {4: 8}}
    assert allocate(damage, size, max_bytes=16).choice == {"a": 4, "b": 4}  # what is NaN is not chosen
    with pytest.raises(NoAllocation, match="every unit at its smallest takes 16 bytes"):
        allocate(damage, size, max_bytes=15)
    with pytest.raises(NoAllocation, match=r"every unit at its best has 0\.75 together"):
        allocate(damage, size, max_damage=0.7)
    with pytest.raises(NoAllocation, match="a has no width with a finite damage"):
        allocate({"a": {4: math.inf}}, size, max_bytes=10)
    with pytest.raises(ValueError, match="the size of b at 2 bits"):
        allocate({"b": {2: 0.1}}, size, max_bytes=10)
    with pytest.raises(ValueError, match="no units"):
        allocate({}, {}, max_bytes=10)
    for wrong in ({}, {"max_bytes": 1, "max_damage": 1.0}):
        with pytest.raises(TypeError, match="one of max_bytes= and max_damage="):
            allocate(damage, size, **wrong)


def test_the_frontier_holds_strict_improvements_only() -> None:
    rng = random.Random(1)
    for _ in range(50):
        points = [
            Point(str(i), rng.randint(1, 12), rng.choice([math.nan, *[k / 8 for k in range(8)]])) for i in range(12)
        ]
        kept = {p.name for p in pareto(points)}
        known = [p for p in points if not math.isnan(p.damage)]
        for p in points:
            beaten = any(
                q.bytes <= p.bytes and q.damage <= p.damage and (q.bytes, q.damage) != (p.bytes, p.damage)
                for q in known
            )
            first = min((q.name for q in known if (q.bytes, q.damage) == (p.bytes, p.damage)), default=None)
            assert (p.name in kept) == (p in known and not beaten and p.name == first)
    assert pareto([]) == []


def test_points_that_cannot_be_told_apart_are_merged_into_the_smaller() -> None:
    points = [Point("d", 40, 0.1), Point("a", 10, 1.0), Point("c", 30, 0.85), Point("b", 20, 0.95), Point("e", 50, 0.2)]
    damages = {p.name: p.damage for p in points}

    def paired(a: str, b: str) -> tuple[float, float]:
        return damages[a] - damages[b] - 0.12, damages[a] - damages[b] + 0.12

    # b is within the noise of a and c is not, though it is within that of b
    assert [(p.name, p.merged) for p in pareto(points, paired)] == [("a", ("b",)), ("c", ()), ("d", ())]
    unknown = pareto(points, lambda _a, _b: (math.nan, math.nan))
    assert [p.name for p in unknown] == ["a", "b", "c", "d"]


def test_no_torch_is_needed() -> None:
    modules = "learnscope.tensor.bits.allocation, learnscope.model.bits.sensitivities"
    program = f"import sys, {modules}; print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"
