"""absorbed_share and planned_update against an independent account of torch's optimizers in NumPy float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import learnscope as ls
from learnscope.tensor.updates.moments import planned_update
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


def rounded(x: Array, dtype: torch.dtype) -> Array:
    """From float32 to the nearest number of the dtype, ties to even: bfloat16 by its bits, float16 by NumPy."""
    wide = x.astype(np.float32)
    if dtype == torch.float32:
        return wide
    if dtype == torch.float16:
        return wide.astype(np.float16).astype(np.float32)
    bits = wide.view(np.uint32)
    bits = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return bits.view(np.float32)


DECAYS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "adamw": (torch.optim.AdamW, {"lr": 0.03, "weight_decay": 0.1}),
    "adamw foreach": (torch.optim.AdamW, {"lr": 0.03, "weight_decay": 0.1, "foreach": True}),
    "adamw tensor lr": (torch.optim.AdamW, {"lr": torch.tensor(0.03), "weight_decay": 0.1, "foreach": False}),
    "adam decoupled": (torch.optim.Adam, {"lr": 0.03, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    "adam": (torch.optim.Adam, {"lr": 1e-3, "weight_decay": 0.003}),
    "sgd": (torch.optim.SGD, {"lr": 1e-3, "weight_decay": 0.003}),
    "sgd maximize": (torch.optim.SGD, {"lr": 1e-3, "weight_decay": 0.003, "maximize": True, "momentum": 0.9}),
}


def decayed(name: str, dtype: torch.dtype, sizes: tuple[int, ...] = (9, 30, 5)) -> tuple[ls.Run, dict[str, Array]]:
    """One step; the run, and of every entry whether its decay alone left no trace (NaN: it had none)."""
    kind, options = DECAYS[name]
    model = mlp(*sizes, dtype=dtype)
    with torch.no_grad():
        model[0].weight[0] = 0.0
    optimizer = kind(model.parameters(), **options)
    lost = {}
    probe = ls.ParameterChange(every=1, absorbed=True)
    with ls.watch(model, optimizer, probes=[probe], strict=True) as w:
        for n, p in model.named_parameters():
            g = torch.randn(p.shape) * 0.05
            # just below a power of two numbers are half as far apart: there the sign of the decay matters
            p.grad = torch.where(torch.arange(p.numel()).view(p.shape) % 3 == 0, 0.25, g).to(dtype)
            weight, given = (array(t).astype(np.float32) for t in (p, p.grad))
            if "adamw" in name or "decoupled" in name:
                # 1 - lr * decay is a float32 by the time that it meets the weights
                same = rounded(weight * np.float32(1 - float(options["lr"]) * options["weight_decay"]), dtype) == weight
            else:
                given = -given if "maximize" in name else given
                same = rounded(given + np.float32(options["weight_decay"]) * weight, dtype) == given
            lost[n] = np.where(weight != 0, same, np.nan)
        optimizer.step()
    return w.run, lost


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("name", DECAYS)
def test_decay_that_leaves_no_trace(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(4)
    run, lost = decayed(name, dtype)
    overall = float(np.nanmean(np.concatenate([lost[n].ravel() for n in lost])))
    assert values(run, PROBE, "decay_absorbed_share", rounding="apart") == [pytest.approx(overall, abs=1e-12)]
    layers = {
        s: float(np.nanmean(np.concatenate([lost[n].ravel() for n in inside])))
        for s, inside in by(layer_of, lost).items()
    }
    assert at_scope(run, PROBE, "decay_absorbed_share", "layer") == pytest.approx(layers, abs=1e-12)
    for end in ("low", "high"):
        assert values(run, PROBE, f"decay_absorbed_share_{end}") == [pytest.approx(overall, abs=1e-12)]
    if dtype == torch.bfloat16:
        assert 0.05 < overall < 0.95, "the test itself: some of the decay lands"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("product", [2.0**-13, 2.0**-10, 2.0**-8.5, 2.0**-7])
def test_decay_alone_is_what_torch_does_without_gradients(product: float, dtype: torch.dtype) -> None:
    """With gradients of 0 a step of AdamW is its decay: which weights move is then plain to see."""
    weights = torch.randn(5000, generator=torch.Generator().manual_seed(2)).to(dtype)
    shares = []
    for scale in (0.0, 1.0):
        model = nn.ParameterList([nn.Parameter(weights.clone())])
        optimizer = torch.optim.AdamW(model.parameters(), lr=product, weight_decay=1.0, eps=1e-3)
        probe = ls.ParameterChange(every=1, sample_size=5000)
        with ls.watch(model, optimizer, probes=[probe], strict=True) as w:
            model[0].grad = scale * torch.randn(5000).to(dtype)
            optimizer.step()
        if not scale:
            stayed = float((model[0].detach() == weights).double().mean())
        shares.append(values(w.run, PROBE, "decay_absorbed_share")[-1])
    assert shares == [pytest.approx(stayed, abs=1e-12)] * 2
    if product < 2.0 ** (-9 if dtype == torch.bfloat16 else -12):
        assert stayed == 1.0, "below half an ulp of the largest mantissa nothing lands"
    if product >= 2.0 ** (-8 if dtype == torch.bfloat16 else -11):
        assert stayed == 0.0, "from half an ulp of the smallest mantissa on everything does"


def test_the_interval_of_sampled_decay() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(200, 100, bias=False)).to(torch.bfloat16)
    with torch.no_grad():
        model[0].weight[:50] = 0.0
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.03, weight_decay=0.1)
    w0 = array(model[0].weight).astype(np.float32)
    truth = (rounded(w0 * np.float32(1 - 0.003), torch.bfloat16) == w0)[w0 != 0].mean()
    with ls.watch(model, optimizer, probes=[ls.ParameterChange(every=1, sample_size=400)], strict=True) as w:
        model[0].weight.grad = torch.randn_like(model[0].weight)
        optimizer.step()
    [share], [low], [high] = (values(w.run, PROBE, f"decay_absorbed_share{end}") for end in ("", "_low", "_high"))
    assert low < share < high
    assert low < truth < high
    # half of the sample has nothing to decay: the interval is that of about 200 entries, not of 400
    assert high - low == pytest.approx(2 * 1.96 * np.sqrt(share * (1 - share) / 200), rel=0.15)


def test_fused_decay_is_lost_only_together_with_the_update() -> None:
    torch.manual_seed(1)
    model = mlp(9, 30, 5, dtype=torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-4, weight_decay=0.1, fused=True)
    before = {n: array(p) for n, p in model.named_parameters()}
    with ls.watch(model, optimizer, probes=[ls.ParameterChange(every=1)], strict=True) as w:
        for p in model.parameters():
            p.grad = torch.randn_like(p)
        optimizer.step()
    stayed = np.concatenate([(before[n] == array(p)).ravel() for n, p in model.named_parameters()])
    assert 0 < stayed.mean() < 1, "the test itself"
    assert values(w.run, PROBE, "decay_absorbed_share", rounding="together") == [pytest.approx(stayed.mean())]
    assert set(rows(w.run, PROBE, "decay_absorbed_share").rounding) == {"together"}


@pytest.mark.parametrize(
    ("kind", "options", "reason"),
    [
        (torch.optim.AdamW, {"weight_decay": 0.0}, "no weight decay"),
        (torch.optim.AdamW, {"weight_decay": 0.1, "lr": 0.0}, "the learning rate is 0, and so is the decay"),
        (torch.optim.Adam, {"weight_decay": 0.1, "fused": True}, "a fused Adam adds the decay to the gradient"),
        (torch.optim.RMSprop, {"weight_decay": 0.1}, "the update of RMSprop is not known"),
    ],
)
def test_no_decay_to_look_at(kind: Any, options: dict[str, Any], reason: str) -> None:
    model = mlp(4, 5, 2, dtype=torch.bfloat16)
    optimizer = kind(model.parameters(), **options)
    with ls.watch(model, optimizer, probes=[ls.ParameterChange(every=1)], strict=True) as w:
        model(torch.randn(3, 4, dtype=torch.bfloat16)).square().mean().backward()
        optimizer.step()
    for scope in ("model", "layer"):
        frame = rows(w.run, PROBE, "decay_absorbed_share", scope)
        assert len(frame)
        assert frame.value.isna().all()
        assert all(status.startswith(reason) for status in frame.status)


def test_groups_with_and_without_decay_and_layers_of_zeros() -> None:
    model = mlp(4, 5, 5, 2, dtype=torch.bfloat16)
    nn.init.zeros_(model[4].weight)
    nn.init.zeros_(model[4].bias)
    groups = [
        {"params": [*model[0].parameters(), *model[4].parameters()], "weight_decay": 0.1},
        {"params": model[2].parameters(), "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-4)
    with ls.watch(model, optimizer, probes=[ls.ParameterChange(every=1)], strict=True) as w:
        model(torch.randn(3, 4, dtype=torch.bfloat16)).square().mean().backward()
        optimizer.step()
    frame = rows(w.run, PROBE, "decay_absorbed_share", "layer").set_index("scope")
    assert frame.value["0"] == 1.0
    assert (frame.status["2"], frame.status["4"]) == ("no weight decay", "no weight other than 0 to decay")
    assert values(w.run, PROBE, "decay_absorbed_share") == [1.0]


def test_one_known_and_one_unknown_optimizer() -> None:
    torch.manual_seed(0)
    model = mlp(4, 6, 3, 2, dtype=torch.bfloat16)
    known = torch.optim.SGD(model[0].parameters(), lr=1e-4)
    unknown = torch.optim.RMSprop([*model[2].parameters(), *model[4].parameters()], lr=1e-4)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    with ls.watch(model, [known, unknown], probes=[ls.ParameterChange(every=1)], strict=True) as w:
        model(torch.randn(3, 4, dtype=torch.bfloat16)).square().mean().backward()
        grads = {n: array(p.grad) for n, p in model[0].named_parameters()}
        known.step()
        unknown.step()
    lost = [
        ((grads[n] != 0) & (before[f"0.{n}"] == p.detach()).numpy()).ravel() for n, p in model[0].named_parameters()
    ]
    share = float(np.concatenate(lost).mean())
    assert values(w.run, PROBE, "absorbed_share") == [pytest.approx(share, abs=1e-12)]
    covered = sum(p.numel() for p in model[0].parameters()) / sum(p.numel() for p in model.parameters())
    assert values(w.run, PROBE, "absorbed_coverage") == [pytest.approx(covered, abs=1e-12)]
    assert at_scope(w.run, PROBE, "absorbed_coverage", "layer") == {"0": 1.0, "2": 0.0, "4": 0.0}
    frame = rows(w.run, PROBE, "absorbed_share", "layer").set_index("scope")
    assert frame.value["0"] == pytest.approx(share, abs=1e-12)
    assert list(frame.status[["2", "4"]]) == ["the update of RMSprop is not known"] * 2


def test_fused_sgd_on_a_cpu_is_not_taken_for_rounding() -> None:
    """torch 2.13 leaves all full vectors of such weights as they were, which no rounding explains."""
    model = mlp(64, 8, dtype=torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    with ls.watch(model, optimizer, probes=[ls.ParameterChange(every=1)], strict=True) as w:
        model(torch.randn(3, 64, dtype=torch.bfloat16)).square().mean().backward()
        optimizer.step()
    frame = rows(w.run, PROBE, "absorbed_share")
    assert frame.status.item() == "fused SGD on a CPU is not sure to write half-precision weights"
    assert values(w.run, PROBE, "absorbed_coverage") == [0.0]
