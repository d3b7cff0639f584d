"""Two players of whom none works against the other."""

from __future__ import annotations

from findings.made_training import MadeTraining, falling, flat
from learnscope.record import Column, Table

FUNCTION = "binary_cross_entropy_with_logits"


def run(losses: list[float], yes: float) -> MadeTraining:
    made = MadeTraining().train(losses)
    made.manifest["optimizers"] = made.manifest["optimizers"] * 2
    for step in range(10, 301, 10):
        columns = [
            Column("objective_mean", [losses[step - 1]], {"function": FUNCTION}),
            Column("objective_calls", [3], {"function": FUNCTION}),
            Column("majority_share", [max(yes, 1 - yes)]),
        ]
        shares = Table("class", ["0", "1"], [Column("target_share", [1 - yes, yes])])
        made.write("Objective", step, [Table("model", ["model"], columns), shares], notes={"of": f"{FUNCTION} of 1"})
    return made


def test_a_maker_that_is_told_to_be_found_out() -> None:
    [finding] = run(falling(start=0.7, end=0.005, noise=0.001), 1 / 3).alarms
    assert (finding.kind, finding.cause) == ("loss_maximised", True)


def test_players_against_each_other() -> None:
    assert run(flat(level=0.6), 2 / 3).alarms == []
    assert run(falling(start=0.7, end=0.005, noise=0.001), 2 / 3).alarms == []
