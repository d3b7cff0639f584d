"""Momentum against an Adam written in NumPy float64, and against what torch's steps really did."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import learnscope as ls
from probes.reference import (
    array,
    at_scope,
    by,
    component_of,
    concatenated,
    failures,
    layer_of,
    mlp,
    norm,
    rows,
    values,
)

PROBE = "Momentum"
Array = np.ndarray[Any, Any]


class NumpyAdam:
    """Kingma and Ba's algorithm 1 on one array, from its gradients alone; `amsgrad` as torch does it."""

    def __init__(self, lr: float, betas: tuple[float, float], eps: float, amsgrad: bool = False) -> None:
        self.lr, self.betas, self.eps, self.amsgrad = lr, betas, eps, amsgrad
        self.t, self.m, self.v, self.top = 0, np.zeros(()), np.zeros(()), np.zeros(())

    def see(self, g: Array) -> None:
        b1, b2 = self.betas
        self.t += 1
        self.m = b1 * self.m + (1 - b1) * g
        self.v = b2 * self.v + (1 - b2) * g * g
        self.top = np.maximum(self.top, self.v)

    @property
    def mean(self) -> Array:
        return self.m / (1 - self.betas[0] ** self.t)

    @property
    def square(self) -> Array:
        return self.v / (1 - self.betas[1] ** self.t)

    @property
    def step(self) -> Array:
        used = (self.top if self.amsgrad else self.v) / (1 - self.betas[1] ** self.t)
        return self.lr * self.mean / (np.sqrt(used) + self.eps)


def expected(adams: dict[str, NumpyAdam], weights: dict[str, Array], grads: dict[str, Array]) -> dict[str, float]:
    def joined(arrays: dict[str, Array]) -> Array:
        return concatenated(arrays, list(adams))

    m, v, step = (joined({n: getattr(a, what) for n, a in adams.items()}) for what in ("mean", "square", "step"))
    g, w = joined(grads), joined(weights)
    noise = np.maximum(v - m**2, 0)
    with np.errstate(divide="ignore"):
        ratios = np.abs(m) / np.sqrt(noise)
    return {
        "first_moment_norm": float(np.linalg.norm(m)), "second_moment_mean": float(v.mean()),
        "effective_step_norm": float(np.linalg.norm(step)), "effective_step_max": float(np.abs(step).max()),
        "step_to_weight": float(np.linalg.norm(step) / np.linalg.norm(w)),
        "staleness": float(m @ g / np.linalg.norm(m) / np.linalg.norm(g)),
        "median": float(np.median(ratios)), "norm_ratio": float(np.sqrt((m**2).sum() / noise.sum())),
    }  # fmt: skip


def found_at(run: ls.Run, kind: str) -> dict[str, dict[str, float]]:
    """All numbers of the last step, by scope and name; snr under its summary."""
    frame = run.frame(PROBE, kind=kind)
    frame = frame[frame.step == frame.step.max()]
    out: dict[str, dict[str, float]] = {}
    for row in frame.itertuples():
        name = row.summary if row.name == "snr" else row.name
        out.setdefault(row.scope, {})[name] = row.value
    return out


