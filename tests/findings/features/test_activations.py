"""Layers with too many dead or saturated units."""

from __future__ import annotations

import pytest

from findings.made_run import MadeRun
from learnscope.findings import Cuts, find
from learnscope.findings.features.activations import activations


def kinds(run: MadeRun, **cuts: float) -> list[str]:
    return [finding.kind for finding in activations(run.reader, Cuts(**cuts))]  # type: ignore[arg-type]


def test_a_sound_run_and_one_without_the_probe() -> None:
    run = MadeRun()
    assert kinds(run) == []
    for step in (10, 20, 30, 40):
        run.activations(step, {"a": 0.5, "b": 0.0})  # at the cut is not above it
    assert kinds(run) == []


def test_one_layer_that_dies_and_stays_dead() -> None:
    run = MadeRun(layers=["a", "b"])
    for step, share in ((10, 0.0), (20, 0.7), (30, 0.8), (40, 0.75)):
        run.activations(step, {"a": 0.1, "b": share}, units=128, examples=200)
    [finding] = activations(run.reader, Cuts())
    assert (finding.kind, finding.severity, finding.scopes) == ("dead_units", "warning", ["b"])
    assert finding.title == "75 % of the units in b dead since step 20"
    assert (
        "is 75 % in b, which has 128 units (median over 3 consecutive measurements, on 200 examples each)"
        in finding.detail
    )
    assert "goes into b" in finding.advice
    evidence = finding.evidence
    assert (evidence.name, evidence.n, evidence.first_step, evidence.last_step) == ("dead_share", 3, 20, 40)
    assert evidence.value == pytest.approx(0.75)
    assert finding in find(run.reader)


def test_two_measurements_are_not_enough_unless_the_cut_says_so() -> None:
    run = MadeRun()
    for step in (10, 20):
        run.activations(step, {"a": 0.9})
    assert kinds(run) == []
    assert kinds(run, measurements=2) == ["dead_units"]
    assert kinds(run, measurements=2, dead_share=0.95, saturated_share=0.95) == []


def test_a_dead_relu_is_not_reported_as_saturated_too() -> None:
    run = MadeRun(layers=["a", "b"])
    for step in (1, 2, 3):
        run.activations(step, {"a": 0.8, "b": 0.2}, {"a": 0.9, "b": 0.7})
    dead, saturated = activations(run.reader, Cuts())
    assert (dead.kind, dead.scopes) == ("dead_units", ["a"])
    assert (saturated.kind, saturated.scopes, saturated.severity) == ("saturated_units", ["b"], "warning")
    assert "In b, 20 % of the units are dead." in saturated.detail
    assert saturated.evidence.value == pytest.approx(0.7)


def test_several_layers_are_one_finding() -> None:
    run = MadeRun(layers=["a", "b", "c"])
    for step in (1, 2, 3, 4):
        late = 0.6 if step > 1 else 0.0
        run.activations(step, {"a": 0.9, "b": late, "c": 0.0}, units=10)
    [finding] = activations(run.reader, Cuts())
    assert finding.title == "Up to 90 % of the units dead in 2 of 3 layers since step 1"
    assert "is 60 % to 90 % in a and b, which have 20 units (medians over 3 to 4 consecutive" in finding.detail


def test_a_layer_that_is_all_dead_is_critical() -> None:
    run = MadeRun()
    for step in (1, 2, 3):
        run.activations(step, {"a": 1.0, "b": 0.6})
    [finding] = activations(run.reader, Cuts())
    assert finding.severity == "critical"
    assert "Nothing passes through the activations of a." in finding.detail


def test_what_has_passed_is_information() -> None:
    run = MadeRun()
    for step in range(1, 6):
        run.activations(step, {"a": 1.0 if step < 4 else 0.1})
    [finding] = activations(run.reader, Cuts())
    assert finding.severity == "info"
    assert finding.title.endswith("in steps 1 to 3, not after")


def test_shares_that_were_not_measured_say_nothing() -> None:
    run = MadeRun()
    for step in (1, 2, 3):
        run.activations(step, {"a": None})
    assert kinds(run) == []


@pytest.mark.parametrize("name", ["dead_share", "saturated_share"])
def test_a_share_that_nothing_exceeds_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}=1: a share below 1"):
        Cuts(**{name: 1.0})
