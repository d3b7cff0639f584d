"""Every number of GradientFlow against float64 NumPy on copies of the gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_  # bound before any watch, as in most people's code

import learnscope as ls
from probes.reference import (
    ConvNet,
    array,
    at_scope,
    by,
    component_of,
    failures,
    gradients,
    layer_of,
    mlp,
    norm,
    rows,
    tiny_gpt2,
    tokens,
    values,
)

PROBE = "GradientFlow"


def flow(**options: Any) -> list[ls.Probe]:
    return [ls.GradientFlow(**{"every": 1, "per_tensor": True, **options})]


def gpt2_loss(model: Any, seed: int = 0) -> Tensor:
    ids = tokens(3, 10, seed=seed)
    return model(input_ids=ids, labels=ids).loss


def conv_loss(model: nn.Module, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(6, 1, 8, 8, generator=generator)
    return F.cross_entropy(model(x), torch.randint(0, 3, (6,), generator=generator))


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[..., Tensor]]] = {
    "gpt2": (lambda: tiny_gpt2(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0), gpt2_loss),
    "conv": (ConvNet, conv_loss),
}


def check_norms(run: ls.Run, grads: dict[str, Any], stage: str, groups: dict[str, list[str]], rel: float) -> None:
    scopes = {
        "model": {"model": list(grads)},
        "layer": by(layer_of, grads),
        "component": by(component_of, grads),
        "group": groups,
        "tensor": {name: [name] for name in grads},
    }
    for kind, members in scopes.items():
        expected = {scope: norm([grads[name] for name in inside]) for scope, inside in members.items()}
        assert at_scope(run, PROBE, "norm", kind, stage=stage) == pytest.approx(expected, rel=rel), kind


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("max_norm", [None, 0.05, 1e9, float("inf")])
def test_norms_of_every_scope(kind: str, max_norm: float | None) -> None:
    make, loss_of = MODELS[kind]
    model = make()
    named = dict(model.named_parameters())
    decayed = [name for name, p in named.items() if p.ndim > 1]
    plain = [name for name, p in named.items() if p.ndim <= 1]
    groups = [
        {"params": [named[n] for n in decayed], "name": "decayed", "weight_decay": 0.1},
        {"params": [named[n] for n in plain], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-3)
    with ls.watch(model, optimizer, probes=flow(), strict=True) as w:
        for step in range(3):
            optimizer.zero_grad()
            loss_of(model, step).backward()
            before = gradients(model)
            if max_norm is not None:
                clip_grad_norm_(model.parameters(), max_norm)
            stepped = gradients(model)
            weights = {name: array(p) for name, p in named.items()}
            optimizer.step()
    members = {"decayed": decayed, "group_1": plain}
    check_norms(w.run, stepped, "stepped", members, 1e-6)
    assert values(w.run, PROBE, "without_gradient") == [0, 0, 0]
    ratios = {
        scope: norm([before[n] for n in inside]) / norm([weights[n] for n in inside])
        for scope, inside in by(layer_of, before).items()
    }
    assert at_scope(w.run, PROBE, "gradient_to_weight", "layer") == pytest.approx(ratios, rel=1e-6)
    zeros = {
        scope: np.mean(np.concatenate([before[n].ravel() == 0 for n in inside]))
        for scope, inside in by(layer_of, before).items()
    }
    assert at_scope(w.run, PROBE, "zero_share", "layer") == pytest.approx(zeros, abs=1e-12)
    if max_norm is None:
        assert rows(w.run, PROBE, "norm").stage.unique().tolist() == ["stepped"]
        assert values(w.run, PROBE, "clip_coefficient") == []
        return
    check_norms(w.run, before, "before_clip", members, 1e-6)
    expected = min(max_norm / (norm(before.values()) + 1e-6), 1.0)
    assert values(w.run, PROBE, "clip_coefficient")[-1] == pytest.approx(expected, rel=1e-6)


def test_zero_gradients_are_counted() -> None:
    """GPT-2 that saw few tokens: most rows of the embedding have no gradient."""
    model = tiny_gpt2(tie_word_embeddings=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ls.watch(model, optimizer, probes=flow(), strict=True) as w:
        gpt2_loss(model).backward()
        seen = gradients(model)
        optimizer.step()
    flat = np.concatenate([g.ravel() for g in seen.values()])
    assert values(w.run, PROBE, "zero_share") == [pytest.approx(np.mean(flat == 0), abs=1e-12)]
    layers = at_scope(w.run, PROBE, "zero_share", "layer")
    assert layers["transformer.wte"] == pytest.approx(np.mean(seen["transformer.wte.weight"] == 0), abs=1e-12)
    assert layers["transformer.wte"] > 0.1


def test_several_clips_of_different_groups_in_one_step() -> None:
    model = mlp(4, 6, 5, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ls.watch(model, optimizer, probes=flow(), strict=True) as w:
        (model(torch.randn(8, 4)).square().mean() * 50).backward()
        before = gradients(model)
        clip_grad_norm_(model[0].parameters(), 0.3)
        clip_grad_norm_(model[2].parameters(), 0.02)
        clip_grad_norm_(model[2].weight, 0.01)  # the same once more, a single tensor
        stepped = gradients(model)
        optimizer.step()
    names = {"group_0": list(before)}
    check_norms(w.run, before, "before_clip", names, 1e-6)
    check_norms(w.run, stepped, "stepped", names, 1e-6)
    smallest = min(norm([stepped[n]]) / norm([before[n]]) for n in before)
    assert values(w.run, PROBE, "clip_coefficient") == [pytest.approx(smallest, rel=1e-6)]
    assert smallest < 0.02


def test_other_norm_types_and_a_norm_computed_apart() -> None:
    for clip in (
        lambda p: clip_grad_norm_(p, 0.01, norm_type=float("inf")),
        lambda p: clip_grad_norm_(p, 0.01, norm_type=1.0, foreach=False),
        lambda p: torch.nn.utils.clip_grads_with_norm_(list(p), 0.01, torch.tensor(0.5)),
    ):
        model = mlp(4, 6, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with ls.watch(model, optimizer, probes=flow(), strict=True) as w:
            (model(torch.randn(8, 4)).square().mean() * 50).backward()
            before = gradients(model)
            clip(model.parameters())
            stepped = gradients(model)
            optimizer.step()
        check_norms(w.run, before, "before_clip", {"group_0": list(before)}, 1e-6)
        check_norms(w.run, stepped, "stepped", {"group_0": list(before)}, 1e-6)
        assert norm(stepped.values()) < norm(before.values())


def test_clipping_every_micro_batch() -> None:
    """A clip, then another backward, then a clip: what the optimizer gets is not the first gradient scaled."""
    model = mlp(4, 6, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ls.watch(model, optimizer, probes=flow(), strict=True) as w:
        for _ in range(2):
            optimizer.zero_grad()
            for _ in range(3):
                (model(torch.randn(8, 4)).square().mean() * 50).backward()
                before = gradients(model)
                clip_grad_norm_(model.parameters(), 0.2)
            stepped = gradients(model)
            optimizer.step()
    check_norms(w.run, stepped, "stepped", {"group_0": list(before)}, 1e-6)
    check_norms(w.run, before, "before_clip", {"group_0": list(before)}, 1e-6)


def test_a_backward_after_the_clip_is_not_left_out() -> None:
    model = mlp(4, 6, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ls.watch(model, optimizer, probes=flow(), strict=True) as w:
        (model(torch.randn(8, 4)).square().mean() * 50).backward()
        clip_grad_norm_(model.parameters(), 0.2)
        model(torch.randn(8, 4)).square().mean().backward()
        stepped = gradients(model)
        optimizer.step()
    check_norms(w.run, stepped, "stepped", {"group_0": list(stepped)}, 1e-6)


class Poisoned(nn.Module):
    """Four layers; `spoil` is applied to the gradient of the output of layer `at`."""

    def __init__(self, at: int, spoil: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(5, 5) for _ in range(4)])
        self.at, self.spoil, self.armed = at, spoil, False

    def forward(self, x: Tensor) -> Tensor:
        for number, layer in enumerate(self.layers):
            x = torch.tanh(layer(x))
            if self.armed and number == self.at and x.requires_grad:
                x.register_hook(self.spoil)
        return x


def spoiled_entry(value: float) -> Callable[[Tensor], Tensor]:
    def spoil(gradient: Tensor) -> Tensor:
        gradient = gradient.clone()
        gradient[0, 0] = value
        return gradient

    return spoil


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_the_first_bad_tensor_in_backward_order_is_named(at: int, bad: float, clip: bool) -> None:
    """Clipping spreads one NaN to every gradient; what is named is where it came in."""
    model = Poisoned(at, spoiled_entry(bad))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    order: list[str] = []
    for name, p in model.named_parameters():
        p.register_hook(lambda _g, name=name: order.append(name))
    with ls.watch(model, optimizer, probes=flow(), strict=True) as w:
        for step in range(2):
            optimizer.zero_grad()
            model.armed = step == 1
            order.clear()
            model(torch.randn(3, 5)).sum().backward()
            seen = gradients(model)
            if clip:
                clip_grad_norm_(model.parameters(), 1.0)
            spread = gradients(model)
            optimizer.step()
    wrong = [name for name in order if not np.isfinite(seen[name]).all()]
    assert wrong[0].startswith(f"layers.{at}."), "the test itself: the first bad tensor is in the spoiled layer"
    if clip and np.isnan(bad):
        assert all(np.isnan(g).all() for g in spread.values()), "the test itself: clipping spreads it"
    named = rows(w.run, PROBE, "first_nonfinite", "tensor")
    assert list(named.step) == [2], "nothing is named while all is well"
    assert list(named.scope) == [wrong[0]]
    assert list(named.value) == [np.sum(~np.isfinite(seen[wrong[0]]))]
    assert values(w.run, PROBE, "nonfinite_tensors") == [0, len(wrong)]
    flat = np.concatenate([g.ravel() for g in seen.values()])
    assert values(w.run, PROBE, "nan")[1] == np.isnan(flat).sum()
    assert values(w.run, PROBE, "inf")[1] == np.isinf(flat).sum()
    stage = "before_clip" if clip else "stepped"
    overall = rows(w.run, PROBE, "norm", stage=stage).iloc[1]
    assert np.isnan(overall.value)
    assert overall.status == ("nan" if np.isnan(flat).any() else "inf")
    untouched = at_scope(w.run, PROBE, "norm", "tensor", stage=stage)
    for name in set(order) - set(wrong):
        assert untouched[name] == pytest.approx(norm([seen[name]]), rel=1e-6)


def test_a_nan_weight_in_the_middle() -> None:
    """A NaN weight makes the loss NaN, and then every gradient: the first in backward order is the last layer's."""
    model = mlp(4, 5, 5, 2)
    with torch.no_grad():
        model[2].weight[1, 1] = float("nan")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with ls.watch(model, optimizer, probes=flow(), strict=True) as w:
        model(torch.randn(3, 4)).square().mean().backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    assert rows(w.run, PROBE, "first_nonfinite", "tensor").scope.iloc[0].startswith("4.")
    ratio = rows(w.run, PROBE, "gradient_to_weight", "layer")
    assert list(ratio.status) == ["nan"] * 3


