"""What is counted of a loop's calls: each fault is seen, and no healthy shape of a loop is taken for one."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import lr_scheduler

import learnscope as ls
from learnscope.model.guard import guard

STEPS = 25
FAULTS = (
    "uncleared_steps", "cleared_steps", "steps_without_backward", "backwards_without_step", "eval_mode_steps",
    "train_mode_evaluations", "state_resets",
)  # fmt: skip


class Loop:
    """A model that has all that a mode changes, and what a loop does with it."""

    def __init__(self, optimizer: Callable[[Any], torch.optim.Optimizer] = torch.optim.Adam) -> None:
        torch.manual_seed(0)
        self.model: nn.Module = nn.Sequential(
            nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 3)
        )
        self.optimizer = optimizer(self.model.parameters())
        self.x, self.y = torch.randn(8, 4), torch.arange(8) % 3

    def loss(self) -> Tensor:
        return F.cross_entropy(self.model(self.x), self.y)

    def backward(self) -> None:
        self.loss().backward()


def counted(run: ls.Run) -> dict[str, float]:
    """The sums over all records; those that are 0 are left out."""
    frame = run.frame()
    frame = frame[(frame["probe"] == "LoopCalls") & (frame["name"] != "rate_changes")]
    return {str(name): float(value) for name, value in frame.groupby("name")["value"].sum().items() if value}


def watched(shape: Callable[[Loop], object], loop: Loop | None = None) -> dict[str, float]:
    loop = loop or Loop()
    with ls.watch(loop.model, loop.optimizer, probes=[ls.LoopCalls()], strict=True) as w:
        shape(loop)
    return counted(w.run)


# healthy shapes of a loop


def usual(loop: Loop) -> None:
    for _ in range(STEPS):
        loop.optimizer.zero_grad()
        loop.backward()
        loop.optimizer.step()


def zeroed_in_place(loop: Loop) -> None:
    for _ in range(STEPS):
        loop.optimizer.zero_grad(set_to_none=False)
        loop.backward()
        loop.optimizer.step()


def by_the_model(loop: Loop) -> None:
    for _ in range(STEPS):
        loop.backward()
        loop.optimizer.step()
        loop.model.zero_grad()


def by_hand(loop: Loop) -> None:
    for number in range(STEPS):
        for p in loop.model.parameters():
            if p.grad is not None:
                if number % 3 == 0:
                    p.grad.data.zero_()
                elif number % 3 == 1:
                    p.grad.zero_()
                else:
                    p.grad = torch.zeros_like(p)
        loop.backward()
        loop.optimizer.step()


def data_by_hand(loop: Loop) -> None:
    for _ in range(STEPS):
        for p in loop.model.parameters():
            if p.grad is not None:
                p.grad.data.fill_(0)
        loop.backward()
        loop.optimizer.step()


def accumulated(loop: Loop) -> None:
    for number in range(3 * STEPS):
        (loop.loss() / 3).backward()
        if number % 3 == 2:
            torch.nn.utils.clip_grad_norm_(loop.model.parameters(), 0.1)
            loop.optimizer.step()
            loop.optimizer.zero_grad(set_to_none=number % 2 == 0)


def with_closure(loop: Loop) -> None:
    """As Lightning does."""

    def closure() -> Tensor:
        loss = loop.loss()
        loop.optimizer.zero_grad()
        loss.backward()
        return loss

    for _ in range(STEPS):
        loop.optimizer.step(closure)


def scaled(loop: Loop) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    for _ in range(STEPS):
        loop.optimizer.zero_grad()
        scaler.scale(loop.loss()).backward()
        scaler.unscale_(loop.optimizer)
        torch.nn.utils.clip_grad_norm_(loop.model.parameters(), 1.0)
        scaler.step(loop.optimizer)
        scaler.update()


def evaluating(loop: Loop) -> None:
    for _ in range(STEPS):
        usual_step(loop)
        loop.model.eval()
        with torch.no_grad():
            loop.loss()
        with torch.inference_mode():
            loop.loss()
        loop.model.train()


def usual_step(loop: Loop) -> None:
    loop.optimizer.zero_grad()
    loop.backward()
    loop.optimizer.step()


def batch_norm_frozen_by_itself(loop: Loop) -> None:
    for _ in range(STEPS):
        loop.model[1].eval()  # type: ignore[index]
        usual_step(loop)


def ours(loop: Loop) -> None:
    """A measurement's own passes."""
    for _ in range(STEPS):
        usual_step(loop)
        with torch.no_grad(), guard(loop.model, training=True):
            loop.loss()