GROUPS: list[dict[str, Any]] = [
    {"lr": 3e-3, "betas": (0.9, 0.99), "eps": 1e-8},
    {"lr": 1e-4, "betas": (0.5, 0.8), "eps": 1e-3},
]


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 2e-5), (torch.bfloat16, 0.1)], ids=str
)
@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("variant", [{}, {"foreach": True}, {"fused": True}], ids=str)
def test_twenty_steps_of_two_groups(dtype: torch.dtype, tolerance: float, amsgrad: bool, variant: Any) -> None:
    """bf16 is off by the rounding of the moments themselves, which NumPy does not do."""
    torch.manual_seed(3)
    model = mlp(6, 20, 3, dtype=dtype)
    group_of = {"0.weight": 0, "0.bias": 1, "2.weight": 1, "2.bias": 0}
    named = dict(model.named_parameters())
    groups = [{"params": [named[n] for n, i in group_of.items() if i == k], **GROUPS[k]} for k in (0, 1)]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.1, amsgrad=amsgrad, **variant)
    adams = {n: NumpyAdam(**GROUPS[group_of[n]], amsgrad=amsgrad) for n in named}
    grads: dict[str, Array] = {}
    with ls.watch(model, optimizer, probes=[ls.Momentum(every=20)], strict=True) as w:
        for step in range(20):
            optimizer.zero_grad()
            for n, p in named.items():
                drift = torch.linspace(-1, 1, p.numel(), dtype=torch.float64).view(p.shape)
                p.grad = (drift + (2.0 if step < 5 else 0.5) * torch.randn(p.shape, dtype=torch.float64)).to(dtype)
                grads[n] = array(p.grad)
                adams[n].see(grads[n])
            optimizer.step()
    weights = {n: array(p) for n, p in named.items()}
    scopes = {
        "model": {"model": list(named)}, "layer": by(layer_of, named), "component": by(component_of, named),
        "group": by(lambda n: f"group_{group_of[n]}", named),
    }  # fmt: skip
    for kind, inside in scopes.items():
        measured = found_at(w.run, kind)
        assert list(measured) == sorted(inside)
        for scope, names in inside.items():
            reference = expected({n: adams[n] for n in names}, weights, grads)
            for name, value in reference.items():
                loose = 10 if name in ("median", "norm_ratio") and dtype == torch.bfloat16 else 1
                assert measured[scope][name] == pytest.approx(value, rel=loose * tolerance), (kind, scope, name)
    groups_found = found_at(w.run, "group")
    for number, options in enumerate(GROUPS):
        one = groups_found[f"group_{number}"]
        assert (one["lr"], one["beta1"], one["beta2"]) == (options["lr"], *options["betas"])
    assert (measured := found_at(w.run, "model")["model"])["without_state"] == 0
    assert measured["unknown_optimizer"] == measured["without_gradient"] == 0


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.Adam])
def test_the_effective_step_is_what_the_weights_did_besides_their_decay(kind: type[torch.optim.Adam]) -> None:
    model = mlp(5, 12, 4, dtype=torch.float64)
    optimizer = kind(model.parameters(), lr=2e-3, weight_decay=0.3 if kind is torch.optim.AdamW else 0.0)
    with ls.watch(model, optimizer, probes=[ls.Momentum(every=1)], strict=True) as w:
        steps = []
        for _ in range(6):
            optimizer.zero_grad()
            model(torch.randn(8, 5, dtype=torch.float64)).square().mean().backward()
            before = [array(p) for p in model.parameters()]
            optimizer.step()
            decay = optimizer.param_groups[0]["weight_decay"]
            after = [array(p) for p in model.parameters()]
            moved = [-(b - a + 2e-3 * decay * a) for a, b in zip(before, after, strict=True)]
            steps.append((norm(moved), max(np.abs(m).max() for m in moved), norm(moved) / norm(after)))
    for number, name in enumerate(("effective_step_norm", "effective_step_max", "step_to_weight")):
        assert values(w.run, PROBE, name) == pytest.approx([step[number] for step in steps], rel=1e-9)


