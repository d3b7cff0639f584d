"""Output layers that are frozen or hardly trained, told only where the model does not learn."""

from __future__ import annotations

from typing import Any

import pytest

from findings.made_training import MadeTraining, falling, flat

CHANCE = {"majority_share": 0.11, "target_entropy": 2.3, "classes": 10, "classes_seen": 10, "predicted_majority": 0.3}


def run_of(
    losses: list[float], groups: list[dict[str, Any]] | None = None, frozen: tuple[str, ...] = ()
) -> MadeTraining:
    run = MadeTraining()
    run.manifest["model"] |= {"frozen": list(frozen), "layer_parameters": {"first": 10, "second": 10, "last": 5}}
    if groups is not None:
        run.manifest["optimizers"] = [{"class": "Adam", "groups": groups}]
    return run.train(losses).objective(len(losses), value=losses, objective_accuracy=0.11, **CHANCE)


def groups(body: float, head: float) -> list[dict[str, Any]]:
    return [
        {"lr": body, "tensors": 4, "layers": ["first", "second"], "name": "one"},
        {"lr": head, "tensors": 2, "layers": ["last"], "name": "other"},
    ]


def test_a_frozen_output_layer_explains_a_model_at_chance() -> None:
    [finding] = run_of(flat(), frozen=("last.weight", "last.bias")).alarms
    assert (finding.kind, finding.cause, finding.scopes[0]) == ("frozen", True, "last")
    assert {inside.kind for inside in finding.taken_in} == {"labels_unrelated"}


def test_exchanged_rates_explain_a_model_at_chance() -> None:
    [finding] = run_of(flat(), groups(0.05, 1e-6)).alarms
    assert (finding.kind, finding.cause, list(finding.scopes)) == ("slow_head", True, ["last"])
    assert "50,000 times less" in finding.detail


def test_most_of_a_model_at_a_thousandth_of_the_rate() -> None:
    [finding] = run_of(flat(), groups(1e-8, 1e-3)).alarms
    assert (finding.kind, list(finding.scopes)) == ("learning_rate_too_low", ["first", "second"])


@pytest.mark.parametrize("options", [
    {"frozen": ("last.weight", "last.bias")}, {"groups": groups(0.05, 1e-6)},
])  # fmt: skip
def test_nothing_is_wrong_with_either_in_a_model_that_learns(options: dict[str, Any]) -> None:
    assert run_of(falling(), **options).kinds == []


@pytest.mark.parametrize("options", [
    {"frozen": ("first.weight",)},  # a backbone
    {"frozen": ("last.weight", "last.base_layer.weight")},  # an adapter is put on it
    {"groups": groups(1e-5, 1e-3)},  # the usual way round
    {"groups": groups(1e-2, 1e-4)},  # a hundredth
])  # fmt: skip
def test_what_is_usual_is_not_blamed(options: dict[str, Any]) -> None:
    assert not {"frozen", "slow_head", "learning_rate_too_low"} & set(run_of(flat(), **options).kinds)


ADAPTED = ("first.lora_A.weight", "last.weight", "last.bias")


def test_a_new_output_layer_left_frozen_beside_adapters() -> None:
    """The first loss is that of guessing, as of a layer that was just made, and the last is hardly below."""
    losses = falling(start=2.3, end=2.1, noise=0.01)
    [finding] = run_of(losses, frozen=ADAPTED).alarms
    assert (finding.kind, finding.cause, finding.scopes[0]) == ("frozen", True, "last")
    assert "modules_to_save" in finding.advice


@pytest.mark.parametrize("losses", [falling(start=4.0, end=2.1), falling(start=1.2, end=1.0), falling(), flat()])
def test_an_output_layer_that_was_trained_is_kept_beside_adapters(losses: list[float]) -> None:
    """It is sure of something before any step, right or wrong; or all is learned, or nothing at all."""
    assert "frozen" not in run_of(losses, frozen=ADAPTED).kinds