def dead(loop: Loop) -> None:
    """Gradients that are exactly 0."""
    for _ in range(STEPS):
        loop.optimizer.zero_grad()
        (loop.loss() * 0).backward()
        loop.optimizer.step()


def gradients_asked_for(loop: Loop) -> None:
    """Of each of two losses by itself, as methods do that keep tasks from working against each other."""
    parameters = [p for p in loop.model.parameters() if p.requires_grad]
    for _ in range(STEPS):
        loss = loop.loss()
        loop.optimizer.zero_grad()
        for part in (loss, 2 * loss):
            torch.autograd.grad(part, parameters, retain_graph=True)
        loss.backward()
        loop.optimizer.step()


HEALTHY = [
    usual, zeroed_in_place, by_the_model, by_hand, data_by_hand, accumulated, with_closure, scaled, evaluating,
    batch_norm_frozen_by_itself, ours, dead, gradients_asked_for,
]  # fmt: skip


@pytest.mark.parametrize("shape", HEALTHY, ids=lambda shape: shape.__name__)
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "fused"])
def test_a_healthy_loop_has_steps_and_backwards_only(shape: Callable[[Loop], object], optimizer: str) -> None:
    makers: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
        "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        "adam": torch.optim.Adam,
        "fused": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    }
    counts = watched(shape, Loop(makers[optimizer]))
    assert counts == {"steps": STEPS, "backwards": STEPS * (3 if shape in (accumulated, gradients_asked_for) else 1)}


def test_a_frozen_backbone_in_eval_mode_is_healthy() -> None:
    loop = Loop()
    backbone = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)).requires_grad_(False)
    loop.model = nn.Sequential(backbone, nn.Linear(4, 3))
    loop.optimizer = torch.optim.Adam(loop.model[1].parameters())
    loop.model.train()
    backbone.eval()
    assert watched(usual, loop) == {"steps": STEPS, "backwards": STEPS}
    loop.model.eval()  # a linear probe: nothing of what trains has a mode
    assert watched(usual, loop) == {"steps": STEPS, "backwards": STEPS}


def test_parameters_that_get_no_gradient_are_not_uncleared() -> None:
    """Experts that are reached now and then, and parameters that no optimizer holds and nobody clears."""
    torch.manual_seed(0)
    model = nn.ModuleList([nn.Linear(4, 3) for _ in range(6)])
    optimizer = torch.optim.Adam([p for expert in list(model)[:5] for p in expert.parameters()])
    x = torch.randn(8, 4)
    with ls.watch(model, optimizer, probes=[ls.LoopCalls()], strict=True) as w:
        for number in range(STEPS):
            optimizer.zero_grad(set_to_none=number % 2 == 0)
            (model[number % 5](x) + model[5](x)).square().mean().backward()
            optimizer.step()
    counts = counted(w.run)  # backward passes that reach no watched parameter are not counted
    assert counts.pop("backwards") >= STEPS // 2
    assert counts == {"steps": STEPS}


@pytest.mark.parametrize("apart", [False, True])
def test_two_optimizers_whose_losses_reach_each_other(apart: bool) -> None:
    """A GAN: the generator's backward adds to the discriminator's gradients, which are cleared before it steps."""
    torch.manual_seed(0)
    generator, discriminator = nn.Linear(2, 4), nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    of_g, of_d = torch.optim.Adam(generator.parameters()), torch.optim.Adam(discriminator.parameters())
    options: dict[str, Any] = {"probes": [ls.LoopCalls()], "strict": True}
    if apart:
        sessions = [ls.watch(generator, of_g, **options), ls.watch(discriminator, of_d, **options)]
    else:
        both = nn.ModuleDict({"d": discriminator, "g": generator})
        sessions = [ls.watch(both, [of_d, of_g], **options)]
    for _ in range(STEPS):
        fake = generator(torch.randn(8, 2))
        of_d.zero_grad()
        (discriminator(torch.randn(8, 4)).mean() - discriminator(fake.detach()).mean()).backward()
        of_d.step()
        of_g.zero_grad()
        discriminator(fake).mean().backward()
        of_g.step()
    for w in sessions:
        w.close()
        counts = counted(w.run)
        assert counts["steps"] == STEPS
        assert not set(FAULTS) & set(counts), counts


