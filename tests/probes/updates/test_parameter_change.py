"""Every number of ParameterChange against float64 NumPy on copies of the weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

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
    rows,
    tiny_gpt2,
    tokens,
    values,
)

PROBE = "ParameterChange"
THRESHOLDS = (0.0, 1e-6, 1e-3)


def copies(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def bits(tensor: Tensor) -> np.ndarray[Any, Any]:
    """The stored bytes of every entry, [n, bytes]."""
    flat = tensor.detach().cpu().contiguous().view(-1)
    return flat.view(torch.uint8).numpy().reshape(flat.numel(), -1).copy()


def expected_statistics(old: dict[str, Tensor], new: dict[str, Tensor], names: list[str]) -> dict[str, float]:
    """Written from the definitions: float64, unbiased standard deviation, counts of what is not finite."""
    before = concatenated({n: array(old[n]) for n in names}, names)
    after = concatenated({n: array(new[n]) for n in names}, names)
    with np.errstate(invalid="ignore", divide="ignore"):
        delta = after - before
        changed = np.concatenate([(bits(old[n]) != bits(new[n])).any(1) for n in names])
        out = {
            "l1": np.abs(delta).sum(),
            "l2": np.sqrt((delta**2).sum()),
            "max": np.abs(delta).max(),
            "mean": delta.mean(),
            "mean_abs": np.abs(delta).mean(),
            "std": delta.std(ddof=1) if len(delta) > 1 else np.nan,
            "update_to_weight": np.sqrt((delta**2).sum()) / np.sqrt((before**2).sum()),
            "sign_flip_share": ((before * after) < 0).mean(),
            "visible_share": changed.mean(),
            "nan": np.isnan(delta).sum(),
            "inf": np.isinf(delta).sum(),
        }
        for t in THRESHOLDS:
            out[f"sparsity {t}"] = (np.abs(delta) <= t).mean()
    return {name: float(value) for name, value in out.items()}


def recorded(run: ls.Run, kind: str) -> dict[str, dict[str, float]]:
    """By scope and name, the numbers of the last step; sparsity with its threshold."""
    out: dict[str, dict[str, float]] = {}
    frame = run.frame(PROBE, kind=kind)
    frame = frame[frame.step == frame.step.max()]
    for row in frame.itertuples():
        if row.name.startswith("absorbed"):
            continue
        name = f"sparsity {row.threshold}" if row.name == "sparsity" else row.name
        out.setdefault(row.scope, {})[name] = row.value
    return out


def check_all(run: ls.Run, old: dict[str, Tensor], new: dict[str, Tensor], *, rel: float = 2e-6) -> None:
    names = [name for name, p in new.items() if p.is_floating_point()]
    scopes = {
        "model": {"model": names},
        "layer": by(layer_of, names),
        "component": by(component_of, names),
        "tensor": {name: [name] for name in names},
    }
    for kind, members in scopes.items():
        got = recorded(run, kind)
        assert list(got) == list(members)
        for scope, inside in members.items():
            wanted = expected_statistics(old, new, inside)
            scale = wanted["mean_abs"] if np.isfinite(wanted["mean_abs"]) else 0.0
            for name, value in wanted.items():
                value = value if np.isfinite(value) else np.nan
                exact = name in ("nan", "inf") or name.endswith("_share") or name.startswith("sparsity")
                # a mean of mixed signs is a difference of large sums: right to float32's rounding of one entry
                absolute = {"mean": 1e-6 * scale}.get(name, 0.0)
                close = pytest.approx(value, rel=1e-12 if exact else rel, abs=absolute, nan_ok=True)
                assert got[scope][name] == close, (kind, scope, name)


def change(model: nn.Module, edit: Callable[[str, Tensor], Tensor], **options: Any) -> tuple[ls.Run, Any, Any]:
    """One step that sets every weight to `edit(name, weight)`; the run, the weights before and after."""
    old = copies(model)
    probe = ls.ParameterChange(**{"every": 1, "thresholds": THRESHOLDS, **options})
    with ls.watch(model, probes=[probe], strict=True) as w:
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.copy_(edit(name, p))
        w.step()
    return w.run, old, copies(model)


def jitter(seed: int, size: float) -> Callable[[str, Tensor], Tensor]:
    """Most entries move by something of `size`, a third not at all, some change sign."""
    generator = torch.Generator().manual_seed(seed)

    def edit(_name: str, p: Tensor) -> Tensor:
        if not p.is_floating_point():
            return p
        moved = p.double() + size * torch.randn(p.shape, generator=generator, dtype=torch.float64)
        kept = torch.rand(p.shape, generator=generator) < 0.3
        moved = torch.where(torch.rand(p.shape, generator=generator) < 0.05, -moved, moved)
        return torch.where(kept, p.double(), moved).to(p.dtype)

    return edit


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("size", [1e-2, 1e-5])
def test_every_statistic_of_every_scope(dtype: torch.dtype, size: float) -> None:
    model = tiny_gpt2().to(dtype)
    run, old, new = change(model, jitter(1, size))
    check_all(run, old, new)
    label = str(dtype).removeprefix("torch.")
    assert rows(run, PROBE, "sparsity").dtype.unique().tolist() == [label]
    assert sorted(rows(run, PROBE, "sparsity").threshold) == sorted(THRESHOLDS)


def test_mixed_dtypes() -> None:
    model = mlp(7, 9, 11, 3)
    model[0].to(torch.bfloat16)
    model[2].to(torch.float64)
    run, old, new = change(model, jitter(2, 1e-3))
    check_all(run, old, new)
    assert rows(run, PROBE, "sparsity").dtype.unique().tolist() == ["mixed"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_that_are_not_finite(dtype: torch.dtype) -> None:
    model = mlp(7, 9, 11, 3, dtype=dtype)
    moved = jitter(3, 1e-3)

    def edit(name: str, p: Tensor) -> Tensor:
        out = moved(name, p).flatten()
        if name == "0.weight":
            out[3] = float("nan")
        if name == "2.weight":
            out[:2] = float("inf")
            out[5] = float("nan")
        if name == "2.bias":
            out[1] = -float("inf")
        return out.view(p.shape)

    run, old, new = change(model, edit)
    check_all(run, old, new)
    overall = run.frame(PROBE, kind="model").set_index("name")
    assert overall.value["nan"] == 2
    assert overall.value["inf"] == 3
    for name in ("l1", "l2", "max", "mean", "mean_abs", "std", "update_to_weight"):
        assert np.isnan(overall.value[name])
        assert overall.status[name] == "nan", name
    bias = run.frame(PROBE, "l2", "tensor").set_index("scope")
    assert bias.status["2.bias"] == "inf"
    assert np.isfinite(bias.value["4.weight"])


def test_a_weight_that_stays_nan_is_never_unchanged() -> None:
    model = mlp(4, 5, 2)
    with torch.no_grad():
        model[0].weight[0, 0] = float("nan")
        model[0].weight[0, 1] = float("inf")
    run, old, new = change(model, lambda _name, p: p)
    check_all(run, old, new)
    tensor = recorded(run, "tensor")["0.weight"]
    assert tensor["nan"] == 2  # NaN − NaN and ∞ − ∞
    assert tensor["sparsity 0.001"] == 18 / 20
    assert tensor["visible_share"] == 0.0, "its bits did not change"


@pytest.mark.parametrize("shape", [(33, 70), (200, 300)])
@pytest.mark.parametrize("signs", ["equal", "mixed"])
def test_the_spread_of_nearly_equal_changes(shape: tuple[int, int], signs: str) -> None:
    """Adam's first step moves every entry by ±lr: Σx² − (Σx)²/n would be rounding noise, not a spread."""
    model = nn.Linear(shape[1], shape[0])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    old = copies(model)
    probe = ls.ParameterChange(every=1, thresholds=THRESHOLDS)
    with ls.watch(model, optimizer, probes=[probe], strict=True) as w:
        for p in model.parameters():
            p.grad = torch.rand_like(p) + 0.1
            if signs == "mixed":
                p.grad *= torch.randn_like(p).sign()
        optimizer.step()
    new = copies(model)
    for name in old:
        delta = array(new[name]) - array(old[name])
        exact = delta.std(ddof=1)
        if signs == "equal":
            assert exact < 1e-4 * abs(delta.mean()), "the test itself: the spread is far below the mean"
        assert recorded(w.run, "tensor")[name]["std"] == pytest.approx(exact, rel=1e-3)
    delta = np.concatenate([(array(new[name]) - array(old[name])).ravel() for name in old])
    assert recorded(w.run, "model")["model"]["std"] == pytest.approx(delta.std(ddof=1), rel=1e-3)


