"""A loop's own account of its steps, in float64, and its comparison with what was recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import learnscope as ls

EXACT = {"rel": 1e-6, "abs": 1e-12}


@dataclass
class Step:
    """What the loop knows of one training step."""

    gradients: dict[str, float] = field(default_factory=dict)
    """Norm of every gradient as the optimizer was given it."""
    rates: list[float] = field(default_factory=list)
    clipped_from: float | None = None
    """The norm before the clip."""
    moved: dict[str, float] = field(default_factory=dict)
    """Norm of the change of every parameter."""
    logged: dict[str, float] = field(default_factory=dict)


class Account:
    """Opens the session, if the loop is `watched`, and keeps the loop's own numbers in any case."""

    def __init__(self, watched: bool) -> None:
        self.watched = watched
        self.w: ls.Watch | None = None
        self.steps: list[Step] = []
        self.losses: list[float] = []
        self._step = Step()

    def watch(self, model: nn.Module, optimizer: Any = None, **options: Any) -> None:
        """As a loop calls `ls.watch`, with probes that measure at every step."""
        self._names = {id(p): name for name, p in model.named_parameters()}
        self._parameters = dict(model.named_parameters())
        self._weights = self._now()
        if self.watched:
            probes: list[ls.Probe] = [
                ls.GradientFlow(every=1, per_tensor=True), ls.ParameterChange(every=1), *options.pop("probes", []),
            ]  # fmt: skip
            probes += [ls.LearningRate(every=1)] if optimizer is not None else []
            self.w = ls.watch(model, optimizer, probes=[*probes, ls.Loss()], strict=True, **options)

    def given(self, given: Optimizer | Iterable[Tensor], clipped_from: Tensor | float | None = None) -> None:
        """Right before an optimizer's step, or that of a loop without one."""
        if isinstance(given, Optimizer):
            self._step.rates += [float(group["lr"]) for group in given.param_groups]
            given = [p for group in given.param_groups for p in group["params"]]
        norms = {self._names[id(p)]: size(p.grad) for p in given if id(p) in self._names and p.grad is not None}
        self._step.gradients |= norms
        self._step.clipped_from = None if clipped_from is None else float(clipped_from)

    def took(self, **logged: Tensor | float) -> None:
        """The training step has been taken; what is logged are the loop's own numbers."""
        now = self._now()
        self._step.moved = {name: size(now[name] - old) for name, old in self._weights.items()}
        self._step.logged = {name: float(value) for name, value in logged.items()}
        self.losses += self._step.logged.values()
        self.steps.append(self._step)
        self._weights, self._step = now, Step()

    def log(self, **values: Any) -> None:
        if self.w is not None:
            self.w.log(**values)

    def _now(self) -> dict[str, Tensor]:
        return {name: p.detach().double().clone() for name, p in self._parameters.items()}

    def check(self) -> None:
        """Every recorded norm, change, rate and loss, of every step."""
        assert self.w is not None
        self.w.close()
        run = self.w.run
        assert [record.error for record in run.records() if record.error] == []
        assert self.w.steps == len(self.steps)
        frame = run.frame("GradientFlow", "norm", "tensor")
        stepped = by_step(frame[frame.stage == "stepped"]) if "stage" in frame else {}
        moved = by_step(run.frame("ParameterChange", "l2", "tensor"))
        logged = run.frame("Loss")
        for number, step in enumerate(self.steps, 1):
            assert stepped[number] == pytest.approx(step.gradients, **EXACT), f"gradients of step {number}"
            assert moved[number] == pytest.approx(step.moved, **EXACT), f"changes of step {number}"
            values = logged[logged.step == number]
            found = dict(zip(values.name, values.value, strict=True))
            assert {name: found.get(name) for name in step.logged} == pytest.approx(step.logged, rel=1e-6)
        self._check_rates(run)
        self._check_clips(run)

    def _check_rates(self, run: ls.Run) -> None:
        if any(step.rates for step in self.steps):
            rates = run.frame("LearningRate", "learning_rate", "group")
            found = [list(rates[rates.step == number].value) for number in range(1, len(self.steps) + 1)]
            assert found == [pytest.approx(step.rates, rel=1e-9) for step in self.steps]

    def _check_clips(self, run: ls.Run) -> None:
        clipped = {number: step.clipped_from for number, step in enumerate(self.steps, 1) if step.clipped_from}
        if clipped:
            frame = run.frame("GradientFlow", "norm", "model")
            frame = frame[frame.stage == "before_clip"]
            assert dict(zip(frame.step, frame.value, strict=True)) == pytest.approx(clipped, rel=1e-6)


def size(tensor: Tensor) -> float:
    return float(tensor.detach().double().norm())


def by_step(frame: Any) -> dict[int, dict[str, float]]:
    """Values by scope, by step."""
    return {step: dict(zip(part.scope, part.value, strict=True)) for step, part in frame.groupby("step")}


def check_loop(loop: Callable[[Account], nn.Module]) -> Account:
    """A loop unwatched and watched: the same losses and weights bit for bit, and every recorded number is its own."""
    plain, account = Account(watched=False), Account(watched=True)
    outcomes = []
    for each in (plain, account):
        torch.manual_seed(0)
        model = loop(each)
        outcomes.append([*model.state_dict().values(), torch.get_rng_state()])
    assert plain.losses == account.losses
    assert all(map(torch.equal, *outcomes))
    assert len(account.steps) > 2
    account.check()
    return account
