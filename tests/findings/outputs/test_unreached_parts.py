"""Parts of a model that do not reach the loss."""

from __future__ import annotations

from findings.made_run import MadeRun
from findings.made_training import LAYERS, falling
from learnscope.findings import find
from learnscope.record import Finding


def run(zero: dict[str, int]) -> list[Finding]:
    """Layers whose gradient is exactly 0 from a step on."""
    made = MadeRun(layers=LAYERS)
    for step, loss in enumerate(falling(), 1):
        made.loss(step, loss)
        if step % 10 == 0:
            made.gradients(step, {name: 0.0 if step >= zero.get(name, 1000) else 0.5 for name in LAYERS})
    return [finding for finding in find(made.reader) if finding.severity != "info"]


def test_a_head_that_the_loss_leaves_out() -> None:
    [finding] = run({"last": 0})
    assert (finding.kind, finding.cause, finding.scopes, finding.since) == ("unreached_outputs", True, ["last"], 10)
    assert [inside.kind for inside in finding.taken_in] == ["zero_gradients"]
    assert "while first before it was trained" in finding.detail


def test_what_stops_later_or_at_the_input_is_something_else() -> None:
    assert [finding.kind for finding in run({"last": 150})] == ["zero_gradients"]
    assert [finding.kind for finding in run({"first": 0})] == ["zero_gradients"]