def test_a_first_step_is_all_signal() -> None:
    model = mlp(4, 6, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with ls.watch(model, optimizer, probes=[ls.Momentum(every=1)], strict=True) as w:
        model(torch.randn(3, 4)).square().mean().backward()
        optimizer.step()
    frame = rows(w.run, PROBE, "snr")
    assert list(frame.status) == ["inf", "inf"]
    assert values(w.run, PROBE, "staleness") == [pytest.approx(1.0, abs=1e-6)]


@pytest.mark.parametrize("options", [{}, {"dampening": 0.3}, {"nesterov": True}, {"maximize": True}], ids=str)
def test_sgd_with_momentum(options: dict[str, Any]) -> None:
    model = mlp(4, 6, 2, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, **options)
    buffers = {n: np.zeros(()) for n, _ in model.named_parameters()}
    grads: dict[str, Array] = {}
    sign = -1 if options.get("maximize") else 1
    with ls.watch(model, optimizer, probes=[ls.Momentum(every=1)], strict=True) as w:
        for step in range(7):
            optimizer.zero_grad()
            model(torch.randn(8, 4, dtype=torch.float64)).square().mean().backward()
            for n, p in model.named_parameters():
                grads[n] = sign * array(p.grad)
                buffers[n] = 0.9 * buffers[n] + (1 - options.get("dampening", 0.0) if step else 1.0) * grads[n]
            optimizer.step()
    m, g = (concatenated(a, list(buffers)) for a in (buffers, grads))
    assert values(w.run, PROBE, "first_moment_norm", rule="momentum")[-1] == pytest.approx(norm([m]), rel=1e-12)
    assert values(w.run, PROBE, "staleness")[-1] == pytest.approx(m @ g / norm([m]) / norm([g]), rel=1e-12)
    assert len(values(w.run, PROBE, "second_moment_mean")) == 0
    [reason] = set(rows(w.run, PROBE, "beta1", "group").status)
    assert reason == "this optimizer has no betas"


def test_foreach_sgd_with_nesterov_spoils_the_gradient_and_this_is_said() -> None:
    for decay, spoilt in ((0.0, True), (0.1, False)):
        model = mlp(4, 6, 2)
        optimizer = torch.optim.SGD(
            model.parameters(), lr=0.05, momentum=0.9, nesterov=True, foreach=True, weight_decay=decay
        )
        with ls.watch(model, optimizer, probes=[ls.Momentum(every=1)], strict=True) as w:
            model(torch.randn(8, 4)).square().mean().backward()
            given = array(model[0].weight.grad)
            optimizer.step()
        assert (not np.array_equal(given, array(model[0].weight.grad))) is spoilt, "the test itself: what torch does"
        frame = rows(w.run, PROBE, "staleness")
        assert ("has written into" in str(frame.status.iloc[0])) is spoilt
        assert values(w.run, PROBE, "without_gradient") == [4 if spoilt else 0]


def test_gradients_that_were_cleared() -> None:
    model = mlp(4, 6, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.register_step_post_hook(lambda *_: model[2].zero_grad())  # before learnscope's own
    with ls.watch(model, optimizer, probes=[ls.Momentum(every=1)], strict=True) as w:
        model(torch.randn(3, 4)).square().mean().backward()
        optimizer.step()
    found = at_scope(w.run, PROBE, "staleness", "layer")
    assert found["0"] == pytest.approx(1.0, abs=1e-6)
    assert math.isnan(found["2"])
    frame = rows(w.run, PROBE, "staleness", "layer")
    assert frame[frame.scope == "2"].status.item() == "its gradient was cleared before the measurement, or it had none"
    assert values(w.run, PROBE, "staleness") == [pytest.approx(1.0, abs=1e-6)]
    assert values(w.run, PROBE, "without_gradient") == [2]


def test_parameters_without_moments_are_counted_and_named() -> None:
    model = mlp(4, 5, 5, 5, 2)
    model[0].requires_grad_(False)
    held = [*model[0].parameters(), *model[2].parameters(), *model[4].parameters()]
    optimizer = torch.optim.AdamW(held)
    model.register_parameter("count", nn.Parameter(torch.tensor([1, 2]), requires_grad=False))
    with ls.watch(model, optimizer, probes=[ls.Momentum(every=1)], strict=True) as w:
        model[4](torch.randn(3, 5)).square().mean().backward()  # layers 2 and 6 never get a gradient
        optimizer.step()
    frame = rows(w.run, PROBE, "first_moment_norm", "layer").set_index("scope")
    assert dict(frame.status.dropna()) == {
        "0": "frozen", "2": "never stepped", "6": "in no optimizer", "(root)": "int64 parameters have no moments",
    }  # fmt: skip
    assert frame.value["4"] > 0
    assert values(w.run, PROBE, "without_state") == [7]
    assert at_scope(w.run, PROBE, "without_state", "layer") == {"0": 2, "2": 2, "4": 0, "6": 2, "(root)": 1}
    assert at_scope(w.run, PROBE, "without_state", "group") == {"group_0": 4}


@pytest.mark.parametrize("kind", [torch.optim.NAdam, torch.optim.RAdam, torch.optim.Adamax, torch.optim.RMSprop])
def test_optimizers_that_are_not_known_are_named(kind: type[torch.optim.Optimizer]) -> None:
    model = mlp(4, 5, 2)
    optimizer = kind(model.parameters(), lr=1e-3)  # type: ignore[call-arg]
    with ls.watch(model, optimizer, probes=[ls.Momentum(every=1)], strict=True) as w:
        model(torch.randn(3, 4)).square().mean().backward()
        optimizer.step()
    for name in ("first_moment_norm", "effective_step_norm", "snr", "staleness", "second_moment_mean"):
        frame = rows(w.run, PROBE, name)
        assert frame.value.isna().all()
        assert set(frame.status) == {f"the moments of {kind.__name__} are not known"}
    assert values(w.run, PROBE, "unknown_optimizer") == [4]
    assert values(w.run, PROBE, "without_state") == [0]


def test_sgd_without_momentum_has_none() -> None:
    model = mlp(4, 5, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ls.watch(model, optimizer, probes=[ls.Momentum(every=1)], strict=True) as w:
        model(torch.randn(3, 4)).square().mean().backward()
        optimizer.step()
    assert list(rows(w.run, PROBE, "first_moment_norm").status) == ["SGD without momentum keeps no moments"]
    assert values(w.run, PROBE, "without_state") == [4]


def test_two_optimizers_are_kept_apart() -> None:
    model = mlp(4, 5, 2, dtype=torch.float64)
    one = torch.optim.SGD(model[0].parameters(), lr=0.1, momentum=0.5)
    two = torch.optim.AdamW(model[2].parameters(), lr=1e-3)
    with ls.watch(model, [one, two], probes=[ls.Momentum(every=1)], strict=True) as w:
        model(torch.randn(3, 4, dtype=torch.float64)).square().mean().backward()
        grads = {n: array(p.grad) for n, p in model.named_parameters()}
        one.step()
        two.step()
    for rule, layer, other in (("momentum", "0", "2"), ("adam", "2", "0")):
        mine = norm([grads[f"{layer}.weight"], grads[f"{layer}.bias"]])  # after one step m̂ is the gradient
        assert values(w.run, PROBE, "first_moment_norm", rule=rule) == [pytest.approx(mine, rel=1e-12)]
        frame = rows(w.run, PROBE, "first_moment_norm", "layer", rule=rule).set_index("scope")
        assert frame.value[layer] == pytest.approx(mine, rel=1e-12)
        assert frame.status[other] == f"its moments are {'SGD' if rule == 'adam' else 'Adam'}'s"
    assert failures(w.run) == []


def test_subclasses_tied_weights_and_int_steps() -> None:
    class Mine(torch.optim.AdamW):
        pass

    model = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 7, bias=False))
    model[1].weight = model[0].weight
    optimizer = Mine(model.parameters(), lr=1e-3)
    state: dict[str, Any] = {}

    def count_in_ints(*_: Any) -> None:  # as optimizers of old did; runs before learnscope's own hook
        state.update(optimizer.state[model[0].weight])
        optimizer.state[model[0].weight]["step"] = int(state["step"])

    optimizer.register_step_post_hook(count_in_ints)
    with ls.watch(model, optimizer, probes=[ls.Momentum(every=1)], strict=True) as w:
        for step in range(3):
            if step:
                optimizer.state[model[0].weight]["step"] = torch.tensor(float(step))
            optimizer.zero_grad()
            model(torch.tensor([1, 2])).square().mean().backward()
            optimizer.step()
    m = array(state["exp_avg"]) / (1 - 0.9**3)
    assert values(w.run, PROBE, "first_moment_norm")[-1] == pytest.approx(norm([m]), rel=1e-9)
    assert list(at_scope(w.run, PROBE, "first_moment_norm", "layer")) == ["0"]
    assert values(w.run, PROBE, "without_state") == [0, 0, 0]


def test_a_nan_in_the_moments_is_null_and_says_so() -> None:
    model = mlp(4, 5, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    with ls.watch(model, optimizer, probes=[ls.Momentum(every=1)], strict=True) as w:
        model(torch.randn(3, 4)).square().mean().backward()
        model[2].weight.grad[0, 0] = math.nan
        optimizer.step()
    for name in ("first_moment_norm", "second_moment_mean", "effective_step_norm", "effective_step_max", "staleness"):
        frame = rows(w.run, PROBE, name, "layer").set_index("scope")
        assert frame.status["2"] == "nan"
        assert frame.value["0"] > 0
    assert "nan" in set(rows(w.run, PROBE, "snr", "layer").status)


def test_zeros() -> None:
    model = mlp(4, 5, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    nn.init.zeros_(model[2].bias)
    with ls.watch(model, optimizer, probes=[ls.Momentum(every=1)], strict=True) as w:
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        optimizer.step()
    assert values(w.run, PROBE, "first_moment_norm") == [0.0]
    assert list(rows(w.run, PROBE, "snr").status) == ["no entry has had a gradient yet"] * 2
    assert list(rows(w.run, PROBE, "staleness").status) == ["the moment or the gradient is 0"]


def test_the_median_is_weighted_by_what_a_sample_stands_for() -> None:
    """One small tensor of strong signal must not outvote a large one of weak signal."""
    model = nn.Sequential(nn.Linear(100, 100, bias=False), nn.Linear(100, 1, bias=False))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.0)
    with ls.watch(model, optimizer, probes=[ls.Momentum(every=50, sample_size=100)], strict=True) as w:
        for step in range(50):
            model[0].weight.grad = torch.full((100, 100), 1.0 if step % 2 else -1.0)
            model[1].weight.grad = torch.full((1, 100), 1.0 + step % 2)
            optimizer.step()
    layers = dict(zip(["0", "1"], values(w.run, PROBE, "snr", "layer", summary="median"), strict=True))
    assert layers["0"] < 0.2 < 2 < layers["1"]
    assert values(w.run, PROBE, "snr", summary="median") == [pytest.approx(layers["0"])]


def test_options_are_checked() -> None:
    with pytest.raises(ValueError, match="at least one entry"):
        ls.Momentum(sample_size=0)
    with pytest.raises(ValueError, match="optimizer"):
        ls.audit(mlp(3, 2), [(torch.randn(2, 3), torch.tensor([0, 1]))], probes=[ls.Momentum()])
