"""Training data beside the holdout."""

from __future__ import annotations

from typing import Any

import pytest

from findings.made_training import MadeTraining, Over, at, falling
from learnscope.findings import find
from learnscope.record import Column, Finding, Table


def trained(**numbers: Any) -> MadeTraining:
    return (
        MadeTraining().train(falling()).inputs(300, **{"input_mean": 0.0, "input_std": 1.0, "input_max": 3, **numbers})
    )


def held_out(run: MadeTraining, **numbers: float) -> MadeTraining:
    columns = [Column(name, [value], {"data": "holdout"}) for name, value in numbers.items()]
    run.write("Inputs_2", 1, [Table("model", ["model"], columns)])
    return run


def losses(run: MadeTraining, *values: float, accuracy: float | None = None) -> MadeTraining:
    for place, value in enumerate(values, 1):
        step = 300 * place // len(values)
        run.holdout(step, None, mean=value)
        if accuracy is not None:
            run.model("Holdout_2", step, holdout_accuracy=accuracy, holdout_examples=400)
    return run


def test_training_rows_in_the_holdout() -> None:
    [finding] = trained(holdout_overlap=lambda step: 0.25 * (step > 50), rows=32).alarms
    assert (finding.kind, finding.cause, finding.since) == ("holdout_overlap", True, 60)
    assert finding.title == "20.8 % of the training rows looked at are in the holdout, bit for bit"
    assert "200 of 960 training rows" in finding.detail
    assert trained(holdout_overlap=0.0, rows=32).alarms == []
    assert trained(holdout_overlap=lambda step: (step == 50) / 32, rows=32).alarms == []
    # rows of few different numbers are the same by chance now and then
    assert trained(holdout_overlap=0.005, rows=200).alarms == []
    assert [f.kind for f in trained(holdout_overlap=0.02, rows=200).alarms] == ["holdout_overlap"]


@pytest.mark.parametrize(("mean", "std"), [(0.0, 100.0), (0.0, 0.01), (5.0, 1.0)])
def test_a_holdout_of_another_scale(mean: float, std: float) -> None:
    run = losses(held_out(trained(), input_mean=mean, input_std=std), 2.0, 5.0, 9.0, 15.0)
    [finding] = run.alarms
    assert (finding.kind, finding.cause) == ("holdout_differs", True)
    assert "worsening" in [inside.kind for inside in finding.taken_in]
    assert "The holdout loss is" in finding.detail


def test_a_holdout_that_is_alike() -> None:
    assert find(losses(held_out(trained(), input_mean=0.2, input_std=1.4), 2.0, 1.0, 0.5, 0.4).reader) == []


@pytest.mark.parametrize("accuracy", [0.0, 0.3])
def test_labels_with_another_meaning(accuracy: float) -> None:
    run = losses(trained(), 2.5, 3.0, 4.0, 6.0, accuracy=accuracy)
    run.objective(300, value=falling(), majority_share=0.1, target_entropy=2.3, classes=10, classes_seen=10,
                  objective_accuracy=0.97)  # fmt: skip
    assert ("holdout_differs" in run.kinds) == (accuracy == 0.0)


def drifting(drift: Over, scale: Over = 0.0, rows: int = 50) -> MadeTraining:
    run = trained(rows=rows)
    for step in range(10, 301, 10):
        columns = [Column("norm_drift", [at(drift, step)]), Column("norm_scale_drift", [at(scale, step)])]
        run.write("Inputs_2", step, [Table("layer", ["second"], columns)])
    return run


def test_running_statistics_that_do_not_fit() -> None:
    [finding] = losses(drifting(3.0), 2.0, 2.2, 2.6, 3.0).alarms
    assert (finding.kind, finding.cause, finding.scopes, finding.since) == ("stale_batch_norm", True, ["second"], 10)
    assert "up to 3 standard deviations" in finding.detail
    assert "worsening" in [inside.kind for inside in finding.taken_in]


def test_running_statistics_without_harm_are_information() -> None:
    assert [f.severity for f in find(losses(drifting(3.0), 2.0, 1.0, 0.4, 0.25).reader)] == ["info"]
    assert find(losses(drifting(0.1), 2.0, 1.0, 0.4, 0.25).reader) == []


WORSE = 2.0, 2.2, 2.6, 3.0


def test_a_variance_that_does_not_follow_is_dated_where_it_began() -> None:
    [finding] = losses(drifting(0.05, lambda step: 2.0 if step > 100 else 0.1), *WORSE).alarms
    assert (finding.kind, finding.since) == ("stale_batch_norm", 110)
    assert "a factor of up to 7.39" in finding.detail


def test_statistics_that_settle_or_differ_by_chance_are_not_stale() -> None:
    settling = drifting(lambda step: 2.0 * 0.99**step, lambda step: 2.0 * 0.99**step)  # a momentum of 0.01
    assert "stale_batch_norm" not in losses(settling, *WORSE).kinds
    assert "stale_batch_norm" not in losses(drifting(0.5, 0.7, rows=8), *WORSE).kinds  # of batches of eight
    assert "stale_batch_norm" in losses(drifting(0.5, 0.7, rows=200), *WORSE).kinds


def test_drawing_with_replacement_does_no_harm_by_itself() -> None:
    run = losses(trained(duplicate_share=0.6, rows=32), 2.0, 0.6, 0.4, 0.35)  # 1.75 times the training loss
    assert [f.severity for f in find(run.reader) if f.kind == "duplicated_data"] == ["info"]


def test_few_different_examples() -> None:
    run = losses(trained(duplicate_share=0.6, rows=32), 2.0, 1.0, 1.2, 1.4)
    [finding] = run.alarms
    assert (finding.kind, finding.cause) == ("duplicated_data", True)
    assert [f.severity for f in find(trained(duplicate_share=0.6, rows=32).reader)] == ["info"]
    assert find(trained(duplicate_share=0.08, rows=32).reader) == []


def test_a_holdout_that_was_easier_makes_overfitting_no_cause() -> None:
    """Training labels that are wrong in part are learned by heart, after what carries over has been learned."""

    def judged(best: float) -> Finding:
        run = MadeTraining().train(falling(start=0.7, end=0.05, noise=0.01))
        for place, times in enumerate((1.3, 1.1, 1.0, 1.3, 1.6, 1.9, 2.2, 2.5), 1):
            run.holdout(37 * place, None, mean=best * times)
        [finding] = [one for one in run.alarms if one.kind == "overfitting"]
        return finding

    assert judged(0.25).cause
    easier = judged(0.1)
    assert not easier.cause
    assert "Wrong labels" in easier.alternatives[0]