# faults


def never_cleared(loop: Loop) -> None:
    for _ in range(STEPS):
        loop.backward()
        loop.optimizer.step()


def cleared_early(loop: Loop) -> None:
    for _ in range(STEPS):
        loop.backward()
        loop.optimizer.zero_grad()
        loop.optimizer.step()


def zeroed_early(loop: Loop) -> None:
    for _ in range(STEPS):
        loop.backward()
        loop.optimizer.zero_grad(set_to_none=False)
        loop.optimizer.step()


def stepped_twice(loop: Loop) -> None:
    for _ in range(STEPS):
        loop.optimizer.zero_grad()
        loop.backward()
        loop.optimizer.step()
        loop.optimizer.step()


def never_stepped(loop: Loop) -> None:
    for _ in range(STEPS):
        loop.optimizer.zero_grad()
        loop.backward()


def every_other_step_skipped(loop: Loop) -> None:
    for number in range(2 * STEPS):
        loop.optimizer.zero_grad(set_to_none=number % 4 < 2)
        loop.backward()
        if number % 2:
            loop.optimizer.step()


def left_in_eval_mode(loop: Loop) -> None:
    loop.model.eval()
    usual(loop)


def evaluated_in_train_mode(loop: Loop) -> None:
    for _ in range(STEPS):
        usual_step(loop)
        with torch.no_grad():
            loop.loss()


def state_lost(loop: Loop) -> None:
    for number in range(STEPS):
        usual_step(loop)
        if number in (9, 20):  # right after a record, and between two
            loop.optimizer.state.clear()


BOTH = {"steps": STEPS, "backwards": STEPS}


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        (never_cleared, {**BOTH, "uncleared_steps": STEPS - 1}),
        (cleared_early, {**BOTH, "cleared_steps": STEPS}),
        (zeroed_early, {**BOTH, "cleared_steps": STEPS}),
        # the first cannot be told from a backward that reached other parameters
        (stepped_twice, {"steps": 2 * STEPS, "backwards": STEPS, "steps_without_backward": STEPS - 1}),
        (never_stepped, {"backwards": STEPS, "backwards_without_step": STEPS}),
        (left_in_eval_mode, {**BOTH, "eval_mode_steps": STEPS}),
        (evaluated_in_train_mode, {**BOTH, "train_mode_evaluations": STEPS}),
        (state_lost, {**BOTH, "state_resets": 2}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_fault_is_counted(shape: Callable[[Loop], object], expected: dict[str, int]) -> None:
    assert watched(shape) == expected


def test_steps_that_the_loop_skips_are_counted() -> None:
    assert watched(every_other_step_skipped) == {
        "steps": STEPS, "backwards": 2 * STEPS, "backwards_without_step": STEPS
    }  # fmt: skip


@pytest.mark.parametrize("fused", [False, True])
def test_steps_that_a_scaler_skips_are_counted(fused: bool) -> None:
    loop = Loop(lambda p: torch.optim.AdamW(p, lr=1e-2, fused=fused))

    def shape(loop: Loop) -> None:
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
        for number in range(STEPS):
            loop.optimizer.zero_grad()
            scaler.scale(loop.loss() * (torch.inf if number % 5 == 2 else 1)).backward()
            scaler.step(loop.optimizer)
            scaler.update()

    assert watched(shape, loop) == {"steps": STEPS - 5, "backwards": STEPS, "backwards_without_step": 5}


@pytest.mark.parametrize("every", [1, 2, 7])
def test_a_state_that_goes_on_is_no_reset_and_one_that_is_lost_is(every: int) -> None:
    makers: list[Callable[[Any], torch.optim.Optimizer]] = [
        torch.optim.Adam,
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        torch.optim.RMSprop,
    ]
    for maker in makers:
        for lost in (False, True):
            loop = Loop(maker)
            with ls.watch(loop.model, loop.optimizer, probes=[ls.LoopCalls(every=every)], strict=True) as w:
                for number in range(STEPS):
                    if lost and number == 14:
                        loop.optimizer.state.clear()
                    usual_step(loop)
            ageless = isinstance(loop.optimizer, torch.optim.SGD)  # its momentum is there again at the next record
            assert counted(w.run).get("state_resets", 0) == (lost and not ageless)


def test_a_momentum_that_is_gone_is_a_reset() -> None:
    """An optimizer that goes on without momentum."""
    loop = Loop(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9))
    with ls.watch(loop.model, loop.optimizer, probes=[ls.LoopCalls(every=5)], strict=True) as w:
        for number in range(20):
            usual_step(loop)
            if number == 12:
                loop.optimizer.state.clear()
                loop.optimizer.param_groups[0]["momentum"] = 0.0
    assert counted(w.run)["state_resets"] == 1


