"""Gradients have the unit of the loss: a factor in front of it changes findings only through what the steps do."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import learnscope as ls
from findings.made_run import MadeRun
from learnscope.findings import Cuts, find
from learnscope.findings.gradients.exploding import exploding, leaves_its_past
from learnscope.findings.gradients.vanishing import vanishing

LAYERS = [f"layers.{i}" for i in range(8)]
SCALES = (1e-4, 1e-2, 1.0, 1e2, 1e4)


def trained(scale: float, optimizer: str, *, depth: int = 2, steps: int = 120, rate: float = 1e-2) -> ls.Run:
    torch.manual_seed(0)
    activation = nn.ReLU if depth < 6 else nn.Sigmoid
    inner = [part for _ in range(depth) for part in (nn.Linear(16, 16), activation())]
    model = nn.Sequential(nn.Linear(8, 16), activation(), *inner, nn.Linear(16, 1))
    x = torch.randn(256, 8)
    y = x[:, :1] * 2 + x[:, 1:2] ** 2
    # with hardly any eps Adam's step is the same whatever the scale of the loss
    made = {
        "adam": lambda: torch.optim.Adam(model.parameters(), lr=rate, eps=1e-30),
        "sgd": lambda: torch.optim.SGD(model.parameters(), lr=rate / scale),
    }[optimizer]()
    with ls.watch(model, made, probes=[ls.GradientFlow(every=5), ls.ParameterChange(every=5), ls.Loss()]) as w:
        for step in range(steps):
            part = torch.arange(32) + 32 * (step % 8)
            made.zero_grad()
            loss = scale * (model(x[part]) - y[part]).square().mean()
            loss.backward()
            made.step()
            w.log(loss=loss)
    return w.run


@pytest.mark.parametrize(
    ("optimizer", "depth"),
    [("sgd", 2), ("adam", 9), *(pytest.param(*case, marks=pytest.mark.soak) for case in (("adam", 2), ("sgd", 9)))],
)
def test_a_factor_in_front_of_the_loss_changes_no_finding(optimizer: str, depth: int) -> None:
    """With SGD the rate is divided by the factor: then the steps are the same."""
    said = {}
    for scale in SCALES:
        findings = trained(scale, optimizer, depth=depth).findings()
        said[scale] = [(finding.kind, finding.severity, finding.scopes) for finding in findings]
    assert all(findings == said[1.0] for findings in said.values()), said
    kinds = {kind for kind, _, _ in said[1.0]}
    assert kinds.isdisjoint({"exploding"})
    assert ("vanishing" in kinds) is (depth == 9)


def test_summed_losses_and_raw_targets_are_healthy() -> None:
    for scale in (100.0, 1e4):
        run = trained(scale, "adam")
        assert [f.kind for f in run.findings() if f.severity != "info"] == []


def made(
    course: dict[str, np.ndarray], loss: np.ndarray, update: np.ndarray | float = 1e-3, scale: float = 1.0
) -> MadeRun:
    """A run with these gradients by layer, losses, and updates beside the weights."""
    run = MadeRun(layers=list(course))
    updates = np.broadcast_to(update, loss.shape)
    for step, value in enumerate(loss, 1):
        run.loss(step, float(value) * scale)
        run.gradients(step, {layer: float(norms[step - 1]) * scale for layer, norms in course.items()})
        run.change((step - 1, step), {f"{layer}.weight": 1.0 for layer in course},
                   layers=dict.fromkeys(course, float(updates[step - 1])))  # fmt: skip
    return run


def noisy(n: int, seed: int = 0, spread: float = 0.1) -> np.ndarray:
    return np.exp(np.random.default_rng(seed).normal(0, spread, n))


def explosion(n: int = 60, at: int = 30) -> np.ndarray:
    return noisy(n) * np.where(np.arange(n) < at, 1.0, 1e4)


@pytest.mark.parametrize("scale", SCALES)
def test_growth_that_lasts_with_large_steps_and_a_lost_loss(scale: float) -> None:
    falls = np.linspace(2, 1, 30)
    loss = np.concatenate([falls, np.full(30, 8.0)]) * noisy(60, 1, 0.02)
    update = np.where(np.arange(60) < 30, 1e-3, 0.5)
    norms = {layer: explosion() if layer == "layers.3" else noisy(60, i) for i, layer in enumerate(LAYERS)}
    [finding] = exploding(made(norms, loss, update, scale).reader, Cuts())
    assert (finding.severity, finding.cause, finding.scopes, finding.since) == ("critical", True, ["layers.3"], 31)
    assert "up to 0.5 of their size" in finding.detail
    assert finding.evidence.value == pytest.approx(1e4, rel=0.2)


def test_the_same_growth_while_the_loss_falls_is_none() -> None:
    loss = np.linspace(2, 0.2, 60) * noisy(60, 1, 0.02)
    run = made({layer: explosion() for layer in LAYERS}, loss)
    assert exploding(run.reader, Cuts()) == []


def test_large_gradients_with_normal_steps_are_not_the_cause_of_a_rise() -> None:
    """Adam: the step is of normal size whatever the gradient."""
    loss = np.concatenate([np.linspace(2, 1, 30), np.full(30, 8.0)]) * noisy(60, 1, 0.02)
    [finding] = exploding(made({layer: explosion() for layer in LAYERS}, loss).reader, Cuts())
    assert not finding.cause
    flat = np.full(60, 2.0) * noisy(60, 1, 0.02)
    assert exploding(made({layer: explosion() for layer in LAYERS}, flat).reader, Cuts()) == []


def test_the_first_steps_settle() -> None:
    loss = np.full(60, 2.0) * noisy(60, 1, 0.02)
    norms = noisy(60) * np.where(np.arange(60) < 3, 1e4, 1.0)
    assert exploding(made(dict.fromkeys(LAYERS, norms), loss, 0.5).reader, Cuts()) == []
    assert leaves_its_past(norms, 100, 3) is None
    assert leaves_its_past(norms[::-1], 100, 3) == (57, pytest.approx(1.0, rel=0.1))
    assert leaves_its_past(norms[::-1], 100, 4) is None


def test_a_layer_that_moves_as_the_others_do_has_not_vanished() -> None:
    flat, falling = np.full(60, 2.0) * noisy(60, 1, 0.02), np.linspace(2, 0.2, 60) * noisy(60, 1, 0.02)
    small = {layer: noisy(60, i) * (1e-4 if layer == "layers.3" else 1) for i, layer in enumerate(LAYERS)}
    deep = {layer: noisy(60, i) * 8.0 ** (i - 8) for i, layer in enumerate(LAYERS)}
    assert vanishing(made(small, flat).reader, Cuts()) == []  # not depth, and its updates are as the others'
    assert [f.kind for f in vanishing(made(deep, flat).reader, Cuts())] == ["vanishing"]
    assert vanishing(made(deep, falling).reader, Cuts()) == []  # it learns


def test_a_layer_that_no_optimizer_trains_is_no_measure_for_the_others() -> None:
    """Its gradients are cleared by nobody and grow without end; the layers beside it are healthy."""
    run = MadeRun(layers=LAYERS, trainable_outside_optimizer=[f"{layer}.weight" for layer in LAYERS[:5]])
    for step in range(1, 31):
        run.loss(step, 2.0)
        run.gradients(step, {layer: 1e4 * step if layer in LAYERS[:5] else 0.1 for layer in LAYERS})
    assert {f.kind for f in find(run.reader)}.isdisjoint({"vanishing", "exploding"})
