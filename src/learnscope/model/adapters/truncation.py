"""Adapters cut to a lower rank: how many directions hold a share of an update, and the model with only those."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from learnscope.model.adapters.extras import base_matrix, is_turned
from learnscope.model.adapters.inventory import Adapter
from learnscope.model.adapters.plain import PlainLayer
from learnscope.model.adapters.start import lora_factors, start_of
from learnscope.tensor.adapters.spectrum import NOT_FINITE, Decomposed, decompose_factors
from learnscope.tensor.context import plain, plain_arithmetic

LOW_RANK = ("lora", "rslora", "lora+", "lora-fa", "dora")
"""Families whose own factors can hold any update of a lower rank."""
VERA = "VeRA's rank is that of matrices which are frozen and shared: a lower one saves next to nothing"


@dataclass(frozen=True, slots=True)
class Cuttable:
    """An adapter that can be cut: its update as left·diag(values)·rightᵀ, vectors as columns."""

    adapter: Adapter
    values: Tensor
    left: Tensor
    right: Tensor
    parameters: dict[str, str]
    """Names of the parameters to exchange, by role: left, right, middle, base."""

    @property
    def sizes(self) -> tuple[int, int]:
        """Rows and columns of the update."""
        return self.left.shape[0], self.right.shape[0]

    @property
    def directions(self) -> int:
        """The numerical rank of the update."""
        return Decomposed(self.values).rank()


def cuttable(model: nn.Module, adapters: Sequence[Adapter]) -> tuple[list[Cuttable], dict[int, str]]:
    """The adapters that can be cut, and for the indices of the others the reason why they cannot."""
    names = {id(p): name for name, p in model.named_parameters()}
    reasons = {place: reason for place, adapter in enumerate(adapters) if (reason := _why_not(adapter)) is not None}
    remaining = [(place, adapter) for place, adapter in enumerate(adapters) if place not in reasons]
    factors = [adapter.parts.factors for _, adapter in remaining if adapter.parts.factors is not None]
    possible = []
    for (place, adapter), spectrum in zip(remaining, decompose_factors(factors, vectors=True), strict=True):
        if bool(spectrum.values.isnan().any()):
            reasons[place] = NOT_FINITE
            continue
        parameters = {part: names[id(p)] for part, p in _parameters(adapter).items()}
        rows, columns = spectrum.left, spectrum.right
        assert rows is not None, "decomposed with its vectors"
        assert columns is not None, "decomposed with its vectors"
        possible.append(Cuttable(adapter, spectrum.values, rows, columns, parameters))
    return possible, reasons


def _why_not(adapter: Adapter) -> str | None:
    if adapter.parts.factors is None:
        return adapter.parts.reason or "it has no factors"
    if isinstance(adapter.layer, PlainLayer):
        return "PEFT did not make it: how its module uses the factors is not known"
    if adapter.merged:
        return "it is merged into the weight: unmerge it first"
    if not adapter.active:
        return "it is not active: no forward uses it"
    if adapter.tied_to is not None:
        return f"it shares its parameters with {adapter.tied_to}"
    if adapter.parts.family == "vera":
        return VERA
    if _by_base(adapter):
        weight = base_matrix(adapter.layer)
        if isinstance(weight, str):
            return weight
        if weight.dtype not in (torch.float32, torch.float64):
            return f"its base weight is {weight.dtype}, whose rounding would hide what is cut off"
    return None


def _by_base(adapter: Adapter) -> bool:
    """Whether the cut is made in the base weight: with initial factors, the adapter's own cannot hold the rest."""
    return adapter.parts.family not in (*LOW_RANK, "adalora") or start_of(adapter.layer, adapter.name) is not None


def _parameters(adapter: Adapter) -> dict[str, Any]:
    if _by_base(adapter):
        return {"base": adapter.layer.get_base_layer().weight}
    if adapter.parts.family == "adalora":
        parts = {"left": "lora_B", "right": "lora_A", "middle": "lora_E"}
        return {part: getattr(adapter.layer, name)[adapter.name] for part, name in parts.items()}
    left, right = lora_factors(adapter.layer, adapter.name)
    return {"left": left, "right": right}


def ranks_each(spectra: Sequence[Tensor], energy: float) -> list[int]:
    """For each spectrum the smallest k with Σ_{i≤k} σ² ≥ energy·Σσ²; 0 for one that is zero.

    >>> ranks_each([torch.tensor([3.0, 1.0]), torch.zeros(2)], 0.9), ranks_each([torch.tensor([3.0, 1.0])], 0.95)
    ([1, 0], [2])
    """
    ranks = []
    for values in spectra:
        total = values.double().square().cumsum(0)
        # a share of the rounded cumulative sum, so that the whole is always reached
        ranks.append(int((total < energy * total[-1]).sum()) + 1 if float(total[-1]) > 0 else 0)
    return ranks


def ranks_all(spectra: Sequence[Tensor], energy: float) -> list[int]:
    """How many of each spectrum are among the largest singular values of all spectra that together hold the share.

    >>> ranks_all([torch.tensor([3.0, 1.0]), torch.tensor([0.1, 0.1])], 0.95)
    [2, 0]
    """
    squares = torch.cat([values.double().square().cpu() for values in spectra])
    owners = torch.cat([torch.full((len(values),), place) for place, values in enumerate(spectra)])
    ordered, order = squares.sort(descending=True, stable=True)
    total = ordered.cumsum(0)
    if not float(total[-1]) > 0:
        return [0] * len(spectra)
    count = int((total < energy * total[-1]).sum()) + 1
    return torch.bincount(owners[order[:count]], minlength=len(spectra)).tolist()


def truncated(model: nn.Module, chosen: Sequence[Cuttable], ranks: Sequence[int]) -> dict[str, Tensor]:
    """Weights for `swapped` that replace every update by its best approximation of the given rank."""
    parameters = dict(model.named_parameters())
    weights: dict[str, Tensor] = {}
    for update, rank in zip(chosen, ranks, strict=True):
        with plain_arithmetic(update.left.device):
            if "base" in update.parameters:  # minus what is cut off; several adapters of one base one after the other
                name = update.parameters["base"]
                off = (update.left[:, rank:] * update.values[rank:]) @ update.right[:, rank:].mT
                weight = weights[name] if name in weights else plain(parameters[name]).clone()
                weight -= (off.mT if is_turned(update.adapter.layer) else off).reshape(weight.shape).to(weight.dtype)
                weights[name] = weight
            else:
                weights |= _factors(update, rank, parameters)
    return weights


def _factors(update: Cuttable, rank: int, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """U √(Σ/s) and √(Σ/s) Vᵀ; AdaLoRA has its own parameter for Σ/s."""
    factors = update.adapter.parts.factors
    assert factors is not None, "checked by cuttable"
    values = update.values[:rank] / factors.scaling if rank else update.values[:0]
    sign, root = values.sign(), values.abs().sqrt()
    left, right = update.left[:, :rank], update.right[:, :rank]
    if "middle" in update.parameters:
        parts = {"left": left, "right": right.mT, "middle": values[:, None]}
    else:
        parts = {"left": left * root * sign, "right": (right * root).mT}
    tensors = {}
    for part, value in parts.items():
        current = plain(parameters[update.parameters[part]])
        padded = torch.zeros_like(current)
        flat = padded.view(len(current), -1) if part != "middle" else padded
        flat[: value.shape[0], : value.shape[1]] = value.to(current.dtype)
        tensors[update.parameters[part]] = padded
    return tensors
