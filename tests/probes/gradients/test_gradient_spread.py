"""GradientFlow(variance=True) against NumPy in float64, before clipping and unscaled."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

import learnscope as ls
from probes.reference import at_scope, by, component_of, concatenated, gradients, layer_of, mlp, rows, values

PROBE = "GradientFlow"


def one_step(model: nn.Module, *, clip: float | None = None, dtype: torch.dtype = torch.float32, **more: Any) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with ls.watch(model, optimizer, probes=[ls.GradientFlow(every=1, variance=True, **more)], strict=True) as w:
        (model(torch.randn(8, 6, dtype=dtype)) * 30).square().mean().backward()
        before = gradients(model)
        if clip is not None:
            clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return w.run, before


@pytest.mark.parametrize("clip", [None, 0.01, 1e9])
def test_every_scope(clip: float | None) -> None:
    torch.manual_seed(0)
    model = mlp(6, 20, 3)
    run, before = one_step(model, clip=clip)
    scopes = {"model": {"model": list(before)}, "layer": by(layer_of, before), "component": by(component_of, before)}
    for kind, inside in scopes.items():
        for name, of in (("mean", np.mean), ("variance", lambda x: np.var(x, ddof=1))):
            expected = {scope: float(of(concatenated(before, names))) for scope, names in inside.items()}
            assert at_scope(run, PROBE, name, kind) == pytest.approx(expected, rel=1e-5)
    assert rows(run, PROBE, "variance", "group").empty


def test_only_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> None:
        raise AssertionError("the default path takes no second pass")

    monkeypatch.setattr("learnscope.probes.gradients.flow_spread.gradient_spread", never)
    model = mlp(6, 4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with ls.watch(model, optimizer, probes=[ls.GradientFlow(every=1)], strict=True) as w:
        model(torch.randn(8, 6)).square().mean().backward()
        optimizer.step()
    assert set(w.run.frame(PROBE).name) & {"mean", "variance"} == set()


def test_two_probes_share_the_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    from learnscope.probes.gradients import flow_spread as module

    calls = []
    original = module.gradient_spread
    monkeypatch.setattr(module, "gradient_spread", lambda grads: calls.append(1) or original(grads))
    model = mlp(6, 4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    probes = [ls.GradientFlow(every=1, variance=True), ls.GradientFlow(every=1, variance=True, per_tensor=True)]
    with ls.watch(model, optimizer, probes=probes, strict=True):
        model(torch.randn(8, 6)).square().mean().backward()
        optimizer.step()
    assert calls == [1]


def test_one_entry_has_a_mean_and_no_variance() -> None:
    model = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with ls.watch(model, optimizer, probes=[ls.GradientFlow(every=1, variance=True)], strict=True) as w:
        model.weight.grad = torch.tensor([[2.5]])
        optimizer.step()
    assert values(w.run, PROBE, "mean") == [2.5]
    frame = rows(w.run, PROBE, "variance")
    assert (frame.value.isna().item(), frame.status.item()) == (True, "one entry has no variance")


def test_nearly_constant_gradients() -> None:
    model = mlp(6, 20, 3, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with ls.watch(model, optimizer, probes=[ls.GradientFlow(every=1, variance=True)], strict=True) as w:
        for p in model.parameters():
            p.grad = 1e3 * (1 + 1e-8 * torch.randn_like(p))
        before = gradients(model)
        optimizer.step()
    exact = concatenated(before, list(before)).astype(np.longdouble)
    assert values(w.run, PROBE, "variance") == [pytest.approx(float(exact.var(ddof=1)), rel=1e-6)]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_not_finite(bad: float) -> None:
    for clip in (None, 1.0):
        model = mlp(6, 20, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        with ls.watch(model, optimizer, probes=[ls.GradientFlow(every=1, variance=True)], strict=True) as w:
            model(torch.randn(8, 6)).square().mean().backward()
            model[2].bias.grad[0] = bad
            if clip:
                clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
        frame = rows(w.run, PROBE, "variance", "layer").set_index("scope")
        assert frame.value.isna()["2"]
        assert frame.status["2"] == "nan"
        # a clip by a norm of NaN makes all gradients NaN, one by infinity makes them 0: they are read before
        assert frame.value["0"] > 0


def test_the_loss_scale_is_divided_out() -> None:
    torch.manual_seed(0)
    model = mlp(6, 20, 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    with ls.watch(model, optimizer, probes=[ls.GradientFlow(every=1, variance=True)], strict=True) as w:
        scaler.scale(model(torch.randn(8, 6)).square().mean()).backward()
        before = gradients(model)
        scaler.step(optimizer)
    x = concatenated(before, list(before)) / 256
    assert values(w.run, PROBE, "mean") == [pytest.approx(x.mean(), rel=1e-6)]
    assert values(w.run, PROBE, "variance") == [pytest.approx(x.var(ddof=1), rel=1e-6)]


def test_half_precision_is_right_to_its_rounding() -> None:
    torch.manual_seed(0)
    model = mlp(6, 40, 3, dtype=torch.bfloat16)
    run, before = one_step(model, clip=0.1, dtype=torch.bfloat16)
    x = concatenated(before, list(before))
    assert values(run, PROBE, "variance") == [pytest.approx(x.var(ddof=1), rel=2.0**-8)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_small_gradients_beside_one_that_a_clip_divides_by_a_huge_norm(dtype: torch.dtype) -> None:
    """1e-30 times the clip's 1e-20 is 0 in float32: nothing that comes after the clip can tell what it was."""
    torch.manual_seed(0)
    model = mlp(6, 20, 3, dtype=dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with ls.watch(model, optimizer, probes=[ls.GradientFlow(every=1, variance=True)], strict=True) as w:
        for name, p in model.named_parameters():
            p.grad = torch.randn_like(p) * (1e-30 if name.startswith("0.") else 1e19)
        before = gradients(model)
        clip_grad_norm_(model.parameters(), 1.0)
        assert dtype is torch.float64 or not model[0].weight.grad.any(), "the test itself"
        optimizer.step()
    for name, of in (("mean", np.mean), ("variance", lambda x: np.var(x, ddof=1))):
        expected = {scope: float(of(concatenated(before, names))) for scope, names in by(layer_of, before).items()}
        assert at_scope(w.run, PROBE, name, "layer") == pytest.approx(expected, rel=1e-9, abs=0.0)
    assert expected["0"] == pytest.approx(1e-60, rel=0.5)
