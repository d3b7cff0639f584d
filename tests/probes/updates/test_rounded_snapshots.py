"""Weights kept in a narrower dtype: an unchanged model has not changed, and changes are as precise as is said."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import learnscope as ls
from learnscope.analysis import AnalysisConfig, ModelAnalysisManager, ParameterSnapshot

NARROWER = [("float16", torch.float32), ("bfloat16", torch.float32), ("float32", torch.float64)]
X, Y = torch.randn(16, 6, generator=torch.Generator().manual_seed(0)), torch.arange(16) % 3


def net(dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 3)).to(dtype)


@pytest.mark.parametrize(("kept", "own"), NARROWER)
def test_a_model_that_does_not_change_has_not_changed(kept: str, own: torch.dtype) -> None:
    model = net(own)
    options: dict[str, Any] = {"snapshot_dtype": kept}
    probes = [
        ls.ParameterChange(every=1, **options), ls.SparseQuality(every=1, **options),
        ls.LowRankQuality(every=1, ranks=[1], **options),
    ]  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    before = [p.detach().clone() for p in model.parameters()]
    with ls.watch(model, optimizer, probes=probes, holdout=[(X.to(own), Y)], strict=True) as w:
        F.cross_entropy(model(X.to(own)), Y).backward()
        optimizer.step()
    change = w.run.frame("ParameterChange", kind="model").set_index("name").value
    assert change["sparsity"].tolist() == [1.0] * 3
    assert [change[name] for name in ("l1", "l2", "max", "mean_abs", "sign_flip_share")] == [0.0] * 5
    sparse = w.run.frame("SparseQuality")
    assert sparse[sparse.name == "kept_share"].value.eq(0).all()
    assert sparse[sparse.name == "kl"].value.eq(0).all(), "what counts as unchanged is not undone"
    low = w.run.frame("LowRankQuality", kind="model").set_index("name").value
    assert low["unchanged"] == 2
    assert all(torch.equal(p, kept) for p, kept in zip(model.parameters(), before, strict=True))


@pytest.mark.parametrize(("kept", "own"), NARROWER)
def test_the_documented_remedy_for_memory(kept: str, own: torch.dtype) -> None:
    model = net(own)
    analyzer = ModelAnalysisManager.create(AnalysisConfig(interval=1, snapshot_dtype=kept), strict=True)
    analyzer.on_optimizer_step(model, inputs=(X.to(own), Y))
    metrics = analyzer.on_optimizer_step(model, inputs=(X.to(own), Y))
    assert metrics["param_change/norm_l2"] == 0
    assert metrics["param_change/sparsity_at_1e-08"] == 1
    assert metrics["sparse/kl_at_1e-08_random"] == 0
    assert metrics["sparse/unchanged_ratio_at_1e-08"] == 1


@pytest.mark.parametrize(("dtype", "step"), [("float16", 2**-11), ("bfloat16", 2**-8)])
def test_changes_are_as_precise_as_the_record_says(dtype: str, step: float) -> None:
    """Entry by entry against NumPy: none where old and new round alike, else off by the rounding of the old weight."""
    model = nn.Linear(40, 30, bias=False)
    before = model.weight.detach().clone().numpy().astype(np.float64)
    generator = np.random.default_rng(0)
    with ls.watch(model, None, probes=[ls.ParameterChange(every=1, snapshot_dtype=dtype)], strict=True) as w:
        moved = before * (1 + step * generator.normal(size=before.shape))
        with torch.no_grad():
            model.weight.copy_(torch.tensor(moved))
        w.step()
    after = model.weight.detach().numpy().astype(np.float64)
    rounded_old, rounded_new = (np.vectorize(lambda x: _nearest(x, step))(values) for values in (before, after))
    expected = np.where(rounded_old == rounded_new, 0.0, after - rounded_old)
    assert 0.1 < (expected == 0).mean() < 0.9
    found = w.run.frame("ParameterChange", kind="model").set_index("name").value
    assert found["l1"] == pytest.approx(np.abs(expected).sum(), rel=1e-6)
    assert found["l2"] == pytest.approx(np.sqrt((expected**2).sum()), rel=1e-6)
    assert found["std"] == pytest.approx(expected.std(ddof=1), rel=1e-6)
    assert found["sparsity"].iloc[0] == pytest.approx((np.abs(expected) <= 1e-8).mean())
    error = np.abs(expected - (after - before)) / np.abs(before)
    assert error[expected != 0].max() <= step * (1 + 1e-6), "known to within this share of the weight"
    assert error[expected == 0].max() <= 2 * step * (1 + step), "up to this share of it may count as none"
    (record,) = w.run.records("ParameterChange")
    assert f"within {step:.1e} of the weight, and up to {2 * step:.1e}" in record.notes["precision"]


def _nearest(x: float, step: float) -> float:
    """Rounded to the nearest number with this relative step, ties to even."""
    if x == 0:
        return 0.0
    unit = 2 * step * 2.0 ** np.floor(np.log2(abs(x)))
    return float(np.round(x / unit) * unit)


def test_an_exact_copy_needs_no_note() -> None:
    for dtype in ("native", "float32", "float64"):
        model = net()
        with ls.watch(model, None, probes=[ls.ParameterChange(every=1, snapshot_dtype=dtype)], strict=True) as w:
            w.step()
        (record,) = w.run.records("ParameterChange")
        assert "precision" not in record.notes


def test_snapshots_in_different_dtypes_are_compared_alike() -> None:
    model = net()
    wide, narrow = (ParameterSnapshot.from_model(model, dtype=dtype) for dtype in ("float32", "float16"))
    for delta in (wide - narrow, narrow - wide):
        assert delta.norm_max == 0
        assert delta.sparsity(0.0) == 1
        assert all(not tensor.any() for tensor in delta.values())
    with torch.no_grad():
        model[0].weight[0, 0] += 1
    later = ParameterSnapshot.from_model(model, dtype="float32")
    assert (later - narrow).norm_max == pytest.approx(1, abs=2**-11)
    assert (narrow - later).norm_max == pytest.approx(1, abs=2**-11)


def test_other_probes_that_compare_with_earlier_weights() -> None:
    """In an analysis all of them share the copy: kurtosis, the loss along the update, scores of examples."""
    model = net()
    analyzer = ModelAnalysisManager(AnalysisConfig(interval=1, snapshot_dtype="float16"), strict=True)
    analyzer.add_metric(ls.WeightKurtosis()).add_metric(ls.LossLandscape(direction="update", trace_samples=0))
    analyzer.on_optimizer_step(model, inputs=(X, Y))
    metrics = analyzer.on_optimizer_step(model, inputs=(X, Y))
    along = [value for key, value in metrics.items() if "loss" in key and "along_update" in key]
    assert len(along) > 1
    assert len(set(along)) == 1, "nothing has moved: the update is no direction"
    kurtosis = [key for key in metrics if "update_kurtosis" in key]
    assert kurtosis
    assert all("no spread" in analyzer.reasons[key] for key in kurtosis)
