"""One loss that drowns another."""

from __future__ import annotations

from findings.made_training import MadeTraining, falling, flat
from learnscope.record import Column, Table


def run(small: list[float], scale: float, *, added: bool = True) -> MadeTraining:
    large = [scale * value for value in falling()]
    made = MadeTraining().train([a + b for a, b in zip(large, small, strict=True)] if added else small)
    for step in range(10, 301, 10):
        columns = [
            Column("objective_mean", [large[step - 1]], {"function": "mse_loss"}),
            Column("objective_mean", [small[step - 1]], {"function": "cross_entropy"}),
        ]
        made.write("Objective", step, [Table("model", ["model"], columns)])
    return made


def test_squares_of_euros_beside_a_class() -> None:
    [finding] = run(flat(level=1.4), 1e6).alarms
    assert (finding.kind, finding.cause) == ("targets_out_of_range", True)
    assert finding.title.startswith("One loss drowns another: mse_loss is ")


def test_a_small_one_that_is_learned_all_the_same() -> None:
    assert run(falling(), 1e6).alarms == []


def test_losses_of_one_size() -> None:
    assert "targets_out_of_range" not in run(flat(level=1.4), 10.0).kinds


def test_losses_that_are_not_added() -> None:
    assert "targets_out_of_range" not in run(flat(level=1.4), 1e6, added=False).kinds
