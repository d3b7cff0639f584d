"""The quality of truncated updates, against NumPy's singular value decomposition in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import rel_entr, softmax
from torch import Tensor, nn

import learnscope as ls
from learnscope.model.weights import swap
from probes.reference import ConvNet, at_scope, component_of, layer_of, mlp, rows, tiny_gpt2, tokens

PROBE = "LowRankQuality"


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def classes(n: int, features: int, kinds: int) -> tuple[Tensor, Tensor]:
    return noise(n, features, seed=9), torch.arange(n) % kinds


def changed(
    model: nn.Module, deltas: Mapping[str, Tensor], holdout: list[Any], around: Any = None, **options: Any
) -> ls.Run:
    """One step of plain SGD that adds exactly these deltas, watched."""
    parameters = dict(model.named_parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    probe = ls.LowRankQuality(every=1, **options)
    with ls.watch(model, optimizer, probes=[probe], holdout=holdout, strict=True) as w:
        for name, delta in deltas.items():
            parameters[name].grad = -delta.to(parameters[name])
        if around is None:
            optimizer.step()
        else:
            with around:
                optimizer.step()
    return w.run


def value(run: ls.Run, name: str, **labels: Any) -> float:
    (found,) = rows(run, PROBE, name, "model", **labels).value
    return float(found)


def status(run: ls.Run, name: str, kind: str = "model", **labels: Any) -> dict[str, str]:
    frame = rows(run, PROBE, name, kind, **labels)
    return dict(zip(frame.scope, frame.status, strict=True))


def cut(delta: np.ndarray, rank: int) -> np.ndarray:
    flat = delta.reshape(len(delta), -1)
    u, s, v = np.linalg.svd(flat, full_matrices=False)
    return ((u[:, :rank] * s[:rank]) @ v[:rank]).reshape(delta.shape)


def state(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def variant_of(model: nn.Module, old: Mapping[str, Tensor], rank: int, make: Callable[[], nn.Module]) -> nn.Module:
    """A float64 model whose matrices have the update cut by NumPy, and whose vectors have it whole."""
    other = make().double()
    with torch.no_grad():
        for (name, target), now in zip(other.named_parameters(), model.parameters(), strict=True):
            target.copy_(now)
            if now.ndim > 1:
                a, b = old[name].double().numpy(), now.detach().double().numpy()
                target.copy_(torch.from_numpy(a + cut(b - a, rank)))
        for target, source in zip(other.buffers(), model.buffers(), strict=True):
            target.copy_(source)
    return other.eval()


def random_deltas(model: nn.Module, size: float = 0.1, seed: int = 3) -> dict[str, Tensor]:
    return {n: size * noise(*p.shape, seed=seed + i) for i, (n, p) in enumerate(model.named_parameters())}


def check_outputs(run: ls.Run, rank: int, a: np.ndarray, b: np.ndarray, truth: np.ndarray, rel: float = 1e-3) -> None:
    kl = rel_entr(softmax(a, 1), softmax(b, 1)).sum(1)
    right = [logits.argmax(1) == truth for logits in (a, b)]
    expected = {
        "kl": kl.mean(), "kl_median": np.median(kl), "kl_p99": np.quantile(kl, 0.99), "mse": ((a - b) ** 2).mean(),
        "cosine": ((a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)).mean(),
        "top1_agree": (a.argmax(1) == b.argmax(1)).mean(),
        "broke": (right[0] & ~right[1]).mean(), "mended": (~right[0] & right[1]).mean(),
    }  # fmt: skip
    for name, number in expected.items():
        assert value(run, name, rank=rank) == pytest.approx(number, rel=rel, abs=1e-9), (name, rank)
    assert expected["kl"] > 1e-6, "the variant differs"


def test_an_update_of_rank_three() -> None:
    model = mlp(12, 20, 16, 5)
    deltas = {
        name: 0.3 * noise(len(p), 3, seed=i) @ noise(3, p.shape[1], seed=i + 50) / 3
        for i, (name, p) in enumerate(model.named_parameters())
        if p.ndim == 2
    }
    run = changed(model, deltas, [classes(40, 12, 5)], ranks=(1, 2, 3, 4, 8))
    energy = {rank: value(run, "energy_captured", rank=rank) for rank in (1, 2, 3, 4, 8)}
    assert energy[1] < energy[2] < 0.999
    assert [energy[rank] for rank in (3, 4, 8)] == pytest.approx([1, 1, 1], abs=1e-6)
    assert value(run, "kl", rank=0) > value(run, "kl", rank=2) > 1e-3
    for rank in (3, 4, 8):
        assert value(run, "kl", rank=rank) < 1e-10
        assert value(run, "top1_agree", rank=rank) == 1
    assert value(run, "recommended_rank") == 3
    assert set(at_scope(run, PROBE, "rank_for_energy", "tensor").values()) <= {1, 2, 3}
    again = changed(mlp(12, 20, 16, 5), deltas, [classes(40, 12, 5)], ranks=(1, 2, 4, 8))
    assert value(again, "recommended_rank", kl_bound=1e-3) == 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_against_numpy(dtype: torch.dtype) -> None:
    make = lambda: mlp(6, 9, 8, 4, dtype=dtype)  # noqa: E731 - it is made twice
    torch.manual_seed(0)
    model = make()
    old = state(model)
    x, y = classes(30, 6, 4)
    batches = [(x[:20].to(dtype), y[:20]), (x[20:].to(dtype), y[20:])]
    run = changed(model, random_deltas(model), batches, ranks=(1, 2, 4), examples=27)
    x, y = x[:27].double(), y[:27].numpy()
    with torch.no_grad():
        a = variant_of(model, old, 99, make)(x).numpy()
        for rank in (0, 1, 2):
            check_outputs(run, rank, a, variant_of(model, old, rank, make)(x).numpy(), y)
    assert all(torch.equal(p, old[n] + random_deltas(model)[n].to(dtype)) for n, p in model.named_parameters())
    sigma = {
        n: np.linalg.svd(p.detach().double().numpy() - old[n].double().numpy(), compute_uv=False)
        for n, p in model.named_parameters()
        if p.ndim == 2
    }
    whole = sum((s**2).sum() for s in sigma.values())
    for rank in (1, 2, 4):
        held = sum((s[:rank] ** 2).sum() for s in sigma.values())
        assert value(run, "energy_captured", rank=rank) == pytest.approx(held / whole, rel=1e-5)
        layers = at_scope(run, PROBE, "energy_captured", "layer", rank=rank)
        assert layers == pytest.approx(
            {n.split(".")[0]: (s[:rank] ** 2).sum() / (s**2).sum() for n, s in sigma.items()}, rel=1e-5
        )
    assert at_scope(run, PROBE, "stable_rank", "tensor") == pytest.approx(
        {n: (s**2).sum() / s[0] ** 2 for n, s in sigma.items()}, rel=1e-5
    )
    assert at_scope(run, PROBE, "rank_for_energy", "tensor", energy=0.9) == {
        n: int(((s**2).cumsum() / (s**2).sum() < 0.9).sum()) + 1 for n, s in sigma.items()
    }
    (record,) = run.records()
    copies = sum(p.nbytes for p in model.parameters() if p.ndim == 2)
    factors = sum(sum(p.shape) * 4 * p.element_size() for p in model.parameters() if p.ndim == 2)
    assert record.notes["extra_memory"] == copies + factors
    assert record.notes["span"] == [0, 1]


def test_convolutions() -> None:
    torch.manual_seed(1)
    model = ConvNet().to(memory_format=torch.channels_last)
    old = state(model)
    x, y = noise(12, 1, 8, 8, seed=4), torch.arange(12) % 3
    run = changed(model, random_deltas(model, 0.3), [(x, y)], ranks=(1, 2, 3, 6))
    with torch.no_grad():
        a = variant_of(model, old, 99, ConvNet)(x.double()).numpy()
        for rank in (0, 1, 2):
            check_outputs(run, rank, a, variant_of(model, old, rank, ConvNet)(x.double()).numpy(), y.numpy())
    assert list(at_scope(run, PROBE, "stable_rank", "tensor")) == ["conv1.weight", "conv2.weight", "head.weight"]
    assert value(run, "kl", rank=6) == 0, "no matrix has a higher rank: these are the weights themselves"
    assert value(run, "energy_captured", rank=6) == 1


def test_gpt2_with_padding() -> None:
    torch.manual_seed(2)
    model = tiny_gpt2()
    old = state(model)
    ids = tokens(4, 10)
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    mask[3, 3:] = 0
    batch = {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}
    run = changed(model, random_deltas(model, 0.05), [batch], ranks=(1, 4, 8))
    keep = mask[:, 1:].bool()
    truth = ids[:, 1:][keep].numpy()

    def logits(rank: int) -> np.ndarray:
        with torch.no_grad():
            out = variant_of(model, old, rank, tiny_gpt2)(ids, attention_mask=mask).logits
        return out[:, :-1][keep].numpy()

    for rank in (0, 1, 4):
        check_outputs(run, rank, logits(99), logits(rank), truth)
    matrices = [n for n, p in model.named_parameters() if p.ndim == 2]
    assert list(at_scope(run, PROBE, "stable_rank", "tensor")) == matrices, "tied weights once, Conv1D and embeddings"
    assert set(at_scope(run, PROBE, "energy_captured", "layer", rank=4)) == {layer_of(n) for n in matrices}
    assert set(at_scope(run, PROBE, "energy_captured", "component", rank=4)) == {component_of(n) for n in matrices}


def test_bfloat16_weights() -> None:
    torch.manual_seed(3)
    model = mlp(8, 12, 10, 4, dtype=torch.bfloat16)
    old = state(model)
    x, y = classes(24, 8, 4)
    run = changed(model, random_deltas(model, 0.3), [(x.bfloat16(), y)], ranks=(1, 2, 8))
    now = state(model)
    for rank in (0, 1, 2):
        with torch.no_grad():
            other = variant_of(model, old, rank, lambda: mlp(8, 12, 10, 4)).bfloat16()
            a, b = (m(x.bfloat16()).double().numpy() for m in (model, other))
        # a last bit of a weight may round the other way in float32
        kl = rel_entr(softmax(a, 1), softmax(b, 1)).sum(1).mean()
        assert value(run, "kl", rank=rank) == pytest.approx(kl, rel=0.05), rank
    assert all(torch.equal(p, now[n]) and p.dtype == torch.bfloat16 for n, p in model.named_parameters())


def test_inside_the_users_autocast() -> None:
    """The casts that autocast keeps of the weights must not outlive an exchange of the weights."""
    x, y = classes(24, 8, 4)
    runs = []
    for around in (None, torch.autocast("cpu", torch.bfloat16)):
        torch.manual_seed(4)
        model = mlp(8, 12, 10, 4)
        runs.append(changed(model, random_deltas(model, 0.3), [(x, y)], around, ranks=(1, 2, 10)))
    plain, inside = runs
    assert value(inside, "energy_captured", rank=2) == value(plain, "energy_captured", rank=2)
    for rank in (0, 1, 2):
        assert value(inside, "kl", rank=rank) == pytest.approx(value(plain, "kl", rank=rank), rel=0.1)
        assert value(inside, "kl", rank=rank) != value(plain, "kl", rank=rank), "it did run in bfloat16"
    assert value(inside, "kl", rank=10) == 0


def test_frozen_parameters_are_only_counted() -> None:
    model = mlp(6, 9, 8, 4)
    model[0].requires_grad_(False)
    deltas = {n: d for n, d in random_deltas(model).items() if n == "2.weight"}
    run = changed(model, deltas, [classes(12, 6, 4)], ranks=(1, 2))
    found = at_scope(run, PROBE, "stable_rank", "tensor")
    assert list(found) == ["2.weight", "4.weight"]
    assert status(run, "stable_rank", "tensor")["4.weight"] == "it did not change"
    assert (value(run, "decomposed"), value(run, "unchanged"), value(run, "undecomposed")) == (1, 2, 0)
    assert status(run, "energy_captured", "layer", rank=1)["4"] == "no matrix of it changed"


@pytest.mark.parametrize("make", [lambda: mlp(6, 9, 4), lambda: nn.Sequential(nn.LayerNorm(6))])
def test_a_model_that_did_not_change(make: Callable[[], nn.Module]) -> None:
    """Also one that has no matrix at all."""
    run = changed(make(), {}, [classes(12, 6, 4)], ranks=(2, 4))
    for rank in (0, 2, 4):
        assert (value(run, "kl", rank=rank), value(run, "top1_agree", rank=rank)) == (0, 1)
    assert math.isnan(value(run, "energy_captured", rank=2))
    assert status(run, "energy_captured", rank=2) == {"model": "no matrix of it changed"}
    assert value(run, "recommended_rank") == 2
    (record,) = run.records()
    assert record.notes["extra_memory"] == 0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_an_update_that_is_not_finite_is_kept_whole(bad: float) -> None:
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 4), nn.Embedding(5, 3))  # the last is not run
    model.forward = lambda x: model[2](model[1](model[0](x)))  # type: ignore[method-assign]
    deltas = random_deltas(model)
    deltas["3.weight"][2, 1] = bad
    run = changed(model, deltas, [classes(12, 6, 4)], ranks=(1, 2))
    (record,) = run.records()
    assert record.notes["undecomposed"] == ["3.weight"]
    assert value(run, "undecomposed") == 1
    assert value(run, "kl", rank=1) > 0
    assert 0 < value(run, "energy_captured", rank=1) < 1
    assert status(run, "energy_captured", "layer", rank=1)["3"] == "its update has entries that are not finite"
    assert status(run, "stable_rank", "tensor")["3.weight"] == "its update has entries that are not finite"
    assert not model[3].weight.isfinite().all(), "it is as training left it"


def test_nan_logits_are_no_crash() -> None:
    model = mlp(6, 9, 4)
    deltas = random_deltas(model)
    deltas["0.bias"][0] = math.nan
    run = changed(model, deltas, [classes(12, 6, 4)], ranks=(1, 2))
    assert status(run, "kl", rank=1) == {"model": "nan"}
    assert status(run, "recommended_rank") == {"model": "the KL is NaN at every rank"}
    assert value(run, "top1_agree", rank=1) == 0


def test_no_rank_is_enough() -> None:
    model = mlp(6, 9, 8, 4)
    run = changed(model, random_deltas(model, 2.0), [classes(12, 6, 4)], ranks=(1, 2), kl_bound=1e-9)
    assert math.isnan(value(run, "recommended_rank", kl_bound=1e-9))
    (reason,) = status(run, "recommended_rank").values()
    best = min(value(run, "kl", rank=rank) for rank in (1, 2))
    assert reason == f"the mean KL is above 1e-09 at every rank up to 2; the smallest is {best:.3g}"


def test_regression_says_why_there_is_no_divergence() -> None:
    torch.manual_seed(6)
    model = mlp(6, 9, 8, 1)
    old = state(model)
    x = noise(12, 6, seed=2)
    run = changed(model, random_deltas(model), [(x, noise(12, 1))], ranks=(1, 2))
    with torch.no_grad():
        a, b = (variant_of(model, old, rank, lambda: mlp(6, 9, 8, 1))(x.double()).numpy() for rank in (99, 1))
    assert value(run, "mse", rank=1) == pytest.approx(((a - b) ** 2).mean(), rel=1e-3)
    for name in ("kl", "kl_p99", "top1_agree"):
        assert "not distributions" in status(run, name, rank=1)["model"]
    assert "not distributions" in status(run, "recommended_rank")["model"]
    assert "no direction" in status(run, "cosine", rank=1)["model"]
    assert rows(run, PROBE, "broke").empty


def test_stacks_of_matrices_keep_their_whole_update() -> None:
    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(noise(3, 4, 5))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight.mean(0)

    model = Experts()
    run = changed(model, random_deltas(model), [classes(12, 4, 5)], ranks=(1,))
    (record,) = run.records()
    assert record.notes["not_matrices"] == ["weight"]
    assert value(run, "kl", rank=0) == 0


def test_the_reference_is_shared_between_probes() -> None:
    calls: list[int] = []

    class Counted(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            calls.append(len(x))
            return super().forward(x)

    model = Counted(6, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    probes = [ls.LowRankQuality(every=1, ranks=(1, 2)), ls.LowRankQuality(every=1, ranks=(3,))]
    with ls.watch(model, optimizer, probes=probes, holdout=[classes(12, 6, 4)], strict=True):
        model.weight.grad = torch.ones_like(model.weight)
        model.bias.grad = torch.ones_like(model.bias)
        optimizer.step()
    assert len(calls) == 1 + 1 + 3 + 2  # with the trial of the task


class Breaks(Exception):
    pass


@pytest.mark.parametrize("forward", range(4))
def test_weights_are_back_after_an_error_in_any_forward(forward: int) -> None:
    class Model(nn.Sequential):
        seen = 0

        def forward(self, x: Tensor) -> Tensor:
            self.seen += 1
            if self.seen == forward + 2:  # after the trial of the task
                raise Breaks
            return super().forward(x)

    model = Model(nn.Linear(6, 9), nn.BatchNorm1d(9), nn.Linear(9, 4))
    deltas = random_deltas(model)
    expected = {n: p + deltas[n] for n, p in state(model).items()}
    with pytest.raises(Breaks):
        changed(model, deltas, [classes(12, 6, 4)], ranks=(1, 2))
    assert model.seen == forward + 2
    assert all(torch.equal(p, expected[n]) for n, p in model.named_parameters())
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize("index", range(9))
def test_weights_are_back_after_an_error_at_any_parameter(index: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three matrices, ranks 0, 1 and 2: the error comes while any of them is being put in."""
    model = mlp(6, 9, 8, 4)
    deltas = random_deltas(model)
    expected = {n: p + deltas[n] for n, p in state(model).items()}
    exchange, into = swap.exchange, [0]

    def breaks(a: Tensor, b: Tensor) -> None:
        into[0] += 1
        # three go in and three come out again at each rank
        if into[0] == 6 * (index // 3) + index % 3 + 1:
            raise Breaks
        exchange(a, b)

    monkeypatch.setattr(swap, "exchange", breaks)
    with pytest.raises(Breaks):
        changed(model, deltas, [classes(12, 6, 4)], ranks=(1, 2))
    assert all(torch.equal(p, expected[n]) for n, p in model.named_parameters())


def test_an_approximated_matrix_is_counted() -> None:
    model = mlp(300, 280, 4)
    run = changed(model, random_deltas(model, 0.01), [classes(12, 300, 4)], ranks=(1, 2))
    assert (value(run, "decomposed"), value(run, "approximated")) == (2, 1)
    reasons = status(run, "rank_for_energy", "tensor")
    assert reasons["0.weight"] == "more than 2, the largest rank that was computed"
    assert at_scope(run, PROBE, "rank_for_energy", "tensor")["2.weight"] in (3, 4)


@pytest.mark.parametrize("placement", [{"snapshot_device": "disk"}, {"snapshot_dtype": "float64"}])
def test_previous_weights_kept_elsewhere(placement: dict[str, str]) -> None:
    found = []
    for options in ({}, placement):
        torch.manual_seed(7)
        model = mlp(6, 9, 8, 4)
        run = changed(model, random_deltas(model), [classes(12, 6, 4)], ranks=(1, 2), **options)
        found.append([value(run, "kl", rank=rank) for rank in (0, 1, 2)])
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ranks": ()}, "ranks are whole numbers from 1"),
        ({"ranks": (0, 4)}, "rank 0 is always measured"),
        ({"ranks": (1.5,)}, "ranks are whole numbers"),
        ({"examples": 0}, "at least one example"),
        ({"kl_bound": 0.0}, "a bound is above 0"),
        ({"kl_bound": math.nan}, "a bound is above 0"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ls.LowRankQuality(**options)
