"""absorbed_share and planned_update against an independent account of torch's optimizers in NumPy float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import learnscope as ls
from learnscope.tensor.update import planned_update
from probes.reference import array, at_scope, by, layer_of, mlp, rows, values

PROBE = "ParameterChange"
Array = np.ndarray[Any, Any]

OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {"lr": 3e-4}),
    "sgd decay": (torch.optim.SGD, {"lr": 3e-4, "weight_decay": 0.1}),
    "sgd momentum": (torch.optim.SGD, {"lr": 3e-4, "momentum": 0.9, "dampening": 0.2}),
    "sgd nesterov": (torch.optim.SGD, {"lr": 3e-4, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    "sgd maximize": (torch.optim.SGD, {"lr": 3e-4, "maximize": True, "weight_decay": 0.1}),
    "sgd tensor lr": (torch.optim.SGD, {"lr": torch.tensor(3e-4)}),
    "adam": (torch.optim.Adam, {"lr": 3e-4}),
    "adam decay": (torch.optim.Adam, {"lr": 3e-4, "weight_decay": 0.1}),
    "adam maximize": (torch.optim.Adam, {"lr": 3e-4, "maximize": True}),
    "adam amsgrad": (torch.optim.Adam, {"lr": 3e-4, "amsgrad": True, "betas": (0.8, 0.5)}),
    "adam decoupled": (torch.optim.Adam, {"lr": 3e-4, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    "adamw": (torch.optim.AdamW, {"lr": 3e-4, "weight_decay": 0.1}),
    "adamw amsgrad": (torch.optim.AdamW, {"lr": 3e-4, "weight_decay": 0.1, "amsgrad": True, "betas": (0.8, 0.5)}),
}


class Account:
    """What an optimizer means to do to one tensor, from its gradients alone (Kingma & Ba 2015; torch's docs)."""

    def __init__(self, kind: type[torch.optim.Optimizer], options: dict[str, Any]) -> None:
        self.adam = kind is not torch.optim.SGD
        self.o = options
        self.decoupled = kind is torch.optim.AdamW or options.get("decoupled_weight_decay", False)
        self.t = 0
        self.m = self.v = self.largest = 0.0  # type: ignore[var-annotated]

    def update(self, w: Array, g: Array) -> Array:
        o, self.t = self.o, self.t + 1
        lr, decay = float(o["lr"]), o.get("weight_decay", 0.0)
        g = -g if o.get("maximize") else g
        if not self.decoupled:
            g = g + decay * w
        if not self.adam:
            mu = o.get("momentum", 0.0)
            if not mu:
                return -lr * g
            self.m = g if self.t == 1 else mu * self.m + (1 - o.get("dampening", 0.0)) * g
            return -lr * (g + mu * self.m if o.get("nesterov") else self.m)
        b1, b2 = o.get("betas", (0.9, 0.999))
        self.m = b1 * self.m + (1 - b1) * g
        self.v = b2 * self.v + (1 - b2) * g * g
        self.largest = np.maximum(self.largest, self.v)
        second = self.largest if o.get("amsgrad") else self.v
        step = -lr * (self.m / (1 - b1**self.t)) / (np.sqrt(second / (1 - b2**self.t)) + o.get("eps", 1e-8))
        return step - lr * decay * w if self.decoupled else step


def play(
    model: nn.Module, name: str, dtype: torch.dtype, steps: int, **options: Any
) -> tuple[ls.Run, dict[str, Array], dict[str, Array]]:
    """Some steps with made gradients; the run, and of the last step the meant update and which bits changed."""
    kind, settings = OPTIMIZERS[name]
    optimizer = kind(model.parameters(), **settings)
    accounts = {n: Account(kind, settings) for n, _ in model.named_parameters()}
    generator = torch.Generator().manual_seed(8)
    meant: dict[str, Array] = {}
    changed: dict[str, Array] = {}
    probe = ls.ParameterChange(every=1, absorbed=True, **options)
    with ls.watch(model, optimizer, probes=[probe], strict=True) as w:
        for _ in range(steps):
            before = {n: p.detach().clone() for n, p in model.named_parameters()}
            for n, p in model.named_parameters():
                g = torch.randn(p.shape, generator=generator) * 10 ** torch.empty(p.shape).uniform_(-3, 0)
                g = torch.where(torch.arange(p.numel()).view(p.shape) % 4 == 0, 0.0, g)  # never a gradient there
                p.grad = g.to(dtype)
                meant[n] = accounts[n].update(array(before[n]), array(p.grad))
            optimizer.step()
            # weights that fp16 Adam has made infinite (v underflows) are not counted: they are lost otherwise
            changed = {
                n: ((before[n] != p.detach()) | ~before[n].isfinite()).numpy() for n, p in model.named_parameters()
            }
    return w.run, meant, changed


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_share_is_exact_where_all_entries_are_looked_at(name: str, dtype: torch.dtype) -> None:
    model = mlp(9, 30, 5, dtype=dtype)
    run, meant, changed = play(model, name, dtype, 4)
    lost = {n: (meant[n] != 0) & ~changed[n] for n in meant}
    overall = float(np.concatenate([lost[n].ravel() for n in lost]).mean())
    assert values(run, PROBE, "absorbed_share")[-1] == pytest.approx(overall, abs=1e-12)
    layers = {
        s: float(np.concatenate([lost[n].ravel() for n in inside]).mean()) for s, inside in by(layer_of, lost).items()
    }
    assert at_scope(run, PROBE, "absorbed_share", "layer") == pytest.approx(layers, abs=1e-12)
    for bound in ("absorbed_share_low", "absorbed_share_high"):
        assert values(run, PROBE, bound)[-1] == pytest.approx(overall, abs=1e-12), "nothing was sampled"
    if dtype == torch.bfloat16:
        assert 0.2 < overall < 0.99, "the test itself: some updates are absorbed and some are not"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_planned_update_is_what_torch_did(name: str, dtype: torch.dtype) -> None:
    kind, settings = OPTIMIZERS[name]
    p = nn.Parameter(torch.randn(200, dtype=dtype))
    optimizer = kind([p], **settings)
    account = Account(kind, settings)
    for step in range(5):
        p.grad = torch.randn(200, dtype=dtype) * (1.0 if step else 5.0)
        before = p.detach().clone()
        meant = account.update(array(before), array(p.grad))
        optimizer.step()
        state = {k: v for k, v in optimizer.state[p].items() if isinstance(v, torch.Tensor)}
        planned = planned_update(kind.__name__, optimizer.param_groups[0], state, before, p.grad)
        assert planned.dtype == dtype
        eps = torch.finfo(dtype).eps
        # the difference of two weights is only known to the rounding of the weights
        torch.testing.assert_close(planned, p.detach() - before, rtol=0, atol=2 * eps * float(before.abs().max()))
        np.testing.assert_allclose(array(planned), meant, rtol=300 * eps, atol=eps * np.abs(meant).max())


@pytest.mark.parametrize(("scale", "low", "high"), [(1.0, 0.35, 0.65), (0.3, 0.02, 0.1), (20.0, 0.9, 1.0)])
def test_the_interval_holds_the_true_share(scale: float, low: float, high: float) -> None:
    """A sample of 128 of 4096 and of 100 of 900 entries: the 95 % interval is right about 95 times in 100."""
    trials = 250
    model = nn.Sequential(nn.Linear(64, 64, bias=False), nn.Linear(30, 30, bias=False)).to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    truth = []
    probe = ls.ParameterChange(every=1, sample_size=128, per_tensor=False)
    with ls.watch(model, optimizer, probes=[probe], strict=True) as w:
        for _ in range(trials):
            lost = []
            for p in model.parameters():
                nn.init.normal_(p, std=scale)
                p.grad = torch.full_like(p, 2.0**-9)
            before = [p.detach().clone() for p in model.parameters()]
            optimizer.step()
            lost = [(a == p.detach()).numpy().ravel() for a, p in zip(before, model.parameters(), strict=True)]
            truth.append(float(np.concatenate(lost).mean()))
    assert low < np.mean(truth) < high, "the test itself"
    lower, upper = (np.array(values(w.run, PROBE, f"absorbed_share_{end}")) for end in ("low", "high"))
    share = np.array(values(w.run, PROBE, "absorbed_share"))
    assert len(share) == trials
    assert (upper - lower).max() < 0.25
    held = np.mean((lower <= truth) & (truth <= upper))
    assert held > 0.95 - 4 * np.sqrt(0.95 * 0.05 / trials), held
    if scale == 1.0:
        assert held < 1.0, "an interval that always holds is too wide"
    error = (share - truth).std() / np.sqrt(trials)
    assert abs(np.mean(share - truth)) < 4 * error, "the estimate is unbiased"


def test_it_is_for_half_precision_unless_asked_for() -> None:
    for dtype, wanted, expected in (
        (torch.float32, None, False), (torch.bfloat16, None, True), (torch.float16, None, True),
        (torch.float32, True, True), (torch.bfloat16, False, False),
    ):  # fmt: skip
        model = mlp(4, 5, 2, dtype=dtype)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with ls.watch(model, optimizer, probes=[ls.ParameterChange(every=1, absorbed=wanted)], strict=True) as w:
            model(torch.randn(3, 4, dtype=dtype)).square().mean().backward()
            optimizer.step()
        assert bool(values(w.run, PROBE, "absorbed_share")) is expected


def test_an_unknown_optimizer_has_none_and_says_why() -> None:
    model = mlp(4, 5, 2, dtype=torch.bfloat16)
    optimizer = torch.optim.RMSprop(model.parameters())
    with ls.watch(model, optimizer, probes=[ls.ParameterChange(every=1)], strict=True) as w:
        model(torch.randn(3, 4, dtype=torch.bfloat16)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        optimizer.step()
    frame = rows(w.run, PROBE, "absorbed_share")
    assert frame.value.isna().all()
    assert list(frame.status) == ["the update of RMSprop is not known", "no parameter was updated"]


def test_frozen_parameters_and_a_subclass_are_not_guessed_at() -> None:
    """A class of one's own called Mine may do anything, though it inherits from Adam."""

    class Mine(torch.optim.Adam):
        pass

    model = mlp(4, 5, 2, dtype=torch.bfloat16)
    model[0].requires_grad_(False)
    for kind, known in ((torch.optim.Adam, True), (Mine, False)):
        optimizer = kind([p for p in model.parameters() if p.requires_grad], lr=1e-3)
        with ls.watch(model, optimizer, probes=[ls.ParameterChange(every=1)], strict=True) as w:
            model(torch.randn(3, 4, dtype=torch.bfloat16)).square().mean().backward()
            optimizer.step()
        assert (not np.isnan(values(w.run, PROBE, "absorbed_share")[0])) is known
        if known:
            assert list(at_scope(w.run, PROBE, "absorbed_share", "layer")) == ["2"]


def test_weights_that_are_not_contiguous_and_sparse_gradients() -> None:
    model = nn.Sequential(nn.Embedding(40, 6, sparse=True), nn.Linear(6, 2)).to(torch.bfloat16)
    model[1].weight = nn.Parameter(torch.randn(6, 2, dtype=torch.bfloat16).t())
    assert not model[1].weight.is_contiguous()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    with ls.watch(model, optimizer, probes=[ls.ParameterChange(every=1)], strict=True) as w:
        model(torch.tensor([3, 3, 9])).square().mean().backward()
        grads = {n: array(p.grad) for n, p in model.named_parameters()}
        optimizer.step()
    lost = [((grads[n] != 0) & (before[n] == p.detach()).numpy()).ravel() for n, p in model.named_parameters()]
    assert values(w.run, PROBE, "absorbed_share") == [pytest.approx(np.concatenate(lost).mean(), abs=1e-12)]
