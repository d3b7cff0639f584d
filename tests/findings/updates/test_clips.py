"""Clips by value, and of nothing."""

from __future__ import annotations

from findings.made_training import MadeTraining, falling, flat


def limited(run: MadeTraining, share: float) -> MadeTraining:
    for step in range(10, 301, 10):
        run.model("GradientFlow", step, limit_share=share)
    return run


def test_gradients_cut_to_one_size() -> None:
    [finding] = limited(MadeTraining("SGD").train(flat(), update=1e-5), 0.99).alarms
    assert (finding.kind, finding.cause) == ("clipped_hard", True)
    assert "99 % of the entries" in finding.title


def test_it_does_no_harm_with_adam_or_where_the_loss_falls() -> None:
    assert limited(MadeTraining("Adam").train(falling()), 0.99).alarms == []
    assert limited(MadeTraining("SGD").train(falling()), 0.99).alarms == []


def test_entries_of_all_sizes() -> None:
    kinds = limited(MadeTraining("SGD").train(flat(), update=1e-5), 0.001).kinds
    assert "clipped_hard" not in kinds


def test_a_clip_of_nothing() -> None:
    [finding] = MadeTraining().train(falling()).calls(300, empty_clips=10).alarms
    assert (finding.kind, finding.cause, finding.evidence.value) == ("exploding", True, 300.0)
    assert "no tensor" in finding.title


def test_one_such_clip_is_left_in_peace() -> None:
    assert MadeTraining().train(falling()).calls(300, empty_clips=lambda step: step == 50).alarms == []