def test_records_that_wait_for_a_device_are_finished_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """On an accelerator every-step records are read later; what depends on their numbers must not get lost."""
    from learnscope.session import engine

    monkeypatch.setattr(engine, "waits_for_device", lambda _measured: True)
    model = Poisoned(1, spoiled_entry(float("nan")))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

    class Keeps(ls.Probe):
        def measure(self, moment: ls.Moment) -> ls.Measurement:
            table = ls.Table("model", ["model"], [ls.Column("one", torch.ones(1))])
            return ls.Measurement([table], arrays={"step": torch.tensor([moment.step])})

    with ls.watch(model, optimizer, probes=[*flow(per_tensor=False), Keeps()], strict=True) as w:
        for step in range(3):
            optimizer.zero_grad()
            model.armed = step == 2
            model(torch.randn(3, 5)).sum().backward()
            optimizer.step()
    named = rows(w.run, PROBE, "first_nonfinite", "tensor")
    assert list(named.step) == [3]
    assert list(named.scope) == ["layers.1.bias"]
    assert w.run.array_steps("Keeps") == [1, 2, 3]
    assert w.run.arrays("Keeps", 2)["step"].tolist() == [2]


def test_frozen_parameters_and_parameters_without_a_gradient() -> None:
    """Neither has a norm; only trainable ones are missed."""

    class Parts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused, self.frozen = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
            self.frozen.requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(self.frozen(x))

    model = Parts()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ls.watch(model, optimizer, probes=flow(), strict=True) as w:
        model(torch.randn(8, 4)).square().mean().backward()
        seen = gradients(model)
        optimizer.step()
    assert values(w.run, PROBE, "without_gradient") == [2]
    for kind, scopes in {"layer": ["used"], "component": ["used"], "tensor": ["used.weight", "used.bias"]}.items():
        assert sorted(at_scope(w.run, PROBE, "norm", kind)) == sorted(scopes)
    assert values(w.run, PROBE, "norm") == [pytest.approx(norm(seen.values()), rel=1e-6)]


