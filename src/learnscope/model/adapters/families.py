"""What each family of adapters adds to a weight, as PEFT computes it: one function per family."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from learnscope.model.adapters.plain import PlainLayer, weight_of
from learnscope.model.adapters.start import lora_factors, start_of
from learnscope.tensor.adapters.spectrum import Factors
from learnscope.tensor.context import plain

RESIDUAL_STARTS = ("pissa", "olora", "corda", "lora_ga", "loftq")
"""Initialisations that move a part of the weight into the adapter."""
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
    """The parts of an adapter: `factors` of its update or the `reason` for none, `vectors` with initial values."""

    family: str
    rank: int | None = None
    factors: Factors | None = None
    reason: str | None = None
    vectors: dict[str, tuple[Tensor, Tensor | None]] = field(default_factory=dict)
    tied: tuple[int, int] | None = None
    """Ids of its parameters, to find adapters that share them."""


def lora_parts(layer: Any, name: str, config: Any, rates: Mapping[int, float]) -> Parts:
    """ΔW = scaling·B A; for PiSSA, MiLoRA and similar methods minus the initial product."""
    left, right = lora_factors(layer, name)
    family = _lora_family(layer, name, config, (left, right), rates)
    parts = Parts(family, int(layer.r[name]), tied=(id(left), id(right)))
    magnitude = getattr(layer, "lora_magnitude_vector", {})
    if family == "dora" and name in magnitude:  # other LoRA layers have the dictionary too, but empty
        parts.vectors["magnitude"] = (weight_of(magnitude[name]), None)
    start = start_of(layer, name)
    if getattr(layer.get_base_layer(), "groups", 1) > 1:
        parts.reason = "a convolution in groups: its update is no single product of two matrices"
    elif getattr(layer, "num_experts", 1) > 1:
        parts.reason = "several experts in one parameter: its update is no single product of two matrices"
    elif start is None and _starts_with_weight(config):
        parts.reason = NO_START
    else:
        initial = None if start is None else (start.left, start.right)
        scaling = float(layer.scaling[name])
        matrices = layer.matrices(name) if isinstance(layer, PlainLayer) else (left.flatten(1), right.flatten(1))
        if isinstance(matrices, str):
            parts.reason = matrices
        else:
            parts.factors = Factors(matrices[0].detach(), matrices[1].detach(), scaling, initial)
    return parts


def _starts_with_weight(config: Any) -> bool:
    how = getattr(config, "init_lora_weights", None)
    return isinstance(how, str) and how.lower().startswith(RESIDUAL_STARTS)


def _lora_family(layer: Any, name: str, config: Any, factors: tuple[Tensor, Tensor], rates: Mapping[int, float]) -> str:
    """The family's name, by what it computes, then by initialisation, then by training, then by scaling."""
    left, right = factors
    if layer.use_dora.get(name):
        return "dora"
    start = start_of(layer, name)
    faster = rates.get(id(left), 0.0) > rates.get(id(right), rates.get(id(left), 0.0))
    if start is not None and start.method == "milora":
        return "milora+" if faster else "milora"
    if _starts_with_weight(config):
        how = config.init_lora_weights.lower()
        return next(method for method in RESIDUAL_STARTS if how.startswith(method))
    if faster:
        return "lora+"
    if left.requires_grad and not right.requires_grad:
        return "lora-fa"
    return "rslora" if layer.use_rslora.get(name) else "lora"


def adalora_parts(layer: Any, name: str) -> Parts:
    """ΔW = scaling/(ranknum + 1e-5) · B (A ∘ E): P diag(E) Q in the paper's letters."""
    left, right, middle = (plain(weight_of(getattr(layer, f"lora_{part}")[name])) for part in "BAE")
    middle = middle.view(-1, 1)
    rank, tied = int(layer.r[name]), (id(layer.lora_B[name]), id(layer.lora_A[name]))
    if not left.shape[1]:
        return Parts("adalora", rank, reason="its rank is 0", tied=tied)
    scaling = float(layer.scaling[name])
    if name in layer.ranknum:
        scaling /= float(layer.ranknum[name]) + 1e-5
    factors = Factors(left, right.double() * middle.double(), scaling)
    return Parts("adalora", rank, factors, vectors={"lora_E": (middle, torch.zeros_like(middle))}, tied=tied)


def vera_parts(layer: Any, name: str) -> Parts:
    """ΔW = diag(λ_b) B diag(λ_d) A; all layers share A and B, and each uses their first columns and rows."""
    rows, columns = plain(layer.vera_lambda_b[name]), plain(layer.vera_lambda_d[name])
    left = plain(layer.vera_B[name])[: layer.out_features].to(rows.device).double() * rows.double()[:, None]
    right = plain(layer.vera_A[name])[:, : layer.in_features].to(rows.device).double() * columns.double()[:, None]
    tied = (id(layer.vera_lambda_b[name]), id(layer.vera_lambda_d[name]))
    vectors = {"lambda_b": (rows, torch.zeros_like(rows)), "lambda_d": (columns, None)}
    return Parts("vera", int(layer.r[name]), Factors(left, right), vectors=vectors, tied=tied)


def ia3_parts(layer: Any, name: str) -> Parts:
    """A vector that starts as ones."""
    vector = layer.ia3_l[name]
    tied, ones = (id(vector), id(vector)), torch.ones_like(plain(vector))
    return Parts("ia3", reason=NO_MATRIX["ia3"], vectors={"ia3_l": (vector, ones)}, tied=tied)


def layernorm_parts(layer: Any, name: str) -> Parts:
    """A trained copy of a norm: its weight and bias, with those of the original norm as initial values."""
    tuned, base = layer.ln_tuning_layers[name], layer.base_layer
    if name in layer.merged_adapters:  # merging exchanges the two
        tuned, base = base, tuned
    before = dict(base.named_parameters(recurse=False))
    vectors = {which: (p, before.get(which)) for which, p in tuned.named_parameters(recurse=False)}
    return Parts("layernorm", reason=NO_MATRIX["layernorm"], vectors=vectors)
