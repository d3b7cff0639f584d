"""`ls.watch(model)` without an optimizer, as refusals advise: the default probes fit, `w.step()` counts the steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import learnscope as ls

STEPS = 20
Loop = Callable[[nn.Module, ls.Watch | None], list[float]]


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def loss_of(model: nn.Module) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(24, 6, generator=generator), torch.randint(3, (24,), generator=generator)
    return nn.functional.cross_entropy(model(x), y)


def lbfgs(model: nn.Module, w: ls.Watch | None) -> list[float]:
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    losses = []

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        return loss

    for _ in range(STEPS):
        loss = optimizer.step(closure)
        losses.append(float(loss.detach()))
        if w is not None:
            w.step()
            w.log(loss=loss)
    return losses


def by_hand(model: nn.Module, w: ls.Watch | None) -> list[float]:
    losses = []
    for _ in range(STEPS):
        loss = loss_of(model)
        loss.backward()
        losses.append(float(loss.detach()))
        with torch.no_grad():
            for p in model.parameters():
                assert p.grad is not None
                p -= 0.1 * p.grad
        if w is not None:
            w.step()
            w.log(loss=loss)
        model.zero_grad()
    return losses


def in_backward(model: nn.Module, w: ls.Watch | None) -> list[float]:
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(lambda p: optimizers[p].step())
    losses = []
    for _ in range(STEPS):
        loss = loss_of(model)
        loss.backward()
        losses.append(float(loss.detach()))
        if w is not None:
            w.step()
            w.log(loss=loss)
        model.zero_grad()
    return losses


LOOPS: dict[str, Loop] = {"LBFGS": lbfgs, "SGD by hand": by_hand, "steps in backward": in_backward}


@pytest.mark.parametrize("name", LOOPS)
def test_the_default_probes_follow_a_loop_that_counts_its_own_steps(name: str, tmp_path: Path) -> None:
    loop, plain, model = LOOPS[name], network(), network()
    losses = loop(plain, None)
    w = ls.watch(model, run=tmp_path / "run", strict=True)
    assert loop(model, w) == losses, "watching changes nothing"
    w.close()
    assert all(map(torch.equal, model.parameters(), plain.parameters()))
    assert w.steps == STEPS
    run = ls.open_run(tmp_path / "run")
    assert "LearningRate" not in run.manifest["probes"]
    assert [record.error for record in run.records() if record.error] == []
    assert list(run.frame("Loss", "loss").value) == pytest.approx(losses)
    assert list(run.frame("Loss", "loss").step) == list(range(1, STEPS + 1))
    assert run.frame("LoopCalls").groupby("name")["value"].sum()[["steps", "uncleared_steps"]].tolist() == [STEPS, 0]
    assert run.frame("LoopCalls", "backwards_without_step").value.sum() == 0
    norms = run.frame("GradientFlow", "norm", "model")
    assert list(norms.step) == [10, 20]
    assert (norms.value > 0).all()


def test_the_change_of_the_weights_between_two_calls_of_step() -> None:
    model = network()
    before = [p.detach().clone() for p in model.parameters()]
    with ls.watch(model, probes=[ls.ParameterChange(every=STEPS)], strict=True) as w:
        lbfgs(model, w)
    pairs = zip(model.parameters(), before, strict=True)
    moved = sum(float((p.detach().double() - old.double()).square().sum()) for p, old in pairs)
    assert float(w.run.frame("ParameterChange", "l2", "model").value.iloc[0]) == pytest.approx(moved**0.5, rel=1e-6)


def test_learning_rates_of_no_optimizer_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="LearningRate needs 'optimizer'"):
        ls.watch(network(), probes=[ls.LearningRate()])
    names = [type(probe).__name__ for probe in ls.default_probes()]
    without = [type(probe).__name__ for probe in ls.default_probes(optimizer=False)]
    assert [name for name in names if name not in without] == ["LearningRate"]
    assert {"GradientFlow", "ParameterChange", "Loss", "LoopCalls", "Objective", "Inputs"} <= set(without)


def test_a_loop_that_forgets_its_steps_is_told() -> None:
    model = network()
    w = ls.watch(model)
    by_hand(model, None)
    with pytest.warns(ls.ProbeWarning, match=r"backward passes and no step.*w\.step\(\)"):
        w.close()