def test_modules_in_eval_mode_are_named() -> None:
    loop = Loop()
    with ls.watch(loop.model, loop.optimizer, probes=[ls.LoopCalls()]) as w:
        left_in_eval_mode(loop)
    assert next(iter(w.run.records("LoopCalls"))).notes == {"eval_modules": ["1", "3"]}


@pytest.mark.parametrize(("calls", "times"), [(0, None), (1, 1), (2, 2)])
def test_calls_of_a_schedule(calls: int, times: int | None) -> None:
    loop = Loop()
    schedule = lr_scheduler.SequentialLR(
        loop.optimizer,
        [lr_scheduler.LinearLR(loop.optimizer, total_iters=5), lr_scheduler.CosineAnnealingLR(loop.optimizer, 60)],
        milestones=[5],
    )
    with ls.watch(loop.model, loop.optimizer, probes=[ls.LoopCalls()]) as w:
        for _ in range(STEPS):
            usual_step(loop)
            for _ in range(calls):
                schedule.step()
    rows = w.run.frame().set_index("name")
    last = rows.loc["rate_changes"].iloc[1]
    assert (None if times is None else last["value"]) == times
    assert rows.loc["scheduler_steps"].iloc[1]["value"] == 10 * calls or times is None
    assert (last["status"] == "no torch schedule was stepped") == (times is None)
    assert lr_scheduler.LRScheduler._update_lr.__qualname__ == "LRScheduler._update_lr"
    assert not hasattr(lr_scheduler.LRScheduler._update_lr, "__wrapped__"), "torch's own method is back"


def test_a_loop_that_steps_by_itself() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)

    def run(clears: bool) -> dict[str, float]:
        with ls.watch(model, probes=[ls.LoopCalls()], strict=True) as w:
            for _ in range(STEPS):
                model(torch.randn(8, 4)).square().mean().backward()
                with torch.no_grad():
                    for p in model.parameters():
                        p -= 0.01 * p.grad
                w.step()
                if clears:
                    model.zero_grad()
        return counted(w.run)

    assert run(True) == BOTH
    model.zero_grad()
    assert run(False) == {**BOTH, "uncleared_steps": STEPS - 1}


def test_a_copied_or_saved_model_has_no_hook_of_ours() -> None:
    loop = Loop()
    with ls.watch(loop.model, loop.optimizer, probes=[ls.LoopCalls()], strict=True) as w:
        usual(loop)
        average = copy.deepcopy(loop.model)
        file = io.BytesIO()
        torch.save(loop.model, file)
        assert b"learnscope" not in file.getvalue()
        file.seek(0)
        for other in (average, torch.load(file, weights_only=False)):
            with torch.no_grad():
                other(loop.x)
    assert counted(w.run) == BOTH
    assert not loop.model._forward_pre_hooks


def test_counts_go_on_in_a_resumed_session(tmp_path: Path) -> None:
    def run(folder: Path, cut: int | None) -> list[tuple[int, str, float]]:
        loop, done = Loop(), 0
        for end in [STEPS] if cut is None else [cut, STEPS]:
            with ls.watch(
                loop.model, loop.optimizer, run=folder, probes=[ls.LoopCalls()], resume=done > 0, step=done or None
            ) as w:
                for _ in range(end - done):
                    usual_step(loop)
                done = end
                if end != STEPS:
                    w.save_state()
                    w.close("interrupted")
        frame = ls.open_run(folder).frame()
        return [(int(s), str(n), float(v)) for s, n, v in zip(frame["step"], frame["name"], frame["value"], strict=True)
                if n in ("steps", "backwards")]  # fmt: skip

    assert run(tmp_path / "whole", None) == run(tmp_path / "cut", 14)