def test_no_change_at_all() -> None:
    run, old, new = change(mlp(4, 5, 2), lambda _name, p: p)
    check_all(run, old, new)
    overall = recorded(run, "model")["model"]
    assert overall["l2"] == overall["std"] == overall["visible_share"] == 0.0
    assert overall["sparsity 0.0"] == 1.0


def test_a_single_entry_has_no_spread_and_zero_weights_no_ratio() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(2.0))
            self.shift = nn.Parameter(torch.zeros(3))
            self.nothing = nn.Parameter(torch.zeros(0, 4))

    model = Odd()
    run, _old, _new = change(model, lambda _name, p: p + 0.5)
    frame = run.frame(PROBE, kind="tensor").set_index(["scope", "name"])
    frame = frame[~frame.index.duplicated()]  # one for each threshold, of which nothing is asked here
    assert frame.value["scale", "l2"] == 0.5
    assert np.isnan(frame.value["scale", "std"])
    assert frame.status["scale", "std"] == "nan"
    assert frame.value["scale", "update_to_weight"] == 0.25
    assert np.isnan(frame.value["shift", "update_to_weight"])
    assert frame.status["shift", "update_to_weight"] == "inf"
    assert np.isnan(frame.value["nothing", "mean"])


def test_updates_that_bf16_absorbs_are_not_visible() -> None:
    """Near 1, bf16 has steps of 2⁻⁷ above and 2⁻⁸ below: smaller changes leave the bits as they were."""
    model = nn.Sequential(nn.Linear(64, 16, bias=False, dtype=torch.bfloat16))
    nn.init.ones_(model[0].weight)
    step = torch.linspace(-0.02, 0.02, 64).expand(16, 64)
    run, old, new = change(model, lambda _name, p: (p.float() + step).to(torch.bfloat16))
    check_all(run, old, new)
    share = recorded(run, "model")["model"]["visible_share"]
    assert share == pytest.approx(float(np.mean((new["0.weight"] != 1).numpy())), abs=0)
    assert 0.6 < share < 0.95


