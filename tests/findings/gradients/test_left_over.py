"""Gradients that never change."""

from __future__ import annotations

import numpy as np

from findings.made_run import MadeRun
from learnscope.findings import Cuts
from learnscope.findings.gradients.left_over import left_over


def made(*, vary: float = 0.0, noise: float = 0.02, frozen: bool = True) -> list[str]:
    names = ["first", "second"]
    run = MadeRun(layers=names, frozen=[f"base.{name}.weight" for name in names if frozen])
    draw = np.random.default_rng(0)
    for step in range(1, 121):
        run.loss(step, 6.5 + noise * draw.standard_normal())
        if step % 10 == 0:
            run.gradients(step, {"first": 0.2 + vary * draw.random(), "second": 0.05})
    return [finding.kind for finding in left_over(run.reader, Cuts())]


def test_gradients_that_are_left_over() -> None:
    assert made() == ["no_gradient"]
    assert made(frozen=False) == []
    assert made(vary=1e-6) == []  # they come from batches
    assert made(noise=0.0) == []  # one batch, and weights that rest
