"""Perturbations of bounded size: the ball they lie in, steps and projections, random ones.

A perturbation is [B, ...], and so is what it is added to. It falls into cells: one an example (`lead` = 1) or one a
token (`lead` = 2, [B, T, H]). Every cell has a radius of its own. L∞ bounds each entry, L2 the length of the cell.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

Norm = Literal["linf", "l2"]
NORMS: tuple[Norm, ...] = get_args(Norm)


@dataclass(frozen=True, slots=True)
class Ball:
    """What a perturbation may be. Entries that are not free, such as padding, never move and never count."""

    norm: Norm
    radius: Tensor
    """One a cell, of the perturbation's dimensions with those after `lead` of length 1."""
    free: Tensor
    """Booleans that broadcast to the perturbation: what may move."""
    lead: int

    def of(self, share: float) -> Ball:
        """The ball whose radii are this share of these."""
        return Ball(self.norm, self.radius * share, self.free, self.lead)


def lengths(values: Tensor, lead: int) -> Tensor:
    """The L2 norm of each cell, with the cell's dimensions kept at length 1.

    Entries are divided by the cell's largest first: squares of 1e-25 are 0 in float32.
    """
    cells = values.reshape(*values.shape[:lead], -1)
    top = cells.abs().amax(-1, keepdim=True) if cells.shape[-1] else cells.sum(-1, keepdim=True)
    scale = torch.where((top > 0) & top.isfinite(), top, 1)
    found: Tensor = scale * torch.linalg.vector_norm(cells / scale, dim=-1, keepdim=True)
    return found.reshape(_cells(values, lead))


def entries(values: Tensor, free: Tensor, lead: int) -> Tensor:
    """How many entries of each cell are free, shaped as `lengths`."""
    cells = free.expand(values.shape).reshape(*values.shape[:lead], -1)
    return cells.sum(-1).reshape(_cells(values, lead))


def ascend(gradient: Tensor, ball: Ball) -> Tensor:
    """The step of length one along which the loss rises fastest: sign(g) for L∞, g/‖g‖ of each cell for L2.

    Where the gradient is 0 there is no direction, and the step is 0. NaN counts as 0.
    """
    gradient = torch.where(ball.free & ~gradient.isnan(), gradient, 0)
    if ball.norm == "linf":
        return gradient.sign()
    cells = gradient.reshape(*gradient.shape[: ball.lead], -1)
    top = cells.abs().amax(-1, keepdim=True).reshape(_cells(gradient, ball.lead))
    scaled = gradient / torch.where(top > 0, top, 1)
    length = lengths(scaled, ball.lead)
    return scaled / torch.where(length > 0, length, 1)


def project(delta: Tensor, ball: Ball) -> Tensor:
    """The nearest perturbation that lies in the ball: each entry clamped for L∞, each cell shortened for L2."""
    delta = torch.where(ball.free, delta, 0)
    radius = ball.radius.to(delta.dtype)
    if ball.norm == "linf":
        return torch.minimum(torch.maximum(delta, -radius), radius)
    length = lengths(delta, ball.lead)
    # divided only where it is too long: a perturbation inside stays as it is, bit for bit
    return torch.where(length > radius, delta * (radius / torch.where(length > 0, length, 1)), delta)


def inside(delta: Tensor, origin: Tensor, clip: tuple[float, float] | None) -> Tensor:
    """The perturbation with which `origin` stays within the range of valid inputs."""
    return delta if clip is None else (origin + delta).clamp(*clip) - origin


def uniform(ball: Ball, like: Tensor, generator: torch.Generator) -> Tensor:
    """A perturbation drawn evenly from the ball, for the entries that are free.

    Only these are drawn for, so that padding more or less does not change what the others are given.
    """
    if ball.norm == "linf":
        return _drawn(ball.free, like, generator, "uniform") * ball.radius.to(like.dtype)
    count = entries(like, ball.free, ball.lead)
    share = _drawn(count > 0, ball.radius.to(like.dtype), generator, "uniform").abs()
    # the volume within a share of the radius grows with the share to the power of the dimension
    return _direction(ball, like, generator) * ball.radius.to(like.dtype) * share ** (1 / count.clamp(min=1))


def random_of_equal_norm(ball: Ball, like: Tensor, generator: torch.Generator) -> Tensor:
    """A random perturbation as large as the ball lets it be: random signs for L∞, a direction drawn evenly for L2."""
    if ball.norm == "linf":
        return _drawn(ball.free, like, generator, "uniform").sign() * ball.radius.to(like.dtype)
    return _direction(ball, like, generator) * ball.radius.to(like.dtype)


def _direction(ball: Ball, like: Tensor, generator: torch.Generator) -> Tensor:
    drawn = _drawn(ball.free, like, generator, "normal")
    length = lengths(drawn, ball.lead)
    return drawn / torch.where(length > 0, length, 1)


def _drawn(free: Tensor, like: Tensor, generator: torch.Generator, kind: Literal["uniform", "normal"]) -> Tensor:
    """Numbers for the free entries, 0 elsewhere: normal, or even in [−1, 1). Drawn where the generator lives."""
    free = free.expand(like.shape)
    count = int(free.sum())
    dtype = torch.float64 if like.dtype is torch.float64 else torch.float32
    if kind == "normal":
        numbers = torch.randn(count, generator=generator, dtype=dtype, device=generator.device)
    else:
        numbers = torch.rand(count, generator=generator, dtype=dtype, device=generator.device) * 2 - 1
    found = torch.zeros_like(like)
    found[free] = numbers.to(like)
    return found


def _cells(values: Tensor, lead: int) -> tuple[int, ...]:
    return (*values.shape[:lead], *[1] * (values.ndim - lead))
