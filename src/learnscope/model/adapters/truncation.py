"""Adapters cut to fewer directions: how many hold a share of an update, and the model with no more than those."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from learnscope.model.adapters.extras import base_matrix, is_turned
from learnscope.model.adapters.inventory import Adapter
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
    """Names in the model of what is exchanged, by the part it plays: left, right, middle, base."""

    @property
    def sizes(self) -> tuple[int, int]:
        """Rows and columns of the update."""
        return self.left.shape[0], self.right.shape[0]

    @property
    def directions(self) -> int:
        """How many singular values count."""
        return Decomposed(self.values).rank()


def cuttable(model: nn.Module, adapters: Sequence[Adapter]) -> tuple[list[Cuttable], dict[int, str]]:
    """Those that can be cut, and for the places of the others the reason why they cannot."""
    names = {id(p): name for name, p in model.named_parameters()}
    reasons = {place: reason for place, one in enumerate(adapters) if (reason := _why_not(one)) is not None}
    left = [(place, one) for place, one in enumerate(adapters) if place not in reasons]
    factors = [one.parts.factors for _, one in left if one.parts.factors is not None]
    found = []
    for (place, one), spectrum in zip(left, decompose_factors(factors, vectors=True), strict=True):
        if bool(spectrum.values.isnan().any()):
            reasons[place] = NOT_FINITE
            continue
        held = {part: names[id(p)] for part, p in _parameters(one).items()}
        rows, columns = spectrum.left, spectrum.right
        assert rows is not None, "decomposed with its vectors"
        assert columns is not None, "decomposed with its vectors"
        found.append(Cuttable(one, spectrum.values, rows, columns, held))
    return found, reasons


def _why_not(one: Adapter) -> str | None:
    if one.parts.factors is None:
        return one.parts.reason or "it has no factors"
    if one.merged:
        return "it is merged into the weight: unmerge it first"
    if not one.active:
        return "it is not active: no forward uses it"
    if one.tied_to is not None:
        return f"it shares its parameters with {one.tied_to}"
    if one.parts.family == "vera":
        return VERA
    if _by_base(one):
        weight = base_matrix(one.layer)
        if isinstance(weight, str):
            return weight
        if weight.dtype not in (torch.float32, torch.float64):
            return f"its base weight is {weight.dtype}, whose rounding would hide what is cut off"
    return None


def _by_base(one: Adapter) -> bool:
    """Whether the cut is made in the base weight: with a start, the factors cannot hold what is left."""
    return one.parts.family not in (*LOW_RANK, "adalora") or start_of(one.layer, one.name) is not None


def _parameters(one: Adapter) -> dict[str, Any]:
    if _by_base(one):
        return {"base": one.layer.get_base_layer().weight}
    if one.parts.family == "adalora":
        parts = {"left": "lora_B", "right": "lora_A", "middle": "lora_E"}
        return {part: getattr(one.layer, name)[one.name] for part, name in parts.items()}
    left, right = lora_factors(one.layer, one.name)
    return {"left": left, "right": right}


def ranks_each(spectra: Sequence[Tensor], energy: float) -> list[int]:
    """For each spectrum the smallest k with Σ_{i≤k} σ² ≥ energy·Σσ²; 0 for one that is zero.

    >>> ranks_each([torch.tensor([3.0, 1.0]), torch.zeros(2)], 0.9), ranks_each([torch.tensor([3.0, 1.0])], 0.95)
    ([1, 0], [2])
    """
    ranks = []
    for values in spectra:
        squares = values.double().square()
        kept = squares.cumsum(0)
        # of the sum as it was rounded on the way, so that all of it is always reached
        ranks.append(int((kept < energy * kept[-1]).sum()) + 1 if float(kept[-1]) > 0 else 0)
    return ranks


def ranks_all(spectra: Sequence[Tensor], energy: float) -> list[int]:
    """The largest singular values of all spectra together that hold the share: how many of them are in each.

    >>> ranks_all([torch.tensor([3.0, 1.0]), torch.tensor([0.1, 0.1])], 0.95)
    [2, 0]
    """
    squares = torch.cat([values.double().square().cpu() for values in spectra])
    owners = torch.cat([torch.full((len(values),), place) for place, values in enumerate(spectra)])
    ordered, order = squares.sort(descending=True, stable=True)
    kept = ordered.cumsum(0)
    if not float(kept[-1]) > 0:
        return [0] * len(spectra)
    many = int((kept < energy * kept[-1]).sum()) + 1
    return torch.bincount(owners[order[:many]], minlength=len(spectra)).tolist()


def truncated(model: nn.Module, cut: Sequence[Cuttable], ranks: Sequence[int]) -> dict[str, Tensor]:
    """Weights for `swapped` with which every update is its best approximation of the given rank."""
    parameters = dict(model.named_parameters())
    weights: dict[str, Tensor] = {}
    for one, rank in zip(cut, ranks, strict=True):
        with plain_arithmetic(one.left.device):
            if "base" in one.parameters:
                weights |= _base_without(one, rank, parameters, weights)
            else:
                weights |= _factors(one, rank, parameters)
    return weights


def _factors(one: Cuttable, rank: int, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """U √(Σ/s) and √(Σ/s) Vᵀ; AdaLoRA has Σ/s in a place of its own."""
    factors = one.adapter.parts.factors
    assert factors is not None, "checked by cuttable"
    values = one.values[:rank] / factors.scaling if rank else one.values[:0]
    sign, root = values.sign(), values.abs().sqrt()
    left, right = one.left[:, :rank], one.right[:, :rank]
    if "middle" in one.parameters:
        parts = {"left": left, "right": right.mT, "middle": values[:, None]}
    else:
        parts = {"left": left * root * sign, "right": (right * root).mT}
    made = {}
    for part, value in parts.items():
        held = plain(parameters[one.parameters[part]])
        room = torch.zeros_like(held)
        flat = room.view(len(held), -1) if part != "middle" else room
        flat[: value.shape[0], : value.shape[1]] = value.to(held.dtype)
        made[one.parameters[part]] = room
    return made


def _base_without(
    one: Cuttable, rank: int, parameters: Mapping[str, Tensor], begun: Mapping[str, Tensor]
) -> dict[str, Tensor]:  # fmt: skip
    """The base less what is cut off; several adapters of one base take theirs off one after the other."""
    name = one.parameters["base"]
    off = (one.left[:, rank:] * one.values[rank:]) @ one.right[:, rank:].mT
    weight = begun[name] if name in begun else plain(parameters[name]).clone()
    weight -= (off.mT if is_turned(one.adapter.layer) else off).reshape(weight.shape).to(weight.dtype)
    return {name: weight}
