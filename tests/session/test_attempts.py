"""Attempts at steps that are not finite: what is recorded of them, and what is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import learnscope as ls
from learnscope.reading.lost import Lost, lost_steps


class Training:
    """Two layers; batches whose numbers are given break."""

    def __init__(self, *bad: int, fused: bool = False) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2, fused=fused)
        self.bad, self.number = bad, 0

    def loss(self) -> Tensor:
        """0 · √|0| is added to it in some batches: it is as it was, and its gradient is NaN."""
        self.number += 1
        x = torch.randn(8, 4)
        loss = self.model(x).square().mean()
        return loss + (loss * 0).abs().sqrt() if self.number in self.bad else loss

    def ids(self) -> Tensor:
        return torch.arange(8) + 100 * self.number

    def clip(self) -> Tensor:
        return nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)


def watched(training: Training, loop: Callable[[Training, ls.Watch], object], **options: object) -> ls.Run:
    with ls.watch(training.model, training.optimizer, strict=True, **options) as w:  # type: ignore[arg-type]
        loop(training, w)
    return w.run


def skipping(training: Training, w: ls.Watch) -> None:
    """Logs after it has decided."""
    for _ in range(30):
        loss = training.loss()
        loss.backward()
        w.batch({"x": 0, "ids": training.ids()})
        if torch.isfinite(training.clip()):
            training.optimizer.step()
        w.log(loss=loss)
        training.optimizer.zero_grad()


def ending(run: ls.Run) -> float:
    return float(run.frame("LostSteps", "lost_steps").value.iloc[-1])


def test_a_loop_that_skips_and_logs_afterwards() -> None:
    run = watched(Training(3, 4, 20), skipping)
    lost = lost_steps(run)
    assert [(each.step, each.attempt, each.skipped, each.cause) for each in lost] == [
        (3, 1, True, "clip"), (3, 2, True, "clip"), (18, 1, True, "clip"),
    ]  # fmt: skip
    assert [each.rows[0] for each in lost] == [300, 400, 2000]
    assert all(each.tensor == "2.bias" for each in lost)
    assert all(each.loss is not None and each.loss > 0 for each in lost)
    assert len({each.loss for each in lost}) == 3
    assert ending(run) == 3
    assert run.frame("Loss", "loss").step.tolist() == list(range(1, 28))
    assert run.frame("Loss", "loss_std").empty
    assert run.frame("LoopCalls", "backwards_without_step").value.sum() == 3


def test_many_in_a_row_are_counted_and_not_all_recorded() -> None:
    def loop(training: Training, w: ls.Watch) -> None:
        skipping(training, w)
        skipping(training, w)

    run = watched(Training(*range(5, 61)), loop)
    lost = lost_steps(run)
    assert [(each.step, each.attempt) for each in lost] == [(5, number) for number in range(1, 21)]
    assert ending(run) == 56


def test_a_step_that_is_taken_all_the_same() -> None:
    def loop(training: Training, w: ls.Watch) -> None:
        for _ in range(12):
            training.optimizer.zero_grad()
            loss = training.loss()
            loss.backward()
            training.clip()
            training.optimizer.step()
            w.log(loss=loss)

    run = watched(Training(5), loop)
    lost = lost_steps(run)
    assert [(each.step, each.attempt, each.skipped) for each in lost][:2] == [(5, 1, False), (6, 2, False)]
    assert lost[0].tensor == "2.bias"
    assert ending(run) == 0


@pytest.mark.parametrize("ahead", [False, True])
def test_a_loss_that_is_not_finite_without_a_clip(ahead: bool) -> None:
    """The loop looks at the loss, and clears gradients that nobody else has looked at."""

    def loop(training: Training, w: ls.Watch) -> None:
        for _ in range(12):
            loss = training.loss()
            loss = loss * torch.inf if training.number == 6 else loss
            if ahead:
                w.examples(training.ids(), torch.zeros(8, 2), torch.zeros(8).long())
                w.log(loss=loss)
            loss.backward()
            if not ahead:
                w.examples(training.ids(), torch.zeros(8, 2), torch.zeros(8).long())
                w.log(loss=loss)
            if torch.isfinite(loss):
                training.optimizer.step()
            training.optimizer.zero_grad()

    run = watched(Training(), loop)
    (lost,) = lost_steps(run)
    assert (lost.step, lost.cause, lost.skipped, lost.tensor) == (6, "loss", True, "2.bias")
    assert (lost.loss, lost.loss_status) == (None, "inf")
    assert lost.rows == list(range(600, 608)) == run.rows_of_step(6)
    assert run.frame("Loss", "loss").step.tolist() == list(range(1, 12))
    assert run.frame("Loss", "loss").value.notna().all()


def test_a_loss_that_is_logged_after_its_step_is_not_of_the_next() -> None:
    def loop(training: Training, w: ls.Watch) -> None:
        for _ in range(12):
            loss = training.loss()
            loss.backward()
            training.optimizer.step()
            training.optimizer.zero_grad()
            w.log(loss=torch.inf if training.number == 6 else loss)

    run = watched(Training(), loop)
    assert lost_steps(run) == []
    assert run.frame("Loss", "loss").set_index("step").status[6] == "inf"


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("clips", [False, True])
def test_a_scaler_that_leaves_steps_out(fused: bool, clips: bool) -> None:
    def loop(training: Training, w: ls.Watch) -> None:
        scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
        for _ in range(12):
            training.optimizer.zero_grad()
            loss = training.loss()
            scaler.scale(loss).backward()
            if clips:
                scaler.unscale_(training.optimizer)
                training.clip()
            scaler.step(training.optimizer)
            scaler.update()
            w.log(loss=loss)

    training = Training(4, 9, fused=fused)
    run = watched(training, loop)
    lost = lost_steps(run)
    assert [(each.step, each.skipped, each.tensor) for each in lost] == [(4, True, "2.bias"), (8, True, "2.bias")]
    assert {each.cause for each in lost} == {"scaler"}
    assert all(each.loss is not None for each in lost)
    assert run.frame("Loss", "loss").step.tolist() == list(range(1, 11))
    assert run.frame("Loss", "loss_std").empty
    assert run.frame("LoopCalls", "backwards_without_step").value.sum() == 2


def healthy(training: Training, w: ls.Watch) -> None:
    for number in range(30):
        (training.loss() / 2).backward()
        if number % 2:
            training.clip()
            training.optimizer.step()
            training.optimizer.zero_grad()
        if number % 7 == 3:  # for the inputs alone
            training.loss().backward()
            training.optimizer.zero_grad()
        w.log(loss=1.0)


def test_a_healthy_loop_loses_nothing() -> None:
    run = watched(Training(), healthy)
    assert lost_steps(run) == []
    assert ending(run) == 0


def test_only_a_session_with_the_probe_follows_attempts() -> None:
    assert not list(watched(Training(3), skipping, probes=[ls.GradientFlow(), ls.LoopCalls()]).records("LostSteps"))
    lost: list[Lost] = lost_steps(watched(Training(3), skipping, probes=[ls.LostSteps()]))
    assert [each.step for each in lost] == [3]


def test_torch_has_its_own_methods_back() -> None:
    before = torch.amp.GradScaler._maybe_opt_step
    watched(Training(), healthy)
    assert torch.amp.GradScaler._maybe_opt_step is before
