"""What each family of adapters adds to a weight, as PEFT computes it: one small function a family."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from learnscope.model.adapters.start import lora_factors, start_of
from learnscope.tensor.adapters.spectrum import Factors
from learnscope.tensor.context import plain

RESIDUAL_STARTS = ("pissa", "olora", "corda", "lora_ga", "loftq")
"""Beginnings that move a part of the weight into the adapter."""
NO_START = (
    "the factors it began with were not kept: call learnscope.remember_start(model) after the adapter is made and "
    "before it is trained"
)
NO_MATRIX = {
    "ia3": "IA³ multiplies activations by a vector: it adds no matrix to the weight",
    "layernorm": "LayerNorm tuning trains vectors: it adds no matrix to a weight",
}


@dataclass(slots=True)
class Parts:
    """What an adapter is made of: `factors` of its update or the `reason` for none, vectors with their beginnings."""

    family: str
    rank: int | None = None
    factors: Factors | None = None
    reason: str | None = None
    vectors: dict[str, tuple[Tensor, Tensor | None]] = field(default_factory=dict)
    tied: tuple[int, int] | None = None
    """Identity of the parameters it is made of, to tell adapters that share them."""


def lora_parts(layer: Any, name: str, config: Any, rates: Mapping[int, float]) -> Parts:
    """ΔW = scaling·B A; less what it began with for PiSSA, MiLoRA and their like."""
    left, right = lora_factors(layer, name)
    family = _lora_family(layer, name, config, (left, right), rates)
    parts = Parts(family, int(layer.r[name]), tied=(id(left), id(right)))
    magnitude = getattr(layer, "lora_magnitude_vector", {})
    if family == "dora" and name in magnitude:  # every LoRA layer has the dictionary, empty
        parts.vectors["magnitude"] = (magnitude[name].weight, None)
    parts.reason = _why_no_product(layer)
    if parts.reason is not None:
        return parts
    start = start_of(layer, name)
    if start is None and _begins_with_weight(config):
        parts.reason = NO_START
        return parts
    kept = None if start is None else (start.left, start.right)
    parts.factors = Factors(left.detach().flatten(1), right.detach().flatten(1), float(layer.scaling[name]), kept)
    return parts


def _begins_with_weight(config: Any) -> bool:
    how = getattr(config, "init_lora_weights", None)
    return isinstance(how, str) and how.lower().startswith(RESIDUAL_STARTS)


def _why_no_product(layer: Any) -> str | None:
    """Layers whose update is no single product of two matrices."""
    base = layer.get_base_layer()
    if getattr(base, "groups", 1) > 1:
        return "a convolution in groups: its update is no single product of two matrices"
    if getattr(layer, "num_experts", 1) > 1:
        return "several experts in one parameter: its update is no single product of two matrices"
    return None


def _lora_family(layer: Any, name: str, config: Any, factors: tuple[Tensor, Tensor], rates: Mapping[int, float]) -> str:
    """Its name: what it computes first, then how it began, then how it is trained, then how it is scaled."""
    left, right = factors
    if layer.use_dora.get(name):
        return "dora"
    start = start_of(layer, name)
    faster = rates.get(id(left), 0.0) > rates.get(id(right), rates.get(id(left), 0.0))
    if start is not None and start.method == "milora":
        return "milora+" if faster else "milora"
    if _begins_with_weight(config):
        how = config.init_lora_weights.lower()
        return next(known for known in RESIDUAL_STARTS if how.startswith(known))
    if faster:
        return "lora+"
    if left.requires_grad and not right.requires_grad:
        return "lora-fa"
    return "rslora" if layer.use_rslora.get(name) else "lora"


def adalora_parts(layer: Any, name: str) -> Parts:
    """ΔW = scaling/(ranknum + 1e-5) · B (A ∘ E): P diag(E) Q in the paper's letters."""
    left, right, middle = (plain(getattr(layer, f"lora_{part}")[name]) for part in "BAE")
    scaling = float(layer.scaling[name]) / float(plain(layer.ranknum[name]) + 1e-5)
    parts = Parts("adalora", int(layer.r[name]), tied=(id(layer.lora_B[name]), id(layer.lora_A[name])))
    if not left.shape[1]:
        parts.reason = "its rank is 0"
        return parts
    parts.vectors["lora_E"] = (middle, torch.zeros_like(middle))
    parts.factors = Factors(left, right.double() * middle.double(), scaling)
    return parts


def vera_parts(layer: Any, name: str) -> Parts:
    """ΔW = diag(λ_b) B diag(λ_d) A; all layers share A and B, and each takes their first columns and rows."""
    rows, columns = plain(layer.vera_lambda_b[name]), plain(layer.vera_lambda_d[name])
    left = plain(layer.vera_B[name])[: layer.out_features].to(rows.device).double() * rows.double()[:, None]
    right = plain(layer.vera_A[name])[:, : layer.in_features].to(rows.device).double() * columns.double()[:, None]
    vectors: dict[str, tuple[Tensor, Tensor | None]] = {"lambda_b": (rows, torch.zeros_like(rows))}
    vectors["lambda_d"] = (columns, None)
    tied = (id(layer.vera_lambda_b[name]), id(layer.vera_lambda_d[name]))
    return Parts("vera", int(layer.r[name]), Factors(left, right), vectors=vectors, tied=tied)


def ia3_parts(layer: Any, name: str) -> Parts:
    """A vector that begins with ones."""
    vector = layer.ia3_l[name]
    kept: dict[str, tuple[Tensor, Tensor | None]] = {"ia3_l": (vector, torch.ones_like(plain(vector)))}
    return Parts("ia3", reason=NO_MATRIX["ia3"], vectors=kept, tied=(id(vector), id(vector)))


def layernorm_parts(layer: Any, name: str) -> Parts:
    """A trained copy of a norm; its weight and bias beside those of the norm it began with."""
    tuned, base = layer.ln_tuning_layers[name], layer.base_layer
    if name in layer.merged_adapters:  # merging exchanges the two
        tuned, base = base, tuned
    before = dict(_own_parameters(base))
    kept: dict[str, tuple[Tensor, Tensor | None]] = {
        which: (tensor, before.get(which)) for which, tensor in _own_parameters(tuned)
    }
    return Parts("layernorm", reason=NO_MATRIX["layernorm"], vectors=kept)


def _own_parameters(module: nn.Module) -> list[tuple[str, Tensor]]:
    return list(module.named_parameters(recurse=False))
