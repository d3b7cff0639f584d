"""Gradients of models that are awkward to read, against norms taken in NumPy's float64."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from learnscope.core.moment import NotAvailable
from learnscope.dynamics import GradientFlowAnalyzer, MemorizationDetector

X, Y = torch.randn(30, 4, generator=torch.Generator().manual_seed(0)), torch.arange(30) % 3


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def backward(model: nn.Module, part: slice = slice(None)) -> Tensor:
    loss = cross_entropy(model(X[part]), Y[part])
    loss.backward()
    return loss


def norm(*grads: Tensor | None) -> float:
    """√Σ‖g‖² of those that there are."""
    dense = [g.to_dense().double().numpy().ravel() for g in grads if g is not None]
    return float(np.linalg.norm(np.concatenate(dense)))


class Sparse(nn.Module):
    """Whose embedding has gradients for the tokens that came, some of them twice."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(50, 4, sparse=True), nn.Linear(4, 3)

    def forward(self, tokens: Tensor) -> Any:
        return self.head(self.embedding(tokens))


def test_sparse_gradients_are_read_as_the_sums_they_stand_for() -> None:
    model = Sparse()
    analyzer = GradientFlowAnalyzer(model)
    cross_entropy(model(torch.tensor([1, 1, 2, 7])), torch.tensor([0, 1, 2, 0])).backward()
    grad = model.embedding.weight.grad
    assert grad is not None
    assert grad.is_sparse
    assert not grad.is_coalesced()
    found = analyzer.track_batch_gradients(None, 0, 0)
    assert found["layer_norms"]["embedding"] == pytest.approx(norm(grad), rel=1e-6)
    assert found["zero_share"]["embedding"] == pytest.approx(1 - 3 / 50)
    assert found["total_norm"] == pytest.approx(norm(*(p.grad for p in model.parameters())), rel=1e-6)
    again = model.embedding.weight.grad
    assert again is grad  # left as it was
    assert not again.is_coalesced()


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.out = nn.Embedding(6, 4), nn.Linear(4, 6, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Any:
        return self.out(self.embedding(tokens))


@pytest.mark.parametrize("tracked", [None, ["embedding"], ["out"]])
def test_a_weight_in_two_places_counts_once(tracked: list[str] | None) -> None:
    model = Tied()
    analyzer = GradientFlowAnalyzer(model, tracked)
    cross_entropy(model(torch.tensor([1, 2])), torch.tensor([0, 5])).backward()
    found = analyzer.track_batch_gradients(None, 0, 0)
    assert found["total_norm"] == pytest.approx(norm(model.out.weight.grad), rel=1e-6)
    assert len(found["layer_norms"]) == 1


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.spare, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Any:
        return self.last(self.first(x))


def test_layers_without_a_gradient_are_missing_and_not_zero() -> None:
    model = Unused()
    model.last.bias.requires_grad_(False)
    analyzer = GradientFlowAnalyzer(model)
    for batch in range(4):
        model.zero_grad()
        loss = backward(model)
        found = analyzer.track_batch_gradients(loss, 0, batch)
        assert set(found["layer_norms"]) == {"first", "last"}
        assert found["without_gradient"] == ["spare.weight", "spare.bias"]  # the frozen one was not to have one
        assert found["layer_norms"]["last"] == pytest.approx(norm(model.last.weight.grad), rel=1e-6)
    told = analyzer.compute_epoch_statistics(0)
    assert "spare" not in told["layers"]
    assert "spare" not in told["vanishing_layers"]
    assert any("spare" in finding.title + finding.detail for finding in analyzer.analyze_gradient_flow()["findings"])


def test_a_model_that_is_frozen_altogether_is_refused() -> None:
    model = net().requires_grad_(False)
    with pytest.raises(NotAvailable, match=r"no tracked parameter has a gradient: call .* after loss.backward\(\)"):
        GradientFlowAnalyzer(model).track_batch_gradients(None, 0, 0)


@pytest.mark.parametrize("kind", ["compiled", "DataParallel", "both"])
@pytest.mark.parametrize("tracked", [None, ["0"], ["2.weight"]])
def test_wrapped_models_have_the_layers_of_what_is_inside(kind: str, tracked: list[str] | None) -> None:
    plain, inner = net(), net()
    used: Any = nn.DataParallel(inner) if kind != "compiled" else inner
    used = torch.compile(used, backend="eager") if kind != "DataParallel" else used
    backward(plain)
    backward(used)
    wanted = GradientFlowAnalyzer(plain, tracked).track_batch_gradients(None, 0, 0)
    found = GradientFlowAnalyzer(used, tracked).track_batch_gradients(None, 0, 0)
    assert found["layer_norms"] == pytest.approx(wanted["layer_norms"])
    assert found["total_norm"] == pytest.approx(wanted["total_norm"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_gradients_in_any_precision_are_summed_in_a_wide_one(dtype: torch.dtype) -> None:
    model = nn.Linear(300, 300, bias=False).to(dtype)
    analyzer = GradientFlowAnalyzer(model)
    torch.manual_seed(0)
    model.weight.grad = (torch.rand(300, 300) * 200).to(dtype)  # whose squares float16 does not hold
    found = analyzer.track_batch_gradients(None, 0, 0)
    assert found["total_norm"] == pytest.approx(norm(model.weight.grad), rel=1e-6)
    ratio = norm(model.weight.grad) / norm(model.weight.detach())
    assert next(iter(found["gradient_to_weight"].values())) == pytest.approx(ratio, rel=1e-5)


def test_accumulated_gradients_are_read_as_they_stand() -> None:
    model = net()
    analyzer = GradientFlowAnalyzer(model)
    for batch in range(3):
        backward(model, slice(10 * batch, 10 * batch + 10))
        kept = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        found = analyzer.track_batch_gradients(None, 0, batch)
        assert found["total_norm"] == pytest.approx(norm(*kept), rel=1e-6)
        assert all(torch.equal(p.grad, k) for p, k in zip(model.parameters(), kept, strict=True))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("loss", "wanted"),
    [(1.25, 1.25), (torch.tensor(1.25), 1.25), (torch.tensor([[1.25]]), 1.25), (np.float32(1.25), 1.25), (3, 3.0),
     (torch.tensor(1.25, requires_grad=True), 1.25), (None, math.nan), (math.nan, math.nan)],
)  # fmt: skip
def test_the_loss_is_a_number_of_any_kind_or_none(loss: Any, wanted: float) -> None:
    model = net()
    backward(model)
    analyzer = GradientFlowAnalyzer(model)
    assert analyzer.track_batch_gradients(loss, 0, 0)["loss"] == pytest.approx(wanted, nan_ok=True)
    assert analyzer.compute_epoch_statistics(0)["loss"]["mean"] == pytest.approx(wanted, nan_ok=True)


@pytest.mark.parametrize("loss", ["abc", {"loss": 1.0}, [1.0], torch.ones(2), torch.ones(0)])
def test_a_loss_that_is_no_number_is_refused_with_the_cure_and_leaves_nothing(loss: Any) -> None:
    model = net()
    backward(model)
    analyzer = GradientFlowAnalyzer(model)
    with pytest.raises((TypeError, ValueError), match="pass the one number whose backward was run, or None"):
        analyzer.track_batch_gradients(loss, 0, 0)
    with pytest.raises(NotAvailable, match="no batch has been tracked"):
        analyzer.analyze_gradient_flow()


def test_epochs_that_are_mixed_up_are_told_apart() -> None:
    model, norms = net(), {}
    analyzer = GradientFlowAnalyzer(model)
    torch.manual_seed(3)
    for place in [(5, 0), (2, 3), (5, 1), (2, 0), (0, 0), (5, 7), (2, 3)]:  # the last one replaces what it was
        for p in model.parameters():
            p.grad = torch.randn_like(p)
        norms[place] = norm(*(p.grad for p in model.parameters()))
        analyzer.track_batch_gradients(float(sum(place)), *place)
    for epoch in (0, 2, 5):
        own = [value for (of, _), value in norms.items() if of == epoch]
        told = analyzer.compute_epoch_statistics(epoch)
        assert told["batches"] == told["total_norm"]["n"] == len(own)
        assert told["total_norm"]["mean"] == pytest.approx(np.mean(own), rel=1e-6)
        assert told["total_norm"]["max"] == pytest.approx(max(own), rel=1e-6)
        std = np.std(own, ddof=1) if len(own) > 1 else math.nan
        assert told["total_norm"]["std"] == pytest.approx(std, rel=1e-5, nan_ok=True)
    whole = analyzer.analyze_gradient_flow()
    assert whole["epochs"] == [0, 2, 5]
    assert whole["total_norm"]["mean"] == pytest.approx(np.mean(list(norms.values())), rel=1e-6)


def brute_force(ratios: np.ndarray[Any, Any], norms: np.ndarray[Any, Any]) -> tuple[set[int], set[int]]:
    """Layers off the median layer by both numbers, for so many measurements in a row."""
    low, high = set(), set()
    for layer in range(ratios.shape[1]):
        below, above = [], []
        for ratio, size in zip(ratios, norms, strict=True):
            off = ratio[layer] / np.median(ratio), size[layer] / np.median(size)
            below.append(max(off) < 1 / 100)
            above.append(min(off) > 100)
        for flags, found in ((below, low), (above, high)):
            runs = "".join("x" if flag else " " for flag in flags)
            if "xxx" in runs:
                found.add(layer)
    return low, high


@pytest.mark.parametrize("seed", range(30))
def test_vanishing_and_exploding_against_brute_force(seed: int) -> None:
    rng = np.random.default_rng(seed)
    model = nn.Sequential(*(nn.Linear(3, 3, bias=False) for _ in range(5)))
    for layer, factor in zip(model, 10 ** rng.normal(0, 1, 5), strict=True):
        layer.weight.data *= float(factor)  # so that ‖g‖ and ‖g‖/‖W‖ tell different things
    weights = [float(torch.linalg.vector_norm(layer.weight.detach().double())) for layer in model]  # type: ignore[operator]
    analyzer = GradientFlowAnalyzer(model)
    level = 10 ** rng.choice([[-10.0, -3.0, 0.0], [0.0, 0.0, 4.0], [-0.2, -2.0, -2.0]][seed % 3], 5, p=[0.2, 0.2, 0.6])
    sizes = []
    for batch in range(6):
        size = level * 10 ** rng.normal(0, 0.3, 5)
        size = np.where(rng.random(5) < 0.15, 1.0, size)  # an interruption now and then
        for p, one in zip(model.parameters(), size, strict=True):
            p.grad = torch.full_like(p, float(one) / 3)  # of 9 entries: the norm is `one`
        analyzer.track_batch_gradients(None, 0, batch)
        sizes.append(size)
    norms = np.array(sizes)
    low, high = brute_force(norms / np.array(weights), norms)
    told = analyzer.compute_epoch_statistics(0)
    vanishing, exploding = ({int(layer) for layer in told[f"{which}_layers"]} for which in ("vanishing", "exploding"))
    if low and high:  # only the end away from the output is named
        assert vanishing <= low
        assert exploding <= high
        assert vanishing or exploding
    else:
        assert (vanishing, exploding) == (low, high)


def test_a_copy_reads_its_own_model() -> None:
    model = net()
    analyzer = GradientFlowAnalyzer(model)
    backward(model)
    analyzer.track_batch_gradients(None, 0, 0)
    other = copy.deepcopy(analyzer)
    for p in other.model.parameters():
        p.grad = torch.ones_like(p)
    count = sum(p.numel() for p in model.parameters())
    assert other.track_batch_gradients(None, 0, 1)["total_norm"] == pytest.approx(math.sqrt(count))
    assert analyzer.compute_epoch_statistics(0)["batches"] == 1
    assert other.compute_epoch_statistics(0)["batches"] == 2


def test_files_of_other_models_and_analyzers_are_refused(tmp_path: Path) -> None:
    model = net()
    analyzer = GradientFlowAnalyzer(model, ["0"])
    backward(model)
    analyzer.track_batch_gradients(None, 0, 0)
    analyzer.save(tmp_path / "a.pkl")
    whole = (tmp_path / "a.pkl").read_bytes()
    for length in (0, 8, len(whole) // 3, len(whole) - 1):
        (tmp_path / "torn").write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"(?i)save the analyzer anew"):
            GradientFlowAnalyzer.load(tmp_path / "torn", model)
    with pytest.raises(ValueError, match="is of a model with a layer '0', which Linear lacks"):
        GradientFlowAnalyzer.load(tmp_path / "a.pkl", nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"use GradientFlowAnalyzer\.load"):
        MemorizationDetector.load(tmp_path / "a.pkl")
    loaded = GradientFlowAnalyzer.load(tmp_path / "a.pkl", model)
    assert loaded.track_layers == ["0"]
    assert str(loaded.compute_epoch_statistics(0)) == str(analyzer.compute_epoch_statistics(0))  # NaN and all


def test_models_that_cannot_be_followed_are_refused_by_what_they_lack() -> None:
    with pytest.raises(TypeError, match=r"a NoneType, not a torch\.nn\.Module"):
        GradientFlowAnalyzer(None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="ReLU has no parameters: pass the module that holds the weights"):
        GradientFlowAnalyzer(nn.ReLU())
    with pytest.raises(ValueError, match=r"no layer, module or parameter '2\.wieght'; near: 2\.weight"):
        GradientFlowAnalyzer(net(), ["2.wieght"])
