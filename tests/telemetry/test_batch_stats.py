"""What a batch is made of, counted by hand."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from learnscope.core.probe import ProbeWarning
from learnscope.task import DictTask
from seeds.tiny import token_batches
from telemetry.loops import Net, batches, lines, pair_batches, telemetry_in


def stats(folder: Path, batch: Any, **options: Any) -> dict[str, Any]:
    with telemetry_in(folder, **options) as telemetry:
        telemetry.on_batch_end(Net(), None, 1, 0, "cpu", batch)
    found: dict[str, Any] = lines(telemetry)[0]["batch_stats"]
    return found


def pairs(*winners: float) -> dict[str, torch.Tensor]:
    return {
        "img1": torch.randn(len(winners), 6),
        "img2": torch.randn(len(winners), 6),
        "winner": torch.tensor(winners),
    }


@pytest.mark.parametrize(
    ("winners", "first", "second"),
    [((0, 1, 1, 1), 25.0, 75.0), ((0, 0, 0), 100.0, 0.0), ((1,), 0.0, 100.0), ((0.0, 1.0), 50.0, 50.0)],
)
def test_pairs(tmp_path: Path, winners: tuple[float, ...], first: float, second: float) -> None:
    found = stats(tmp_path / "t", pairs(*winners))
    assert found == {"winner_0_pct": first, "winner_1_pct": second, "batch_size": len(winners)}
    assert list(found) == ["winner_0_pct", "winner_1_pct", "batch_size"]


def test_pairs_without_a_winner(tmp_path: Path) -> None:
    batch = pairs(0, 1)
    del batch["winner"]
    assert stats(tmp_path / "t", batch) == {"batch_size": 2}


def test_classes(tmp_path: Path) -> None:
    found = stats(tmp_path / "t", (torch.randn(8, 6), torch.tensor([3, 3, 3, 0, 0, 7, 7, 3])))
    assert found == {"class_0_pct": 25.0, "class_3_pct": 50.0, "class_7_pct": 25.0, "batch_size": 8}


def test_numbers(tmp_path: Path) -> None:
    found = stats(tmp_path / "t", (torch.randn(3, 6), torch.tensor([1.0, 2.0, 6.0])))
    assert found == {"batch_size": 3, "targets": 3, "target_mean": 3.0, "target_std": pytest.approx(7**0.5)}


def test_one_number_has_no_deviation(tmp_path: Path) -> None:
    with telemetry_in(tmp_path / "t") as telemetry:
        telemetry.on_batch_end(Net(), None, 1, 0, None, (torch.randn(1, 6), torch.tensor([2.5])))
    (line,) = lines(telemetry)
    assert line["batch_stats"]["target_std"] is None
    assert line["status"]["batch_stats.target_std"] == "nan"


def test_language_models_count_positions_that_have_a_target(tmp_path: Path) -> None:
    batch = token_batches(1)[0]
    counted = Counter(int(label) for label in batch["labels"].flatten() if label != -100)
    total = sum(counted.values())
    found = stats(tmp_path / "t", batch)
    expected = {f"class_{label}_pct": 100 * times / total for label, times in counted.items()}
    assert found == pytest.approx(expected | {"batch_size": 2})
    assert total == 2 * 6 - 2


def test_more_classes_than_a_line_is_good_for(tmp_path: Path) -> None:
    assert stats(tmp_path / "t", (torch.randn(300, 6), torch.arange(300))) == {"batch_size": 300, "targets": 300}


def test_no_labels(tmp_path: Path) -> None:
    assert stats(tmp_path / "t", torch.randn(5, 6)) == {"batch_size": 5}


def test_no_batch_no_section(tmp_path: Path) -> None:
    with telemetry_in(tmp_path / "t") as telemetry:
        telemetry.on_batch_end(Net(), None, 1, 0, "cpu")
        telemetry.on_batch_end(Net(), None, 2, 0, "cpu", pairs(0, 1))
    assert ["batch_stats" in line for line in lines(telemetry)] == [False, True]


def test_holdout_and_training_batches_of_different_kinds(tmp_path: Path) -> None:
    """How holdout batches are read says nothing about those of the training."""
    with telemetry_in(tmp_path / "t") as telemetry:
        telemetry.set_holdout_data(batches(2))
        telemetry.on_batch_end(Net(), None, 1, 0, "cpu", pair_batches(1)[0])
    (line,) = lines(telemetry)
    share = 100 * pair_batches(1)[0]["winner"].double().mean().item()
    assert line["batch_stats"] == {"winner_0_pct": 100 - share, "winner_1_pct": share, "batch_size": 8}
    assert len(line["holdout_logits"]["logits"]) == 16


def test_a_batch_that_nothing_recognises_costs_its_section_only(tmp_path: Path) -> None:
    batch = {"picture": torch.randn(4, 6), "answer": torch.tensor([0, 1, 1, 1])}
    with telemetry_in(tmp_path / "t", strict=False) as telemetry:
        with pytest.warns(ProbeWarning, match="no built-in task fits") as caught:
            for number in (1, 2, 3):
                telemetry.on_batch_end(Net(), None, number, 0, "cpu", batch)
    assert len(caught) == 1
    found = lines(telemetry)
    assert [line["batch_stats"] for line in found] == [None] * 3
    assert all("picture" in line["status"]["batch_stats"] for line in found)
    assert found[2]["weight_delta"]["overall"] is not None
    # and the cure that the warning names works
    task = DictTask("picture", "answer")
    assert stats(tmp_path / "u", batch, task=task) == {"class_0_pct": 25.0, "class_1_pct": 75.0, "batch_size": 4}
