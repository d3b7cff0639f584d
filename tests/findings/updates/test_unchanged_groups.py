"""Groups whose weights do not move at all, as the change of whole layers shows it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from findings.made_telemetry import BACKBONE, HEAD, MadeTelemetry
from learnscope.findings import Cuts
from learnscope.findings.updates.frozen import frozen
from learnscope.record import Finding

TENSORS = [f"{layer}.{part}" for layer in BACKBONE for part in ("weight", "bias")]
RESTING = {**dict.fromkeys(BACKBONE, 0.0), "head": 0.3}
RISING = [0.5, 0.7, 0.9, 1.0]


def judged(run: MadeTelemetry, **cuts: int) -> list[Finding]:
    return frozen(run.reader, Cuts(**cuts))  # type: ignore[arg-type]


def resting(run: MadeTelemetry, times: int = 4, probe: str = "WeightDelta") -> MadeTelemetry:
    """The first measurement has nothing to compare with."""
    run.delta((0, 10), dict.fromkeys([*BACKBONE, *HEAD]), probe=probe)
    for end in range(20, 20 + 10 * times, 10):
        run.delta((end - 10, end), RESTING, probe=probe)
    return run


def is_frozen() -> MadeTelemetry:
    return MadeTelemetry(frozen=TENSORS, frozen_parameters=900)


def is_outside() -> MadeTelemetry:
    return MadeTelemetry(trainable_outside_optimizer=TENSORS)


REASONS: dict[str, Callable[[], MadeTelemetry]] = {
    "frozen": is_frozen, "not_optimised": is_outside, "not_moving": MadeTelemetry,
}  # fmt: skip
WHOLE = "That is the whole of backbone (2 layers, 900 of 1,000 parameters, 90 %), while 1 other layer moved."


@pytest.mark.parametrize("probe", ["WeightDelta", "ParameterChange"])
@pytest.mark.parametrize("kind", REASONS)
def test_a_group_that_rests_for_each_reason(kind: str, probe: str) -> None:
    [finding] = judged(resting(REASONS[kind](), probe=probe))
    assert finding.kind == kind
    assert finding.severity == ("info" if kind == "frozen" else "warning")
    assert finding.detail.endswith(WHOLE)
    assert "in 4 measurements" in finding.detail
    assert "guessing" not in finding.detail


@pytest.mark.parametrize("kind", REASONS)
def test_a_model_that_only_guesses_is_said_with_it(kind: str) -> None:
    run = resting(REASONS[kind]())
    run.epochs(RISING, 0.5)
    [finding] = judged(run)
    assert (finding.kind, finding.severity) == (kind, "warning")
    assert WHOLE in finding.detail
    assert (
        "on the holdout it is 50 % (95 % interval 43.1 % to 56.9 %, n = 200) over the last 3 measurements, which is no "
        "better than guessing, 50 %." in finding.detail
    )


def test_frozen_on_purpose_and_working_stays_information() -> None:
    run = resting(is_frozen())
    run.epochs(RISING, [0.5, 0.6, 0.7, 0.8])
    [finding] = judged(run)
    assert finding.severity == "info"
    assert "Nothing to do if this is meant" in finding.advice


def test_frozen_at_the_start_and_moving_later_is_not_said_to_rest() -> None:
    run = resting(is_frozen())
    run.epochs(RISING, 0.5)
    run.delta((200, 210), {**RESTING, **dict.fromkeys(BACKBONE, 0.1)})
    [finding] = judged(run)
    assert (finding.kind, finding.severity) == ("frozen", "info")
    assert "changed" not in finding.detail
    assert "whole of" not in finding.detail


def test_half_a_group_is_not_the_group() -> None:
    run = MadeTelemetry()
    for end in range(20, 60, 10):
        run.delta((end - 10, end), {"backbone.0": 0.0, "backbone.2": 0.2, "head": 0.3})
    [finding] = judged(run)
    assert finding.kind == "not_moving"
    assert finding.title == "1 trainable layer held by the optimizer did not change in 40 steps"
    assert finding.scopes == ["backbone.0"]
    assert finding.detail.endswith("while 2 other layers moved.")
    evidence = finding.evidence
    assert (evidence.probe, evidence.name, evidence.n, evidence.value) == ("WeightDelta", "l2", 4, 0.0)
    assert (evidence.first_step, evidence.last_step) == (10, 50)


def test_the_smallest_change_is_a_change() -> None:
    run = resting(MadeTelemetry())
    run.delta((60, 70), {**RESTING, **dict.fromkeys(BACKBONE, 5e-324)})
    assert judged(run) == []


def test_a_change_that_is_not_finite_is_a_change() -> None:
    run = resting(MadeTelemetry())
    run.delta((60, 70), {**RESTING, **dict.fromkeys(BACKBONE, float("nan"))})
    assert judged(run) == []


def test_few_measurements_are_information_and_none_nothing() -> None:
    for times, severity in ((1, "info"), (2, "info"), (3, "warning")):
        [finding] = judged(resting(MadeTelemetry(), times))
        assert finding.severity == severity
    assert judged(resting(MadeTelemetry(), 0)) == []
    assert judged(resting(MadeTelemetry(), 3), frozen_measurements=4) == []


def test_a_warm_up_in_which_nothing_moves_accuses_nobody() -> None:
    run = MadeTelemetry()
    for end in range(10, 50, 10):
        run.delta((end - 10, end), dict.fromkeys([*BACKBONE, *HEAD], 0.0))
    assert judged(run) == []
    run.delta((40, 50), RESTING)
    [finding] = judged(run)
    assert (finding.severity, finding.evidence.n) == ("info", 1)


def test_a_head_that_rests_in_the_first_epoch_and_then_learns() -> None:
    run = MadeTelemetry()
    for end in range(10, 50, 10):
        run.delta((end - 10, end), {"backbone.0": 0.2, "backbone.2": 0.2, "head": 0.0})
        run.rates(end, 1e-3, 0.0)
    run.delta((40, 50), {"backbone.0": 0.2, "backbone.2": 0.2, "head": 0.1})
    run.rates(50, 1e-3, 1e-2)
    run.epochs(RISING, 0.5)
    assert judged(run) == []


def test_a_learning_rate_of_0_is_named_as_the_cause() -> None:
    run = resting(MadeTelemetry())
    for step in (10, 20, 30):
        run.rates(step, 0.0, 1e-2)
    [finding] = judged(run)
    assert finding.advice.startswith("The learning rate of the optimizer's group backbone was 0 in all 3 measurements")
    run.rates(40, 1e-3, 1e-2)
    [finding] = judged(run)
    assert "was 0 in all" not in finding.advice


def test_gradients_that_never_come_are_named_as_the_cause() -> None:
    run = resting(MadeTelemetry())
    run.rates(10, 1e-3, 1e-2)
    run.gradients(10, {"backbone.0": 0.0, "backbone.2": 0.0, "head": 0.1})
    [finding] = judged(run)
    assert "No gradient other than 0 reached their layers" in finding.advice
    reached = resting(MadeTelemetry())
    reached.gradients(10, {"backbone.0": 0.2, "backbone.2": 0.1, "head": 0.1})
    [finding] = judged(reached)
    assert "The layer of backbone.0 does get gradients" in finding.advice


def test_half_precision_weights_are_named_as_the_cause() -> None:
    run = resting(MadeTelemetry(dtypes={"bfloat16": 1000}))
    [finding] = judged(run)
    assert "The weights are bfloat16" in finding.advice


def test_a_run_that_does_not_say_how_large_layers_are() -> None:
    run = resting(is_frozen())
    del run.manifest["model"]["layer_parameters"]
    [finding] = judged(run)
    assert "That is the whole of backbone (2 layers), while 1 other layer moved." in finding.detail


def test_wrapped_names_of_parameters() -> None:
    run = resting(MadeTelemetry(frozen=[f"_orig_mod.{name}" for name in TENSORS], frozen_parameters=900))
    [finding] = judged(run)
    assert finding.kind == "frozen"
    assert "None of them changed in 4 measurements" in finding.detail
