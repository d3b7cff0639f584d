"""Perturbations of bounded size: the ball they lie in, steps, projections and random draws.

A perturbation has the shape [B, ...] of the tensor it is added to. It consists of cells: one per example (`lead` = 1)
or one per token (`lead` = 2, [B, T, H]). Every cell has its own radius. L∞ bounds each entry, L2 the norm of the cell.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from learnscope.tensor.context import arithmetic_dtype

Norm = Literal["linf", "l2"]
NORMS: tuple[Norm, ...] = get_args(Norm)


@dataclass(frozen=True, slots=True)
class Ball:
    """The allowed perturbations. Entries that are not free, such as padding, are never perturbed and never count."""

    norm: Norm
    radius: Tensor
    """One per cell, with the perturbation's dimensions after `lead` reduced to length 1."""
    free: Tensor
    """Booleans that broadcast to the perturbation: which entries may change."""
    lead: int

    def of(self, share: float) -> Ball:
        """The ball with this share of the radii."""
        return replace(self, radius=self.radius * share)


def lengths(values: Tensor, lead: int) -> Tensor:
    """The L2 norm of each cell, with the cell's dimensions kept at length 1."""
    cells = values.reshape(*values.shape[:lead], -1)
    top = cells.abs().amax(-1, keepdim=True) if cells.shape[-1] else cells.sum(-1, keepdim=True)
    # entries are first divided by the cell's largest: the square of 1e-25 is 0 in float32
    scale = torch.where((top > 0) & top.isfinite(), top, 1)
    norms: Tensor = scale * torch.linalg.vector_norm(cells / scale, dim=-1, keepdim=True)
    return norms.reshape(_cells(values, lead))


def entries(values: Tensor, free: Tensor, lead: int) -> Tensor:
    """How many entries of each cell are free, shaped as `lengths`."""
    cells = free.expand(values.shape).reshape(*values.shape[:lead], -1)
    return cells.sum(-1).reshape(_cells(values, lead))


def ascend(gradient: Tensor, ball: Ball) -> Tensor:
    """The unit step along which the loss rises fastest: sign(g) for L∞, g/‖g‖ of each cell for L2; 0 for 0 and NaN."""
    gradient = torch.where(ball.free & ~gradient.isnan(), gradient, 0)
    if ball.norm == "linf":
        return gradient.sign()
    cells = gradient.reshape(*gradient.shape[: ball.lead], -1)
    top = cells.abs().amax(-1, keepdim=True).reshape(_cells(gradient, ball.lead))
    scaled = gradient / torch.where(top > 0, top, 1)
    length = lengths(scaled, ball.lead)
    return scaled / torch.where(length > 0, length, 1)


def project(delta: Tensor, ball: Ball) -> Tensor:
    """The nearest perturbation inside the ball: each entry clamped for L∞, each cell scaled down for L2."""
    delta = torch.where(ball.free, delta, 0)
    radius = ball.radius.to(delta.dtype)
    if ball.norm == "linf":
        return torch.minimum(torch.maximum(delta, -radius), radius)
    length = lengths(delta, ball.lead)
    # scaled only where it is too long: a perturbation inside stays bit for bit as it is
    return torch.where(length > radius, delta * (radius / torch.where(length > 0, length, 1)), delta)


def clipped(delta: Tensor, origin: Tensor, clip: tuple[float, float] | None) -> Tensor:
    """The perturbation with which `origin` stays within the range of valid inputs."""
    return delta if clip is None else (origin + delta).clamp(*clip) - origin


def uniform(ball: Ball, like: Tensor, generator: torch.Generator) -> Tensor:
    """A perturbation drawn uniformly from the ball; padding does not change what other entries get."""
    radius = ball.radius.to(like.dtype)
    if ball.norm == "linf":
        return _drawn(ball.free, like, generator) * radius
    count = entries(like, ball.free, ball.lead)
    share = _drawn(count > 0, radius, generator).abs()
    # the volume within a share of the radius grows with the share to the power of the dimension
    return _direction(ball, like, generator) * radius * share ** (1 / count.clamp(min=1))


def random_of_equal_norm(ball: Ball, like: Tensor, generator: torch.Generator) -> Tensor:
    """A random perturbation of the largest allowed size: random signs for L∞, a uniform direction for L2."""
    linf = ball.norm == "linf"
    direction = _drawn(ball.free, like, generator).sign() if linf else _direction(ball, like, generator)
    return direction * ball.radius.to(like.dtype)


def _direction(ball: Ball, like: Tensor, generator: torch.Generator) -> Tensor:
    drawn = _drawn(ball.free, like, generator, normal=True)
    length = lengths(drawn, ball.lead)
    return drawn / torch.where(length > 0, length, 1)


def _drawn(free: Tensor, like: Tensor, generator: torch.Generator, *, normal: bool = False) -> Tensor:
    """Random numbers for the free entries, 0 elsewhere: normal, or uniform in [−1, 1). On the generator's device."""
    free = free.expand(like.shape)
    draw = torch.randn if normal else torch.rand
    numbers = draw(int(free.sum()), generator=generator, dtype=arithmetic_dtype(like), device=generator.device)
    drawn = torch.zeros_like(like)
    drawn[free] = (numbers if normal else numbers * 2 - 1).to(like)
    return drawn


def _cells(values: Tensor, lead: int) -> tuple[int, ...]:
    return (*values.shape[:lead], *[1] * (values.ndim - lead))
