"""How large an attack may be: ε in its units, as a ball around the attacked input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from learnscope.model.robustness.target import Target
from learnscope.model.robustness.token_units import nearest_distances, real_tokens, token_count, token_table
from learnscope.tensor.robustness.perturbation import Ball, Norm, entries, lengths

Unit = Literal["absolute", "relative", "token"]
Per = Literal["token", "sequence", "example"]
UNITS: tuple[Unit, ...] = ("absolute", "relative", "token")
PERS: tuple[Per, ...] = ("token", "sequence", "example")


@dataclass(frozen=True, slots=True)
class Threat:
    """What an ε means.

    L2 bounds the length of a cell: of every token's embedding (`per="token"`), of all embeddings of a sequence as one
    vector, or of an example's input. L∞ bounds every entry. In the unit "absolute" ε is that bound. In "relative" it is
    a share of the cell's own length ‖e‖₂, in "token" of the distance to the nearest other token (of a sequence: √Σd²).
    For L∞ these are shares of the longest possible perturbation, which has ‖δ‖₂ = √n ε: a relative ε allows the same L2
    length under both norms.
    """

    norm: Norm
    per: Per
    unit: Unit

    @property
    def lead(self) -> int:
        return 2 if self.per == "token" else 1


def token_distances(model: nn.Module, targets: Sequence[Target], tokenizer: Any) -> list[Tensor | None]:
    """Distance of every token's embedding to the nearest other real token's, [B, T], or NaN; None for float inputs."""
    first = targets[0].embedding
    if first is None:
        return [None] * len(targets)
    table = token_table(first, real_tokens(model, token_count(first), tokenizer))
    flat = torch.cat([target.origin.flatten(0, 1) for target in targets])
    distances = nearest_distances(flat, table[table.isfinite().all(1)])
    distances = torch.where(distances.isfinite(), distances, torch.nan)
    shapes = [target.origin.shape[:2] for target in targets]
    parts = distances.split([shape.numel() for shape in shapes])
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]


def unit_ball(target: Target, threat: Threat, distances: Tensor | None) -> Ball:
    """The ball of ε = 1; `Ball.of(epsilon)` scales it."""
    count = entries(target.origin, target.free, threat.lead)
    if threat.unit == "absolute":
        radius = torch.ones_like(count, dtype=torch.float64)
    else:
        radius = _scale(target, threat.unit, threat.lead, distances)
        if not bool(radius.isfinite().all()):
            raise ValueError(_NO_SIZE[threat.unit])
        if threat.norm == "linf":
            radius = radius / count.clamp(min=1).sqrt()
    return Ball(threat.norm, radius, target.free, threat.lead)


def sizes(target: Target, ball: Ball, distances: Tensor | None) -> Mapping[str, list[float]]:
    """The ball's radii in every unit, one entry per cell that may move; `token` is missing for continuous inputs."""
    lead = ball.lead
    count = entries(target.origin, target.free, lead)
    longest = ball.radius * count.sqrt() if ball.norm == "linf" else ball.radius
    radii = {"absolute": ball.radius, "relative": longest / _scale(target, "relative", lead, distances)}
    if distances is not None:
        radii["token"] = longest / _scale(target, "token", lead, distances)
    moves = count > 0
    # a cell of length 0 has no relative radius: 0/0 and ε/0 are left out of the mean
    return {name: [v for v in values[moves].tolist() if abs(v) < torch.inf] for name, values in radii.items()}


_NO_SIZE = {
    "token": "a token of the data has no other one that differs from it, or its embedding is not finite: there is no "
    "distance to measure ε by; use unit='absolute'",
    "relative": "what is attacked holds NaN or Inf, and has no length to measure ε by; use unit='absolute', or look "
    "where they come from",
}


def _scale(target: Target, unit: Unit, lead: int, distances: Tensor | None) -> Tensor:
    """The L2 length of each cell, or of the distances of its tokens to their nearest others; in float64."""
    if unit == "token":
        if distances is None:
            raise ValueError("continuous inputs have no tokens to measure ε by: use unit='relative' or 'absolute'")
        return lengths(torch.where(target.free, distances.to(target.origin.device)[..., None], 0), lead)
    return lengths(torch.where(target.free, target.origin.double(), 0), lead)
