"""Dead units by what gradients show."""

from __future__ import annotations

from findings.made_run import MadeRun
from findings.made_training import LAYERS, falling, flat
from learnscope.findings import find
from learnscope.record import Finding


def run(losses: list[float], zero: int) -> list[Finding]:
    """`zero` layers from the input on get a gradient of exactly 0."""
    made = MadeRun(layers=LAYERS)
    for step, loss in enumerate(losses, 1):
        made.loss(step, loss)
        if step % 10 == 0:
            made.gradients(step, {name: 0.0 if place < zero else 0.5 for place, name in enumerate(LAYERS)})
    return [finding for finding in find(made.reader) if finding.severity != "info"]


def test_layers_behind_dead_units() -> None:
    [finding] = run(flat(), zero=2)
    assert (finding.kind, finding.cause, finding.scopes) == ("dead_units", True, ["first", "second"])
    assert "Gradients arrive at last and are exactly 0 in first and second" in finding.detail
    assert [inside.kind for inside in finding.taken_in] == ["zero_gradients"]


def test_a_part_that_rests_in_a_run_that_learns() -> None:
    assert [finding.kind for finding in run(falling(), zero=1)] == ["zero_gradients"]


def test_no_gradient_anywhere_has_another_cause() -> None:
    assert "dead_units" not in [finding.kind for finding in run(flat(), zero=3)]