def test_no_gradients_at_all() -> None:
    model = mlp(4, 5, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ls.watch(model, optimizer, probes=flow(stability=True), strict=True) as w:
        optimizer.step()
        model(torch.randn(3, 4)).sum().backward()
        optimizer.step()
    overall = rows(w.run, PROBE, "norm")
    assert overall.status.iloc[0] == "no parameter has a gradient"
    assert list(overall.value.isna()) == [True, False]
    assert values(w.run, PROBE, "without_gradient") == [4, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("size", [1e-25, 1e25])
def test_tiny_and_huge_gradients(size: float, dtype: torch.dtype) -> None:
    model = mlp(4, 30, 2, dtype=dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with ls.watch(model, optimizer, probes=flow(), strict=True) as w:
        for p in model.parameters():
            p.grad = (torch.randn(p.shape, dtype=torch.float64) * size).to(dtype)
        seen = gradients(model)
        optimizer.step()
    check_norms(w.run, seen, "stepped", {"group_0": list(seen)}, 1e-6)
    assert values(w.run, PROBE, "norm")[0] > 0


def test_zero_weights_have_no_ratio() -> None:
    model = mlp(4, 5, 2)
    nn.init.zeros_(model[2].weight)
    nn.init.zeros_(model[2].bias)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ls.watch(model, optimizer, probes=flow(), strict=True) as w:
        (model(torch.randn(3, 4)) - 1).square().mean().backward()
        optimizer.step()
    frame = rows(w.run, PROBE, "gradient_to_weight", "layer").set_index("scope")
    assert frame.value["0"] == 0.0  # nothing flows through zero weights
    assert np.isnan(frame.value["2"])
    assert frame.status["2"] == "inf"


@pytest.mark.parametrize(
    ("every", "expected"), [(1, [*range(1, 11), 14, 21]), (3, [*range(3, 24, 3)]), (7, [7, 14, 21])]
)
def test_the_weights_are_looked_at_now_and_then(every: int, expected: list[int]) -> None:
    """At the first ten measurements, then at multiples of `weights_every`; each ratio is that of its own step."""
    model = mlp(4, 5, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    ratios: dict[int, float] = {}
    with ls.watch(model, optimizer, probes=flow(every=every, weights_every=7), strict=True) as w:
        for step in range(1, 24):
            optimizer.zero_grad()
            model(torch.randn(3, 4)).square().mean().backward()
            ratios[step] = norm(p.grad for p in model[0].parameters()) / norm(model[0].parameters())
            optimizer.step()
    frame = rows(w.run, PROBE, "gradient_to_weight", "layer")
    mine = frame[frame.scope == "0"]
    assert list(mine.step) == expected
    assert list(mine.value) == pytest.approx([ratios[step] for step in expected], rel=1e-6)


def test_tied_weights_count_once() -> None:
    model = tiny_gpt2()
    assert model.lm_head.weight is model.transformer.wte.weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ls.watch(model, optimizer, probes=flow(), strict=True) as w:
        gpt2_loss(model).backward()
        seen = gradients(model)
        optimizer.step()
    assert "lm_head.weight" not in seen
    check_norms(w.run, seen, "stepped", {"group_0": list(seen)}, 1e-6)


def test_sparse_gradients() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(50, 6, sparse=True), nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.table(x).mean(1))

    model = Words()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ls.watch(model, optimizer, probes=flow(stability=True), strict=True) as w:
        for step in range(2):
            optimizer.zero_grad()
            # a word that comes twice gives two entries at one place, to be added before they are squared
            model(torch.tensor([[3, 3, 7 + step]])).square().sum().backward()
            assert model.table.weight.grad is not None
            assert model.table.weight.grad.is_sparse
            seen = gradients(model)
            optimizer.step()
    check_norms(w.run, seen, "stepped", {"group_0": list(seen)}, 1e-6)
    share = at_scope(w.run, PROBE, "zero_share", "layer")["table"]
    assert share == pytest.approx(np.mean(seen["table.weight"] == 0), abs=1e-12)
    assert share >= 48 / 50


def test_a_bf16_model_with_clipping() -> None:
    model = tiny_gpt2().to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with ls.watch(model, optimizer, probes=flow(), strict=True) as w:
        gpt2_loss(model).backward()
        before = gradients(model)
        clip_grad_norm_(model.parameters(), 0.1)
        stepped = gradients(model)
        optimizer.step()
    groups = {"group_0": list(before)}
    check_norms(w.run, before, "before_clip", groups, 1e-5)
    check_norms(w.run, stepped, "stepped", groups, 4e-3)  # torch rounds each clipped entry to bf16: 2⁻⁹


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("clip", [False, True])
def test_the_loss_scale_is_divided_out(fused: bool, clip: bool) -> None:
    def run(scaled: bool) -> tuple[ls.Run, dict[str, Any]]:
        torch.manual_seed(0)
        model = mlp(4, 6, 2)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**11, enabled=scaled)
        with ls.watch(model, optimizer, probes=flow(), strict=True) as w:
            for _ in range(3):
                optimizer.zero_grad()
                scaler.scale(model(torch.randn(8, 4)).square().mean() * 9).backward()
                seen = gradients(model)
                if clip:
                    scaler.unscale_(optimizer)
                    clip_grad_norm_(model.parameters(), 0.5)
                scaler.step(optimizer)
                scaler.update()
        return w.run, seen

    scaled, _ = run(True)
    plain, seen = run(False)
    for stage in ("stepped", "before_clip") if clip else ("stepped",):
        for kind in ("model", "layer", "tensor"):
            expected = values(plain, PROBE, "norm", kind, stage=stage)
            assert values(scaled, PROBE, "norm", kind, stage=stage) == pytest.approx(expected, rel=1e-5)
    stage = "before_clip" if clip else "stepped"
    assert values(scaled, PROBE, "norm", stage=stage)[-1] == pytest.approx(norm(seen.values()), rel=1e-5)
    ratio = values(plain, PROBE, "gradient_to_weight", "layer")
    assert values(scaled, PROBE, "gradient_to_weight", "layer") == pytest.approx(ratio, rel=1e-5)


def test_one_firing_a_step_with_accumulation() -> None:
    model = mlp(4, 6, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ls.watch(model, optimizer, probes=flow(every=2), strict=True) as w:
        expected = []
        for step in range(1, 7):
            optimizer.zero_grad()
            for _ in range(3):
                (model(torch.randn(8, 4)).square().mean() / 3).backward()
            if step % 2 == 0:
                expected.append(norm(gradients(model).values()))
            optimizer.step()
    frame = rows(w.run, PROBE, "norm")
    assert list(frame.step) == [2, 4, 6]
    assert list(frame.value) == pytest.approx(expected, rel=1e-6)


def test_a_group_added_while_training_is_seen() -> None:
    """Gradual unfreezing: a layer thaws and joins the optimizer."""
    model = mlp(4, 6, 2)
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1)
    with ls.watch(model, optimizer, probes=[*flow(), ls.LearningRate(every=1)], strict=True) as w:
        for step in range(4):
            if step == 2:
                model[0].requires_grad_(True)
                optimizer.add_param_group({"params": list(model[0].parameters()), "lr": 0.01, "name": "thawed"})
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            seen = gradients(model)
            optimizer.step()
    assert failures(w.run) == []
    members = {"group_0": ["2.weight", "2.bias"], "thawed": ["0.weight", "0.bias"]}
    check_norms(w.run, seen, "stepped", members, 1e-6)
    assert at_scope(w.run, "LearningRate", "learning_rate", "group") == {"group_0": 0.1, "thawed": 0.01}


# ---- stability


def cosine(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> float:
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


@contextmanager
def given_gradients(model: nn.Module, grads: dict[str, Tensor]) -> Iterator[None]:
    for name, p in model.named_parameters():
        p.grad = grads[name].clone()
    yield


def test_stability_is_the_cosine_with_the_last_measured_gradient() -> None:
    """Within the error that is stated beside it; the exact answer for two parallel gradients."""
    model = nn.Sequential(nn.Linear(60, 50), nn.Linear(50, 40))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    generator = torch.Generator().manual_seed(4)

    def draw() -> dict[str, Tensor]:
        return {name: torch.randn(p.shape, generator=generator) for name, p in model.named_parameters()}

    first = draw()
    noise = draw()
    second = {name: 0.8 * first[name] + 0.6 * noise[name] for name in first}
    third = {name: -5.0 * second[name] for name in first}
    history = [first, second, third]
    with ls.watch(model, optimizer, probes=flow(stability=True), strict=True) as w:
        for grads in history:
            with given_gradients(model, grads):
                optimizer.step()
    frame, errors = (rows(w.run, PROBE, name, "layer") for name in ("stability", "stability_error"))
    assert sorted(frame.step.unique()) == [2, 3], "the first gradient has nothing to be compared with"
    for layer in ("0", "1"):
        old, new = (
            np.concatenate([array(g[f"{layer}.{part}"]).ravel() for part in ("weight", "bias")])
            for g in (first, second)
        )
        exact = cosine(old, new)
        assert 0.75 < exact < 0.85
        mine, error = frame[frame.scope == layer].set_index("step").value, errors[errors.scope == layer]
        stated = error.set_index("step").value
        assert stated[2] == pytest.approx(1.96 * (1 - exact**2) / np.sqrt(1021), rel=0.15)
        assert mine[2] == pytest.approx(exact, abs=2 * stated[2])
        assert mine[3] == pytest.approx(-1.0, abs=1e-6)
        assert stated[3] == pytest.approx(0.0, abs=1e-6)


def test_the_stability_of_small_tensors_is_exact() -> None:
    model = nn.Linear(30, 20)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    history = [{name: torch.randn(p.shape) for name, p in model.named_parameters()} for _ in range(2)]
    with ls.watch(model, optimizer, probes=flow(stability=True), strict=True) as w:
        for grads in history:
            with given_gradients(model, grads):
                optimizer.step()
    old, new = (np.concatenate([array(g[name]).ravel() for name in ("weight", "bias")]) for g in history)
    assert values(w.run, PROBE, "stability_error", "layer") == [0.0]
    assert values(w.run, PROBE, "stability", "layer") == [pytest.approx(cosine(old, new), abs=1e-7)]


def test_a_gradient_without_a_direction_has_no_stability() -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    one, zero, nan = ({name: torch.full_like(p, v) for name, p in model.named_parameters()} for v in (1.0, 0.0, np.nan))
    with ls.watch(model, optimizer, probes=flow(stability=True), strict=True) as w:
        for grads in (one, zero, zero, one, nan, one):
            with given_gradients(model, grads):
                optimizer.step()
    for name in ("stability", "stability_error"):
        frame = rows(w.run, PROBE, name, "layer")
        assert frame.value.isna().all()
        assert list(frame.status) == [
            "its gradient is 0: it has no direction", "its gradient is 0: it has no direction",
            "its gradient is or was 0 or not finite", "its gradient is not finite",
            "its gradient is or was 0 or not finite",
        ]  # fmt: skip


def test_stability_across_a_resume(tmp_path: Any) -> None:
    model = nn.Linear(30, 20)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    grads = {name: torch.randn(p.shape) for name, p in model.named_parameters()}
    w = ls.watch(model, optimizer, run=tmp_path / "r", probes=flow(stability=True), strict=True)
    with given_gradients(model, grads):
        optimizer.step()
    w.save_state()
    w.close()
    with (
        ls.watch(
            model, optimizer, run=tmp_path / "r", probes=flow(stability=True), strict=True, resume=True, step=1
        ) as again,
        given_gradients(model, {name: -g for name, g in grads.items()}),
    ):
        optimizer.step()
    frame = rows(again.run, PROBE, "stability", "layer")
    assert list(frame.step) == [2]
    assert list(frame.value) == [pytest.approx(-1.0, abs=1e-6)]


def test_stability_after_other_parameters_got_gradients() -> None:
    """Nothing is compared with a gradient of other parameters."""
    model = mlp(4, 6, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with ls.watch(model, optimizer, probes=flow(stability=True), strict=True) as w:
        for frozen in (False, True, True):
            model[0].requires_grad_(not frozen)
            optimizer.zero_grad()
            model(torch.ones(3, 4)).square().mean().backward()
            optimizer.step()
    frame = rows(w.run, PROBE, "stability", "layer")
    assert list(zip(frame.step, frame.scope, strict=True)) == [(3, "2")]
    assert frame.value.iloc[0] == pytest.approx(1.0, abs=1e-6)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(4, 5, 2, bidirectional=True, batch_first=True), nn.Linear(10, 2)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.lstm(x)[0][:, -1])
        return found


def test_the_layers_of_an_lstm() -> None:
    torch.manual_seed(0)
    model = Recurrent()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    probes = [*flow(), ls.ParameterChange(every=1), ls.FeatureEvolution(at="once")]
    batch = (torch.randn(20, 3, 4), torch.arange(20) % 2)
    with ls.watch(model, optimizer, probes=probes, holdout=[batch], strict=True) as w:
        model(batch[0]).square().mean().backward()
        before = gradients(model)
        optimizer.step()
    ends = {f"lstm.l{i}": (f"_l{i}", f"_l{i}_reverse") for i in range(2)}
    expected = {layer: norm(g for name, g in before.items() if name.endswith(end)) for layer, end in ends.items()}
    found = at_scope(w.run, PROBE, "norm", "layer", stage="stepped")
    assert {layer: found[layer] for layer in expected} == pytest.approx(expected, rel=1e-6)
    assert set(found) == {"lstm.l0", "lstm.l1", "head"}
    assert set(at_scope(w.run, "ParameterChange", "l2", "layer")) == set(found)
    assert w.run.manifest["model"]["layer_types"] == {"lstm.l0": "LSTM", "lstm.l1": "LSTM", "head": "Linear"}
    assert set(w.run.frame("FeatureEvolution").scope) == {"lstm"}, "features are those of modules"
