"""Sequence models that see what they are to predict."""

from __future__ import annotations

from typing import Any

import pytest

from findings.made_training import MadeTraining, falling
from learnscope.record import Column, Finding, Table


def alarms(shifts: dict[int, float], name: str = "targets_equal_inputs", **numbers: Any) -> list[Finding]:
    run = MadeTraining().train(falling())
    run.manifest["model"]["layer_types"] = numbers.pop("layers", {})
    losses = falling(end=numbers.pop("end", 0.2), noise=0.001)
    usual = {"objective_accuracy": 0.9, "classes": 60, "classes_seen": 60, "majority_share": 0.1, "target_entropy": 3.0}
    function = "cross_entropy" if name == "targets_equal_inputs" else "mse_loss"
    run.objective(300, function, value=losses, **(usual if function == "cross_entropy" else {"constant_loss": 2.3}))
    for step in range(10, 301, 10):
        columns = [Column(name, [share], {"shift": shift}) for shift, share in shifts.items()]
        columns += [Column(key, [value(step) if callable(value) else value]) for key, value in numbers.items()]
        run.write("Objective", step, [Table("model", ["model"], columns)])
    return run.alarms


def test_attention_without_a_causal_mask() -> None:
    late = lambda step: min(1.0, step / 150)  # noqa: E731
    [finding] = alarms({1: 1.0}, first_place_rows=8, first_place_right=late, first_place_bound=0.6)
    assert (finding.kind, finding.cause) == ("copies_input", True)
    assert "no function of the first token gets more than 60 %" in finding.detail
    assert "causal mask" in finding.advice


@pytest.mark.parametrize(
    ("shifts", "rows", "right", "bound"),
    [
        ({1: 1.0}, 8, 0.6, 0.6),  # as good as the first token allows
        ({1: 1.0}, 8, 0.65, 0.6),  # dropout
        ({1: 1.0}, 8, 1.0, 1.0),  # a language in which the first token says it all
        ({0: 1.0, 1: 0.1}, 8, 1.0, 0.5),  # tags of the tokens themselves
        ({1: 0.1}, 8, 1.0, 0.5),  # masked tokens
        ({1: 1.0}, 1, 1.0, 0.5),  # too few to tell
    ],
)
def test_sound_models_of_tokens(shifts: dict[int, float], rows: int, right: float, bound: float) -> None:
    found = alarms(shifts, first_place_rows=rows, first_place_right=right, first_place_bound=bound)
    assert not [finding for finding in found if "cannot be known" in finding.title]


def test_a_convolution_that_sees_the_future() -> None:
    [finding] = alarms({0: 0.0, 1: 1.0}, "inputs_as_targets", first_place_error=0.03, first_place_floor=0.9)
    assert (finding.kind, finding.cause) == ("copies_input", True)
    assert "leaves 90 % of the variance" in finding.detail


@pytest.mark.parametrize(
    ("shifts", "error", "floor"),
    [
        ({0: 0.0, 1: 1.0}, 0.85, 0.9),  # as good as can be
        ({0: 0.0, 1: 1.0}, 1e-6, 1e-4),  # a series that the first value decides
        ({0: 0.0, 1: 0.0}, 0.03, 0.9),  # targets of another kind
    ],
)
def test_sound_forecasts(shifts: dict[int, float], error: float, floor: float) -> None:
    assert alarms(shifts, "inputs_as_targets", first_place_error=error, first_place_floor=floor) == []


def test_a_forecast_of_the_series_itself() -> None:
    [finding] = alarms({0: 1.0, 1: 0.0}, "inputs_as_targets", layers={"rnn": "GRU", "head": "Linear"}, end=0.001)
    assert (finding.kind, finding.cause) == ("copies_input", True)
    assert "shift the targets by one" in finding.advice


@pytest.mark.parametrize("layers", [{"conv": "Conv1d"}, {"encoder": "LSTM", "decoder": "LSTM"}, {}])
def test_autoencoders_give_their_input_back(layers: dict[str, str]) -> None:
    assert alarms({0: 1.0, 1: 0.0}, "inputs_as_targets", layers=layers, end=0.001) == []


def test_an_autoencoder_that_has_something_to_learn() -> None:
    assert alarms({0: 1.0, 1: 0.0}, "inputs_as_targets", layers={"rnn": "GRU"}, end=0.2) == []


@pytest.mark.parametrize(("share", "kinds"), [(0.15, ["ignored_class"]), (0.001, []), (0.0, [])])
def test_a_token_of_the_text_that_is_ignored(share: float, kinds: list[str]) -> None:
    assert [finding.kind for finding in alarms({1: 0.85}, ignored_inside=share)] == kinds
