"""Trainings under watch, compared."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import learnscope as ls
from comparison.made import made, opened, train


def test_the_same_training_twice_never_parts(tmp_path: Path) -> None:
    train(tmp_path / "a")
    train(tmp_path / "b")
    comparison = ls.compare([tmp_path / "a", tmp_path / "b"])
    [found] = comparison.partings
    assert (found.state, found.common_steps) == ("never", 12)
    assert len(found.series) > 100
    assert comparison.differences == []
    assert not comparison.notes


def test_other_batches_from_step_7_on_part_at_step_7(tmp_path: Path) -> None:
    train(tmp_path / "a")
    train(tmp_path / "b", shuffled_from=7)
    comparison = ls.compare([tmp_path / "a", tmp_path / "b"])
    [found] = comparison.partings
    assert (found.step, found.steps_before) == (7, 6)
    assert found.parted[0].name == "loss"
    by_name = {key.name: one for key, one in found.series.items() if key.kind == "model"}
    assert by_name["norm"].step == 7
    assert by_name["l2"].step == 8  # measured every second step
    curve = comparison.curve("loss")
    same = curve["a"].to_numpy() == curve["b"].to_numpy()
    assert int(curve.index[np.flatnonzero(~same)[0]]) == 7
    assert by_name["loss"].values == tuple(curve.loc[7])
    # nothing differs by more than it is large
    assert ls.compare([tmp_path / "a", tmp_path / "b"], tolerance=2.0).partings[0].state == "never"


def test_another_learning_rate_is_a_difference_of_settings(tmp_path: Path) -> None:
    train(tmp_path / "a")
    train(tmp_path / "b", lr=0.3)
    comparison = ls.compare([tmp_path / "a", tmp_path / "b"])
    assert {one.key: dict(one.values) for one in comparison.differences} == {
        "optimizers.0.groups.0.lr": {"a": 0.1, "b": 0.3}
    }
    assert comparison.partings[0].step == 2  # the loss of step 1 is that of the same weights


def test_other_schedules_are_aligned_by_step(tmp_path: Path) -> None:
    train(tmp_path / "a", probes=[ls.Loss(every=2)])
    train(tmp_path / "b", probes=[ls.Loss(every=3)])
    train(tmp_path / "c", probes=[ls.Loss(every=5)], steps=5)
    comparison = ls.compare([tmp_path / name for name in "abc"])
    assert comparison.partings[0].state == "never"
    assert comparison.partings[0].common_steps == 2  # 6 and 12
    assert comparison.partings[1].state == "no common step"
    assert comparison.curve("loss").index.tolist() == [2, 3, 4, 5, 6, 8, 9, 10, 12]
    assert [one.key for one in comparison.differences] == ["probes.Loss.every"]


def test_a_resumed_run_and_one_in_memory(tmp_path: Path) -> None:
    train(tmp_path / "a")
    memory = made({1: 1.0})
    comparison = ls.compare([tmp_path / "a", opened(memory)])
    assert comparison.labels == ["a", "in memory 2"]
    assert "in memory" in comparison.weights.missing["in memory 2"]


def test_labels_are_as_long_as_they_must_be(tmp_path: Path) -> None:
    folders = [tmp_path / "x" / "run", tmp_path / "y" / "run", tmp_path / "z" / "own"]
    for folder in folders:
        made({1: 1.0}, folder).backend.close()
    assert ls.compare(folders).labels == ["x/run", "y/run", "own"]
    assert ls.compare([str(folder) for folder in folders], names=["é", "b|c", "[d]"]).labels == ["é", "b|c", "[d]"]


def test_what_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    made({1: 1.0}, folder).backend.close()
    made({1: 1.0}, tmp_path / "b").backend.close()
    both = [folder, tmp_path / "b"]
    (tmp_path / "link").symlink_to(folder)
    for given, message in (
        ([folder], "two runs or more"),
        (str(folder), "two runs or more"),
        ([folder, tmp_path / "link"], "is given twice"),
        ([folder, tmp_path], "is not a run folder"),
    ):
        with pytest.raises(ls.RunError, match=message):
            ls.compare(given)
    run = opened(made({1: 1.0}))
    with pytest.raises(ls.RunError, match="in memory is given twice"):
        ls.compare([run, run])
    for names in (["x"], ["x", "x"], ["x", " "]):
        with pytest.raises(ls.RunError, match="name"):
            ls.compare(both, names=names)
    for tolerance in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ls.RunError, match="tolerance"):
            ls.compare(both, tolerance=tolerance)
    with pytest.raises(ls.RunError, match="did you mean 'loss'"):
        ls.compare(both, metrics=["lss"])
    with pytest.raises(ls.RunError, match=r"metrics=\['loss'\]"):
        ls.compare(both, metrics="loss")
    with pytest.raises(ls.RunError, match="no run has a series 'lr'"):
        ls.compare(both).curve("lr")
    with pytest.raises(ls.RunError, match="no run 'z'"):
        ls.compare(both).parting("a", "z")


def test_an_ambiguous_curve_is_refused_with_what_tells_them_apart() -> None:
    runs = [made(), made()]
    for run in runs:
        run.gradients(1, {"h.0": 1.0}, clip=0.5)
    comparison = ls.compare([opened(run) for run in runs])
    with pytest.raises(ls.RunError, match=r"2 series are called 'norm': .*stage=stepped.*Say probe="):
        comparison.curve("norm")
    assert len(comparison.curve("norm", kind="layer", scope="h.0", stage="stepped")) == 1
