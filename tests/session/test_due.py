"""Which probes are due: the same as when each is asked at every step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import learnscope as ls
from learnscope.core.schedules import dense_at_first, next_due, regular_at_first, thinning

PACKAGED = (dense_at_first, regular_at_first, thinning)


@given(st.one_of(st.integers(1, 400), st.sampled_from(PACKAGED)), st.integers(0, 120_000))
def test_nothing_is_due_before_the_next_due_step(every: Any, step: int) -> None:
    later = next_due(every, step)
    is_due: Callable[[int], bool] = every if callable(every) else lambda number: number % every == 0
    assert later > step
    assert is_due(later)
    assert not any(is_due(between) for between in range(step + 1, later))


def test_a_schedule_of_ones_own_is_asked_at_every_step_and_may_change_its_mind() -> None:
    wanted: set[int] = set()
    seen: list[int] = []

    @ls.probe(every=lambda step: step in wanted)
    def own(moment: ls.Moment) -> dict[str, float]:
        seen.append(moment.step)
        return {"step": float(moment.step)}

    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ls.watch(model, optimizer, probes=[own, ls.GradientFlow(every=4)], strict=True) as w:
        for step in range(1, 13):
            optimizer.zero_grad()
            model(torch.ones(2, 3)).sum().backward()
            if step == 5:
                wanted |= {6, 11}  # said while the session runs
            optimizer.step()
    assert seen == [6, 11]
    assert [record.step for record in w.run.records("GradientFlow")] == [4, 8, 12]
