"""The angle between subspaces, and which directions of a tuned weight its base did not have."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from learnscope.tensor.adapters.spectrum import Factors
from learnscope.tensor.context import plain, plain_arithmetic
from learnscope.tensor.grouping import compute_in_groups

INTRUDERS, SIMILARITY = 10, 0.5
NEAR_RIGHT, NEAR_ZERO = 1e-6, 1 - 1e-4
"""Squared cosines: below the first an angle is within 0.06° of a right angle, above the second it is below 0.6°. The
square of a sine is then at least 1e-4, and 1 − cos² gives the sine to twelve digits."""
Spans = tuple[Tensor, Tensor]


def subspace_drifts(pairs: Sequence[Spans]) -> list[tuple[float, float]]:
    """For each pair of spans (orthonormal columns [d, i] and [d, j]): the largest principal angle in radians, and
    √(mean sin²θ), which is 0 for the same span and 1 for orthogonal ones.

    Of spans of unequal dimensions the smaller counts: one that lies within the other has not drifted. Large angles
    come from their cosine, small ones from their sine (Björck & Golub 1973; Knyazev & Argentati 2002): an arc cosine
    alone cannot tell angles below 1e-8 from 0.
    """
    key = lambda pair: tuple((span.shape, span.dtype, span.device) for span in pair)  # noqa: E731
    return compute_in_groups(pairs, key, _drifts)


def _drifts(pairs: Sequence[Spans]) -> list[tuple[float, float]]:
    device = pairs[0][1].device
    with plain_arithmetic(device):
        a, b = ([rowwise(span, device) for span in spans] for spans in zip(*pairs, strict=True))
        if a[0].shape[1] < b[0].shape[1]:
            a, b = b, a
        inner = _inner_products(a, b)
        cosines = torch.linalg.eigvalsh(inner.mT @ inner).clamp(0.0, 1.0)  # squared, the smallest first
        angle = cosines[:, 0].sqrt().acos()
        drift = (1 - cosines).mean(1).sqrt()
        # squares lose the digits of a cosine near 0 and of a sine near 0: these are computed directly
        wide, narrow = cosines[:, 0] < NEAR_RIGHT, cosines[:, 0] > NEAR_ZERO
        if bool(wide.any()):
            angle[wide] = torch.linalg.svdvals(inner[wide])[:, -1].clamp(max=1.0).acos()
        if bool(narrow.any()):
            places = narrow.nonzero().flatten().tolist()
            sines = torch.stack([_outside(a[place], b[place], inner[place]) for place in places])
            angle[narrow] = torch.linalg.eigvalsh(sines)[:, -1].clamp(0.0, 1.0).sqrt().asin()
            drift[narrow] = (sines.diagonal(0, 1, 2).sum(1) / b[0].shape[1]).sqrt()
        return list(zip(angle.tolist(), drift.tolist(), strict=True))


def _inner_products(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
    """aᵀb of every pair, [pairs, i, j]. On a CPU with NumPy, which takes half of torch's time for long, thin factors,
    and does not need them in one piece of memory."""
    if not a[0].is_cpu:
        return torch.stack(list(a)).mT @ torch.stack(list(b))
    products = np.empty((len(a), a[0].shape[1], b[0].shape[1]))
    for x, y, product in zip(a, b, products, strict=True):
        np.matmul(x.numpy().T, y.numpy(), product)
    return torch.from_numpy(products)


def _outside(a: Tensor, b: Tensor, inner: Tensor) -> Tensor:
    """The squared sines as a matrix [j, j]: of the part of the smaller span `b` that is outside of `a`."""
    if torch.equal(a, b):  # a frozen factor: it has not turned, and no digit is lost
        return torch.zeros_like(inner)
    rest = b - a @ inner
    return rest.mT @ rest


def rowwise(span: Tensor, device: torch.device) -> Tensor:
    """On the device in float64, each row in consecutive memory: the layout decides on every digit of a comparison."""
    if span.dtype is torch.float64 and span.device == device and span.is_contiguous():
        return span
    return span.to(device).double().contiguous()


def best_matches(weight: Tensor, factors: Factors, k: int = INTRUDERS) -> Tensor:
    """max_i |uᵢᵀu′_j| for the `k` leading left singular vectors u′_j of W + ΔW, over all left singular vectors of W.

    Vector u′_j is an intruder if this is below ε = `SIMILARITY` (arXiv 2410.21228, algorithm 1). W is the weight that
    training began with, [m, n] as the factors are; of both transposed, the right singular vectors are compared. Both
    matrices are fully decomposed in float64: this is for an audit, not for every step. There are fewer than `k`
    directions if W is smaller. No decomposition can tell directions of equal singular values apart.
    """
    with plain_arithmetic(weight.device):
        base, update = plain(weight).double(), factors.product().to(weight.device)
        if base.shape != update.shape:
            shapes = f"the weight is {tuple(base.shape)}, its update {tuple(update.shape)}"
            raise ValueError(f"{shapes}: pass both in the same layout, such as [outputs, inputs]")
        tuned = base + update
        if not bool(base.isfinite().all() & tuned.isfinite().all()):
            raise ValueError("the weight or its update has entries that are not finite: it has no singular vectors")
        directions = torch.linalg.svd(base, full_matrices=False).U
        leading = torch.linalg.svd(tuned, full_matrices=False).U[:, :k]
        matches: Tensor = (directions.mT @ leading).abs().amax(0)
        return matches