@pytest.mark.parametrize("device", ["cpu", "disk"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_a_snapshot_in_another_dtype(dtype: str, device: str) -> None:
    """Δ is against the copy, 0 where both round alike; bits are compared only where a comparison has a meaning."""
    model = mlp(7, 9, 3)
    run, old, new = change(model, jitter(4, 1e-2), snapshot_dtype=dtype, snapshot_device=device)
    kind = getattr(torch, dtype)
    alike = {name: new[name].to(kind) == p.to(kind) for name, p in old.items()}
    rounded = {name: torch.where(alike[name], new[name].double(), p.to(kind).double()) for name, p in old.items()}
    before = concatenated({n: array(rounded[n]) for n in old}, list(old))
    delta = concatenated({n: array(new[n]) for n in old}, list(old)) - before
    overall = recorded(run, "model")["model"]
    assert overall["l1"] == pytest.approx(np.abs(delta).sum(), rel=2e-6)
    assert overall["l2"] == pytest.approx(np.sqrt((delta**2).sum()), rel=2e-6)
    assert overall["std"] == pytest.approx(delta.std(ddof=1), rel=2e-6)
    assert overall["update_to_weight"] == pytest.approx(np.sqrt((delta**2).sum() / (before**2).sum()), rel=2e-6)
    visible = rows(run, PROBE, "visible_share").iloc[0]
    if kind.itemsize >= 4:
        assert visible.value == pytest.approx(np.mean(delta != 0), abs=1e-12)
    else:
        assert np.isnan(visible.value)
        assert visible.status == f"weights kept as {dtype} cannot be compared bit by bit"


def test_a_snapshot_on_disk_equals_one_in_memory() -> None:
    runs = []
    for device in ("cpu", "disk"):
        torch.manual_seed(0)
        model = tiny_gpt2().to(torch.bfloat16)
        run, _, _ = change(model, jitter(5, 1e-2), snapshot_device=device)
        runs.append(run.frame(PROBE).drop(columns=["time", "cost"]))
    assert runs[0].equals(runs[1])


def test_spans_and_what_lies_between() -> None:
    model = mlp(4, 6, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kept: list[dict[str, Tensor]] = [copies(model)]
    probe = ls.ParameterChange(every=3, thresholds=THRESHOLDS)
    with ls.watch(model, optimizer, probes=[probe], strict=True) as w:
        for _ in range(9):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
            kept.append(copies(model))
    assert [record.notes["span"] for record in w.run.records(PROBE)] == [[0, 3], [3, 6], [6, 9]]
    check_all(w.run, kept[6], kept[9])
    first = rows(w.run, PROBE, "l2").set_index("step").value
    assert first[3] == pytest.approx(expected_statistics(kept[0], kept[3], list(kept[0]))["l2"], rel=2e-6)


def test_groups_of_the_optimizer() -> None:
    model = mlp(4, 6, 2)
    optimizer = torch.optim.SGD(
        [{"params": model[0].parameters(), "name": "body", "lr": 0.5}, {"params": [model[2].weight]}], lr=0.1
    )
    old = copies(model)
    with ls.watch(model, optimizer, probes=[ls.ParameterChange(every=1)], strict=True) as w:
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
    new = copies(model)
    expected = {
        "body": expected_statistics(old, new, ["0.weight", "0.bias"])["l2"],
        "group_1": expected_statistics(old, new, ["2.weight"])["l2"],
    }
    assert at_scope(w.run, PROBE, "l2", "group") == pytest.approx(expected, rel=2e-6)


def test_integer_parameters_are_left_out() -> None:
    model = mlp(4, 5, 2)
    model.table = nn.Parameter(torch.arange(6), requires_grad=False)
    run, old, new = change(model, jitter(6, 1e-2))
    del old["table"], new["table"]
    check_all(run, old, new)


def test_tied_weights_count_once() -> None:
    model = tiny_gpt2()
    run, old, new = change(model, jitter(7, 1e-2))
    assert "lm_head.weight" not in old
    check_all(run, old, new)


def test_frozen_weights_count_and_did_not_move() -> None:
    model = mlp(4, 6, 2)
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ls.watch(model, optimizer, probes=[ls.ParameterChange(every=1)], strict=True) as w:
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
    assert at_scope(w.run, PROBE, "l2", "layer")["0"] == 0.0
    assert at_scope(w.run, PROBE, "visible_share", "layer")["0"] == 0.0
    assert at_scope(w.run, PROBE, "l2", "layer")["2"] > 0.0


@pytest.mark.parametrize("what", ["shape", "added", "removed"])
def test_another_model_is_refused_by_the_name_of_what_changed(what: str) -> None:
    model = mlp(4, 6, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ls.watch(model, optimizer, probes=[ls.ParameterChange(every=1)], strict=True) as w:
        optimizer.step()
        if what == "shape":
            model[2].weight = nn.Parameter(torch.zeros(3, 6))
        elif what == "added":
            model[2].extra = nn.Parameter(torch.zeros(3))
        else:
            model[2].bias = None
        match = {
            "shape": r"2\.weight changed shape from \(2, 6\) to \(3, 6\)",
            "added": r"2\.extra appeared",
            "removed": r"2\.bias disappeared",
        }[what]
        with pytest.raises(ValueError, match=match):
            optimizer.step()
    assert len(values(w.run, PROBE, "l2")) == 1


def test_a_weight_replaced_by_another_of_its_shape() -> None:
    """As after model.weight = nn.Parameter(…): it is the model's weights now that count."""
    model = mlp(4, 6, 2)
    old = copies(model)
    with ls.watch(model, probes=[ls.ParameterChange(every=1, thresholds=THRESHOLDS)], strict=True) as w:
        model[2].weight = nn.Parameter(torch.full((2, 6), 0.5))
        w.step()
    check_all(w.run, old, copies(model))
    assert failures(w.run) == []


def test_a_real_step_of_a_real_model() -> None:
    model = tiny_gpt2()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    old = copies(model)
    probe = ls.ParameterChange(every=2, thresholds=THRESHOLDS)
    with ls.watch(model, optimizer, probes=[probe], strict=True) as w:
        for step in range(2):
            optimizer.zero_grad()
            ids = tokens(3, 8, seed=step)
            model(input_ids=ids, labels=ids).loss.backward()
            optimizer.step()
    check_all(w.run, old, copies(model))


def test_thresholds_must_be_numbers_from_zero() -> None:
    with pytest.raises(ValueError, match="thresholds are numbers from 0 on"):
        ls.ParameterChange(thresholds=(-1.0,))
    with pytest.raises(ValueError, match="thresholds are numbers from 0 on"):
        ls.ParameterChange(thresholds=(float("nan"),))
