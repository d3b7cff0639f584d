"""Learning rates as the optimizer has them: by number, by its own names, and by patterns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from telemetry.loops import Net, batches, lines, telemetry_in, train


def rates(folder: Path, model: nn.Module, optimizer: Any, **options: Any) -> tuple[dict[str, Any], dict[str, str]]:
    with telemetry_in(folder, **options) as telemetry:
        telemetry.on_batch_end(model, optimizer, 1, 0)
    (line,) = lines(telemetry)
    return line["learning_rates"], line["status"]


def test_the_documents_example(tmp_path: Path) -> None:
    model = Net()
    optimizer = torch.optim.AdamW(
        [{"params": model.backbone.parameters(), "lr": 1e-5}, {"params": model.head.parameters(), "lr": 1e-4}]
    )
    found, _ = rates(tmp_path / "t", model, optimizer)
    assert found == {"group_0": 1e-5, "group_1": 1e-4, "backbone": 1e-5, "head": 1e-4}
    assert list(found) == ["group_0", "group_1", "backbone", "head"]


def test_a_scheduler_is_followed(tmp_path: Path) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.8)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
    with telemetry_in(tmp_path / "t") as telemetry:
        train(model, optimizer, batches(5), telemetry, after=lambda _: scheduler.step())
    assert [line["learning_rates"]["group_0"] for line in lines(telemetry)] == [0.8, 0.8, 0.4, 0.4, 0.2]


def test_several_optimizers_number_their_groups_through(tmp_path: Path) -> None:
    model = Net()
    first = torch.optim.SGD([{"params": [p], "lr": 0.1 * n} for n, p in enumerate(model.backbone[0].parameters(), 1)])
    second = torch.optim.Adam(model.head.parameters(), lr=0.7)
    found, status = rates(tmp_path / "t", model, [first, second])
    assert {key: found[key] for key in ("group_0", "group_1", "group_2", "head")} == {
        "group_0": 0.1, "group_1": 0.2, "group_2": 0.7, "head": 0.7
    }  # fmt: skip
    assert found["backbone"] is None
    assert "2 learning rates: 0.1, 0.2" in status["learning_rates.backbone"]


def test_a_rate_that_is_a_tensor(tmp_path: Path) -> None:
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.125), capturable=True)
    found, _ = rates(tmp_path / "t", model, optimizer)
    assert found == {"group_0": 0.125, "backbone": 0.125, "head": 0.125}


def test_a_pattern_that_no_optimizer_holds(tmp_path: Path) -> None:
    model = Net()
    found, status = rates(tmp_path / "t", model, torch.optim.SGD(model.head.parameters(), lr=0.3))
    assert found == {"group_0": 0.3, "backbone": None, "head": 0.3}
    assert "no optimizer holds" in status["learning_rates.backbone"]


def test_a_pattern_of_which_the_optimizer_holds_a_part_has_the_rate_of_that_part(tmp_path: Path) -> None:
    model = Net()
    found, _ = rates(tmp_path / "t", model, torch.optim.SGD([model.head.weight], lr=0.3))
    assert found["head"] == 0.3


def test_no_optimizer_no_rates(tmp_path: Path) -> None:
    model = Net()
    with telemetry_in(tmp_path / "t") as telemetry:
        telemetry.on_batch_end(model, None, 1, 0)
    assert "learning_rates" not in lines(telemetry)[0]


def test_names_of_optimizer_groups_never_hide_telemetrys_own(tmp_path: Path) -> None:
    """A group may be called `overall` or `group_0`: those names keep the meaning that the document gives them."""
    model = nn.ModuleDict({"a": nn.Linear(3, 2), "b": nn.Linear(3, 2)})
    for name, p in model.named_parameters():
        p.grad = torch.full_like(p, 3.0 if name.startswith("b") else 1.0)
    optimizer = torch.optim.SGD(
        [
            {"params": model["a"].parameters(), "name": "overall", "lr": 1.0},
            {"params": model["b"].parameters(), "name": "group_0", "lr": 2.0},
        ]
    )
    with telemetry_in(tmp_path / "t") as telemetry:
        telemetry.on_batch_end(model, optimizer, 1, 0)
    (line,) = lines(telemetry)
    assert line["learning_rates"] == {"group_0": 1.0, "group_1": 2.0}
    norms = {"overall": 80**0.5, "group_0": 8**0.5, "group_1": 72**0.5}
    assert line["gradient_norm"] == pytest.approx(norms, rel=1e-6)


def test_an_optimizer_group_with_the_name_of_a_pattern_but_other_parameters(tmp_path: Path) -> None:
    """The name means the pattern; the optimizer's group is still there by its number."""
    model = Net()
    optimizer = torch.optim.SGD(
        [
            {"params": model.backbone.parameters(), "name": "head", "lr": 0.1},
            {"params": model.head.parameters(), "name": "rest", "lr": 0.9},
        ]
    )
    found, _ = rates(tmp_path / "t", model, optimizer)
    assert found == {"group_0": 0.1, "group_1": 0.9, "rest": 0.9, "backbone": 0.1, "head": 0.9}


def test_a_group_added_while_training(tmp_path: Path) -> None:
    """Gradual unfreezing: the new group appears with its rate."""
    model = Net()
    optimizer = torch.optim.SGD(model.head.parameters(), lr=0.1)
    with telemetry_in(tmp_path / "t") as telemetry:
        telemetry.on_batch_end(model, optimizer, 1, 0)
        optimizer.add_param_group({"params": list(model.backbone.parameters()), "lr": 0.01})
        telemetry.on_batch_end(model, optimizer, 2, 0)
    first, second = (line["learning_rates"] for line in lines(telemetry))
    assert first == {"group_0": 0.1, "backbone": None, "head": 0.1}
    assert second == {"group_0": 0.1, "group_1": 0.01, "backbone": 0.01, "head": 0.1}


def test_what_is_no_optimizer_is_refused_with_its_type(tmp_path: Path) -> None:
    model = Net()
    with telemetry_in(tmp_path / "t") as telemetry, pytest.raises(TypeError, match="str is not a torch optimizer"):
        telemetry.on_batch_end(model, "sgd", 1, 0)
