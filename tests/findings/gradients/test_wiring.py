"""How models are put together: parts that nobody trains, calls that the output does not come from."""

from __future__ import annotations

from findings.made_training import MadeTraining, falling, flat
from learnscope.findings import find
from learnscope.record import Column, Table

TEN = {"majority_share": 0.11, "target_entropy": 2.3, "classes": 10, "classes_seen": 10,
       "objective_accuracy": 0.1, "predicted_majority": 0.4}  # fmt: skip


def at_chance() -> MadeTraining:
    losses = flat(level=2.3)
    return MadeTraining().train(losses).objective(300, value=losses, **TEN)


def graph(run: MadeTraining, **numbers: float) -> MadeTraining:
    for step in (10, 20):
        notes = {"lost_calls": ["cell"]} if numbers.get("lost_calls") else {}
        columns = [Column(name, [number]) for name, number in numbers.items()]
        run.write("Inputs", step, [Table("model", ["model"], columns)], notes=notes)
    return run


def test_parameters_that_the_model_does_not_know() -> None:
    [finding] = graph(at_chance(), outside_parameters=2500).alarms
    assert (finding.kind, finding.cause, finding.since) == ("not_optimised", True, 10)
    assert "20 % of all that it computes with" in finding.detail
    assert "labels_unrelated" in [inside.kind for inside in finding.taken_in]


def test_every_parameter_is_known() -> None:
    assert find(graph(MadeTraining().train(falling()), outside_parameters=0, lost_calls=0).reader) == []


def test_calls_that_the_output_does_not_come_from() -> None:
    [finding] = graph(at_chance(), lost_calls=0.9).alarms
    assert (finding.kind, finding.cause, finding.scopes) == ("no_gradient", True, ["cell"])
    assert finding.title == "No gradient goes back through 90 % of the calls of cell"
    assert "labels_unrelated" in [inside.kind for inside in finding.taken_in]


def test_such_calls_are_no_fault_where_the_model_learns() -> None:
    assert graph(MadeTraining().train(falling()), lost_calls=0.9).alarms == []
