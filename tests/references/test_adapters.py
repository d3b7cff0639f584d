"""Adapters against PEFT's own deltas, merges, intruders and rank allocator."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import peft
import pytest
import torch
from lightning.pytorch.utilities import grad_norm
from peft.tuners.adalora.layer import RankAllocator
from peft.tuners.lora.intruders import reduce_intruder_dimension
from scipy import linalg, stats
from scipy.spatial.distance import euclidean
from torch import Tensor, nn

import learnscope as ls
from references.holding import Held, holds
from references.table import parameters

Matrix = np.ndarray[Any, Any]
SCOPES = ("up", "down")


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(14, 24), nn.Linear(24, 9)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(torch.relu(self.up(x)))
        return out


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def lora(model: nn.Module | None = None, **options: Any) -> Any:
    """A model in float64 with factors that are not zero."""
    settings = {"r": 4, "lora_alpha": 6, "target_modules": list(SCOPES), **options}
    tuned = peft.get_peft_model((model or Two()).double(), peft.LoraConfig(**settings))
    with torch.no_grad():
        for place, (name, p) in enumerate(tuned.named_parameters()):
            if "lora_A" in name or "lora_B" in name:
                p.copy_(noise(*p.shape, seed=place))
    return tuned


def layer(model: Any, scope: str) -> Any:
    return model.get_submodule(f"base_model.model.{scope}")


def delta(model: Any, scope: str) -> Matrix:
    found: Matrix = layer(model, scope).get_delta_weight("default").detach().double().numpy()
    return found


def audited(model: nn.Module, **options: Any) -> ls.Run:
    return ls.audit(model, probes=[ls.AdapterSpectrum(**options)], strict=True)


@pytest.mark.parametrize("options", [{}, {"use_rslora": True, "r": 9}], ids=str)
@holds(parameters.LORA_VALUES)
def test_spectra_of_what_lora_adds(held: Held, options: dict[str, Any]) -> None:
    model = lora(**options)
    run, rank = audited(model), options.get("r", 4)
    for scope in SCOPES:
        s = linalg.svdvals(delta(model, scope))[:rank]
        entropy = float(np.exp(stats.entropy(s)))
        theirs = {
            "largest_sv": s[0], "smallest_sv": s[-1], "spectral_gap": s[0] - s[-1], "condition_number": s[0] / s[-1],
            "leading_gap": s[0] - s[1], "numerical_rank": np.linalg.matrix_rank(np.diag(s)),
            "effective_rank": entropy, "rank_utilisation": entropy / rank, "nuclear_norm": s.sum(),
            "stable_rank": linalg.norm(s) ** 2 / s[0] ** 2, "participation_ratio": s.sum() ** 2 / linalg.norm(s) ** 2,
            "frobenius_norm": linalg.norm(delta(model, scope)),
        }  # fmt: skip
        for k in (1, 5, 10):
            theirs |= {f"top{k}_sv_ratio": linalg.norm(s[:k]) ** 2 / linalg.norm(s) ** 2}
            theirs |= {f"top{k}_nuclear_share": s[:k].sum() / s.sum()}
        a, b = (getattr(layer(model, scope), f"lora_{part}")["default"].weight.detach().numpy() for part in "AB")
        theirs["scaling"] = (delta(model, scope) / (b @ a)).mean()
        for name, value in theirs.items():
            held(run, f"AdapterSpectrum.{name}", {scope: float(value)}, "module")


@pytest.mark.parametrize("options", [{}, {"use_rslora": True}, {"r": 9}], ids=str)
@holds(parameters.MERGED_LORA)
def test_the_size_of_an_update_beside_its_weight(held: Held, options: dict[str, Any]) -> None:
    torch.manual_seed(1)
    plain = Two().double()
    before = {scope: plain.get_submodule(scope).weight.detach().numpy().copy() for scope in SCOPES}
    settings = {"r": 4, "lora_alpha": 6, "target_modules": list(SCOPES), **options}
    model = peft.get_peft_model(plain, peft.LoraConfig(**settings))
    for p in (p for p in model.parameters() if p.requires_grad):
        p.data.add_(noise(*p.shape, seed=5) * 0.1)
    run = audited(model)
    merged = copy.deepcopy(model).merge_and_unload()
    ratios = {
        scope: linalg.norm(merged.get_submodule(scope).weight.detach().numpy() - w) / linalg.norm(w)
        for scope, w in before.items()
    }
    held(run, "AdapterSpectrum.relative_norm", ratios, "module")


@holds(parameters.LAYER_STATUS)
def test_status(held: Held) -> None:
    model = lora()
    model.add_adapter("other", peft.LoraConfig(r=2, target_modules=["up"]))
    layer(model, "down").merge()
    run = audited(model)
    for status in model.get_layer_status():
        scope = status.name.removeprefix("model.")
        for adapter in status.available_adapters:
            row = {"adapter": adapter}
            held(run, "AdapterSpectrum.active", {scope: adapter in status.active_adapters}, "module", **row)
            held(run, "AdapterSpectrum.merged", {scope: adapter in status.merged_adapters}, "module", **row)
            held(run, "AdapterSpectrum.rank", {scope: model.peft_config[adapter].r}, "module", **row)


@pytest.mark.parametrize("size", [0.01, 0.3, 30.0])
@holds(parameters.INTRUDERS)
def test_intruder_dimensions(held: Held, size: float) -> None:
    model = lora()
    for scope in SCOPES:
        layer(model, scope).lora_B["default"].weight.data.mul_(size)
    run = audited(model, intruders=True)
    lines: list[str] = []
    reduce_intruder_dimension(model, logging_sink=lines.append)
    counts = {
        line.split(":")[0].removeprefix("base_model.model."): 0 if "No" in line else int(line.split(":")[-1])
        for line in lines[:-1]
    }
    assert counts.keys() == set(SCOPES)
    held(run, "AdapterSpectrum.intruder_dimensions", counts, "module")


@pytest.mark.parametrize("turn", [1e-6, 0.1, 10.0])
@holds(parameters.ANGLES)
def test_how_far_directions_have_turned(held: Held, turn: float) -> None:
    model = lora()
    sides = {scope: linalg.svd(delta(model, scope), full_matrices=False) for scope in SCOPES}
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=turn)
    with ls.watch(model, optimizer, probes=[ls.AdapterSpectrum(every=1)], strict=True) as w:
        for step in range(2):
            for place, p in enumerate(p for p in model.parameters() if p.requires_grad):
                p.grad = noise(*p.shape, seed=place + 20) * step  # the first step only looks
            optimizer.step()
    for scope, (u, _, v) in sides.items():
        new_u, _, new_v = linalg.svd(delta(model, scope), full_matrices=False)
        for side, then, now in (("left", u, new_u), ("right", v.T, new_v.T)):
            angles = linalg.subspace_angles(then[:, :4], now[:, :4])
            row: dict[str, Any] = {"kind": "module", "since": "first"}
            held(w.run, f"AdapterSpectrum.{side}_angle", {scope: angles.max()}, **row)
            held(w.run, f"AdapterSpectrum.{side}_drift", {scope: np.sqrt((np.sin(angles) ** 2).mean())}, **row)


@holds(parameters.MERGED_DORA)
def test_what_merging_dora_adds(held: Held) -> None:
    torch.manual_seed(2)
    plain = Two()
    model = lora(plain, use_dora=True)
    before = {scope: layer(model, scope).get_base_layer().weight.detach().numpy().copy() for scope in SCOPES}
    for scope in SCOPES:
        layer(model, scope).lora_magnitude_vector["default"].weight.data.mul_(1.3)
    run = audited(model, merged_update=True)
    state = peft.get_peft_model_state_dict(model)
    merged = copy.deepcopy(model).merge_and_unload()
    for scope, w in before.items():
        added = merged.get_submodule(scope).weight.detach().numpy() - w
        s = linalg.svdvals(added)
        magnitude = linalg.norm(state[f"base_model.model.{scope}.lora_magnitude_vector"].numpy())
        direction = linalg.norm(w + delta(model, scope))
        theirs = {
            "merged_update_norm": linalg.norm(added), "merged_update_largest_sv": s[0],
            "merged_update_effective_rank": np.exp(stats.entropy(s)), "merged_update_nuclear_norm": s.sum(),
            "merged_update_stable_rank": linalg.norm(added) ** 2 / s[0] ** 2, "magnitude_norm": magnitude,
            "direction_norm": direction, "magnitude_direction_ratio": magnitude / direction,
        }  # fmt: skip
        for name, value in theirs.items():
            held(run, f"AdapterSpectrum.{name}", {scope: float(value)}, "module")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@holds(parameters.VECTORS)
def test_vectors(held: Held, dtype: torch.dtype) -> None:
    config = peft.IA3Config(target_modules=list(SCOPES), feedforward_modules=["down"])
    model = peft.get_peft_model(Two().to(dtype), config)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    with ls.watch(model, optimizer, probes=[ls.AdapterSpectrum(every=1)], strict=True) as w:
        for p in (p for p in model.parameters() if p.requires_grad):
            p.grad = noise(*p.shape).to(p)
        optimizer.step()
    for scope in SCOPES:
        v = layer(model, scope).ia3_l["default"].detach().double().numpy().ravel()
        described = stats.describe(v, ddof=0)
        theirs = {
            "norm": linalg.norm(v), "mean": described.mean, "std": described.variance**0.5,
            "min": described.minmax[0], "max": described.minmax[1], "change": euclidean(v, np.ones(len(v))),
        }  # fmt: skip
        for name, value in theirs.items():
            held(w.run, f"AdapterSpectrum.vector_{name}", {scope: float(value)}, "module")


@holds(parameters.ALLOCATED)
def test_ranks_that_adalora_allocates(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = {"init_r": 5, "target_r": 2, "tinit": 1, "tfinal": 1, "deltaT": 1, "total_step": 8}
    model = peft.get_peft_model(Two(), peft.AdaLoraConfig(target_modules=list(SCOPES), **ranks))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    scores: list[Tensor] = []
    combine = RankAllocator._combine_ipt
    for step in range(5):
        model(noise(6, 14, seed=step).float()).square().mean().backward()
        optimizer.step()
        scores.clear()
        with monkeypatch.context() as patch:  # what PEFT's allocator itself makes of them, in the order of its modules
            patch.setattr(RankAllocator, "_combine_ipt", lambda *a: scores.append(combine(*a)) or scores[-1])
            model.base_model.update_and_allocate(step)
        optimizer.zero_grad()
    run = audited(model)
    assert len(scores) == len(SCOPES)
    for scope, score in zip(SCOPES, scores, strict=True):
        held(run, "AdapterSpectrum.importance_sum", {scope: float(score.double().sum())}, "module")
        kept = np.count_nonzero(layer(model, scope).lora_E["default"].detach().numpy())
        held(run, "AdapterSpectrum.allocated_rank", {scope: kept}, "module")


@holds(parameters.ADAPTER_NORMS)
def test_gradient_norms(held: Held) -> None:
    model = lora()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.0)
    with ls.watch(model, optimizer, probes=[ls.AdapterGradients(every=1)], strict=True) as w:
        model(noise(8, 14)).square().mean().backward()
        norms = grad_norm(model, 2)
        optimizer.step()
    for part in ("lora_A", "lora_B"):
        theirs = {scope: norms[f"grad_2.0_norm/base_model.model.{scope}.{part}.default.weight"] for scope in SCOPES}
        held(w.run, "AdapterGradients.norm", theirs, "module", component=part, stage="stepped")
