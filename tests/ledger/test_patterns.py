"""Hard, easy and between, against whole histories gone through one by one."""

from __future__ import annotations

import itertools
import random
import statistics

import numpy as np
import pytest

from learnscope.ledger import Ledger
from learnscope.ledger.patterns import patterns
from learnscope.ledger.sums import GroupSums
from ledger.histories import Visit, fill


def histories(seed: int) -> dict[int, list[Visit]]:
    """Examples of every kind, each with a number of presentations of its own."""
    draw = random.Random(seed)
    made: dict[int, list[Visit]] = {}
    for id_ in draw.sample(range(1000), 120):
        level, shown = draw.choice([0.02, 0.5, 0.9, 0.95, 0.97]), draw.randint(1, 12)
        visits = []
        for epoch in range(shown):
            p = min(max(level + draw.uniform(-0.2, 0.2), 0.001), 0.999)
            visits.append(Visit(id_, epoch, p, p > 0.5, p - 0.5, 1 - p, 1 - p))
        made[id_] = visits
    return made


def naive(made: dict[int, list[Visit]]) -> dict[str, set[int]]:
    difficulty = {id_: 1 - statistics.mean(v.p_gold for v in visits) for id_, visits in made.items()}
    low, _, high = statistics.quantiles(difficulty.values(), n=4, method="inclusive")
    kinds: dict[str, set[int]] = {"hard": set(), "easy": set(), "medium": set()}
    for id_, visits in made.items():
        right = [v.correct for v in visits]
        forgotten = any(a and not b for a, b in itertools.pairwise(right))
        early = max(1, len(right) / 4)
        if not any(right) or difficulty[id_] > high + 1.5 * (high - low):
            kinds["hard"].add(id_)
        elif not forgotten and right.index(True) + 1 <= early:
            kinds["easy"].add(id_)
        else:
            kinds["medium"].add(id_)
    return kinds


@pytest.mark.parametrize("seed", range(5))
def test_kinds_are_those_of_whole_histories(seed: int) -> None:
    made = histories(seed)
    found = patterns(fill([visit for visits in made.values() for visit in visits]).arrays())
    wanted = naive(made)
    assert all(len(ids) >= 5 for ids in wanted.values()), "each kind is there"
    for kind, ids in wanted.items():
        assert set(found[f"{kind}_examples"]) == ids
    difficulty = [1 - statistics.mean(v.p_gold for v in made[id_]) for id_ in found["hard_examples"]]
    assert difficulty == sorted(difficulty, reverse=True), "the hardest first"
    told = found["forgetting_statistics"]
    events = [sum(a.correct and not b.correct for a, b in itertools.pairwise(v)) for v in made.values()]
    assert told["total_forgetting_events"] == sum(events) > 0
    assert told["examples_with_forgetting"] == sum(n > 0 for n in events)
    never = sum(not any(v.correct for v in visits) for visits in made.values())
    assert told["never_learned"] == never > 0
    assert told["unforgettable"] == len(made) - never - sum(n > 0 for n in events)


def test_nothing_and_nothing_finite_have_kinds_too() -> None:
    empty = patterns(Ledger().arrays())
    assert (empty["hard_examples"], empty["hard_cut"], empty["total_examples"]) == ([], None, 0)
    assert empty["forgetting_statistics"]["mean_forgetting_events"] is None
    nan = float("nan")
    found = patterns(fill([Visit(1, 0, nan, False, nan, nan, nan), Visit(2, 0, 0.9, True, 1, 0.1, 0.1)]).arrays())
    assert found["hard_examples"] == [1]
    assert found["easy_examples"] == [2]
    assert found["mean_difficulty"] == pytest.approx(0.1)


@pytest.mark.parametrize("kind", ["numbers", "large numbers", "names"])
def test_sums_by_group_are_those_of_a_loop(kind: str) -> None:
    rng = np.random.default_rng(1)
    groups = rng.integers(0, 7, 300)
    named = {"numbers": groups, "large numbers": groups * 10**6 - 5, "names": np.array(list("abcdefg"))[groups]}[kind]
    p, loss, right = rng.random(300), rng.random(300), rng.random(300) < 0.5
    p[3] = loss[4] = np.nan
    sums = GroupSums()
    for part in np.array_split(np.arange(300), 7):
        sums.add(named[part], correct=right[part], p_gold=p[part], loss=loss[part])
    found = sums.means()
    for place in sums.in_order():
        inside = named == (sums.names[place] if kind == "names" else int(sums.names[place]))
        finite = inside & np.isfinite(p) & np.isfinite(loss)
        assert found["accuracy"][place] == pytest.approx(right[inside].mean())
        assert found["confidence"][place] == pytest.approx(p[finite].mean())
        assert found["loss"][place] == pytest.approx(loss[finite].mean())
        assert found["presentations"][place] == inside.sum()
    assert [sums.names[i] for i in sums.in_order()] == [str(name) for name in np.unique(named)]
