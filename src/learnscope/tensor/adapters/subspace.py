"""The angle between subspaces, and which directions of a tuned weight its base did not have."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from learnscope.tensor.adapters.spectrum import Factors
from learnscope.tensor.context import plain, plain_arithmetic
from learnscope.tensor.grouping import compute_in_groups

INTRUDERS, SIMILARITY = 10, 0.5
NEAR_RIGHT, NEAR_ZERO = 1e-6, 1 - 1e-4
"""Squared cosines: below the first an angle is within 0.06° of a right angle, above the second it is below 0.6°. The
square of a sine is then at least 1e-4, and 1 − cos² gives the sine to twelve digits."""
TOGETHER = 1 << 22
"""Entries of spans of equal shape that are compared by one call."""

Spans = tuple[Tensor, Tensor]


def subspace_drifts(pairs: Sequence[Spans]) -> list[tuple[float, float]]:
    """For each pair of spans (orthonormal columns [d, i] and [d, j]): the largest principal angle in radians, and
    √(mean sin²θ), which is 0 for the same span and 1 for orthogonal ones.

    Of spans of unequal dimensions the smaller counts: one that lies within the other has not drifted. Large angles
    come from their cosine, small ones from their sine (Björck & Golub 1973; Knyazev & Argentati 2002): an arc cosine
    alone cannot tell angles below 1e-8 from 0.
    """
    return compute_in_groups(
        pairs,
        lambda pair: tuple((span.shape, span.dtype, span.device) for span in pair),
        _drifts,
        at_once=lambda pair: TOGETHER // max(span.numel() for span in pair),
    )


def _drifts(pairs: Sequence[Spans]) -> list[tuple[float, float]]:
    device = pairs[0][1].device
    with plain_arithmetic(device):
        a, b = (together(spans).to(device).double() for spans in zip(*pairs, strict=True))
        if a.shape[2] < b.shape[2]:
            a, b = b, a
        inner = a.mT @ b
        cosines = torch.linalg.eigvalsh(inner.mT @ inner).clamp(0.0, 1.0)  # squared, the smallest first
        angle = cosines[:, 0].sqrt().acos()
        drift = (1 - cosines).mean(1).sqrt()
        # squares lose the digits of a cosine near 0 and of a sine near 0: these are computed directly
        wide, narrow = cosines[:, 0] < NEAR_RIGHT, cosines[:, 0] > NEAR_ZERO
        if bool(wide.any()):
            angle[wide] = torch.linalg.svdvals(inner[wide])[:, -1].clamp(max=1.0).acos()
        if bool(narrow.all()) and torch.equal(a, b):  # frozen factors: nothing has turned, and no digit is lost
            angle, drift = torch.zeros_like(angle), torch.zeros_like(drift)
        elif bool(narrow.any()):
            rest = b[narrow] - a[narrow] @ inner[narrow]  # the part of the smaller span outside the larger
            angle[narrow] = torch.linalg.eigvalsh(rest.mT @ rest)[:, -1].clamp(0.0, 1.0).sqrt().asin()
            drift[narrow] = torch.linalg.matrix_norm(rest) / b.shape[2] ** 0.5
        return list(zip(angle.tolist(), drift.tolist(), strict=True))


def together(spans: Sequence[Tensor]) -> Tensor:
    """Spans of one shape as one tensor [spans, d, k], each column in consecutive memory, as QR leaves them.

    A view where they already are such slices of one tensor: they are then compared without a copy, which would take
    longer than to compare them. The layout is always the same, and with it every digit of a comparison.
    """
    first = spans[0]
    (d, k), memory = first.shape, first.untyped_storage().data_ptr()
    start, size, layout = first.data_ptr(), first.nbytes, (1, d)
    if all(
        span.stride() == layout
        and span.data_ptr() == start + size * place
        and span.untyped_storage().data_ptr() == memory
        for place, span in enumerate(spans)
    ):
        return first.as_strided((len(spans), d, k), (d * k, 1, d))
    return torch.stack([span.mT for span in spans]).mT


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
