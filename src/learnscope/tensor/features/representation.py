"""How many directions a set of features uses, and how far apart its classes are."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from learnscope.tensor.context import plain, plain_arithmetic

RANKME_EPSILON = 1e-7
"""Added to every share, as in arXiv 2210.02885 for float32 features."""
CHUNK = 1 << 24
"""Differences computed at a time."""


def effective_rank(singular_values: Tensor) -> float:
    """exp(−Σ p ln p) with p = σ/Σσ (Roy & Vetterli 2007): 1 for one direction, d for d equal ones; NaN for zeros."""
    return float(effective_ranks(plain(singular_values).double()[None])[0])


def effective_ranks(spectra: Tensor) -> Tensor:
    """`effective_rank` of every row [n, k]; rows may be padded with zeros."""
    totals = spectra.sum(1, keepdim=True)
    ranks: Tensor = torch.special.entr(spectra / totals).sum(1).exp()  # entr(0) = 0
    return ranks.where((totals[:, 0] > 0) & totals[:, 0].isfinite(), torch.nan)


def rankme(singular_values: Tensor) -> float:
    """exp(−Σ p ln p) with p = σ/Σσ + ε over all min(n, d) singular values (arXiv 2210.02885); NaN for zeros."""
    values = plain(singular_values).double()
    total = float(values.sum())
    if not 0 < total < math.inf:
        return math.nan
    return math.exp(float(torch.special.entr(values / total + RANKME_EPSILON).sum()))


def singular_values(features: Tensor, *, centred: bool) -> Tensor:
    """Singular values of the features [n, d] in float64, with their mean or (`centred`) without."""
    with plain_arithmetic(features.device):
        x = plain(features).double()
        values: Tensor = torch.linalg.svdvals(_deviations(x, x.mean(0)) if centred else x)
        return values


@dataclass(frozen=True, slots=True)
class Separation:
    """How far apart classes are. Distances have the features' units, `ratio` has none."""

    ratio: float
    """Σ_c n_c‖μ_c − μ‖² / Σ_i ‖x_i − μ_{y_i}‖²: between-class over within-class scatter."""
    within: float
    """Mean Euclidean distance of two different examples of one class; NaN if no class has two."""
    between: float
    """Mean Euclidean distance of two examples of different classes; NaN if there is one class."""


def separation(features: Tensor, labels: Tensor) -> Separation:
    """The separation of features [n, d] by integer labels [n] of at least one example.

    `why_not_within` and `why_not_between` say which distances there are; the ratio needs both.
    """
    with plain_arithmetic(features.device):
        x = plain(features).double()
        classes, which = torch.unique(labels, return_inverse=True)
        sizes = torch.bincount(which, minlength=len(classes)).double()
        x = _deviations(x, x.mean(0))
        means = torch.zeros(len(classes), x.shape[1], dtype=x.dtype, device=x.device).index_add_(0, which, x)
        means /= sizes[:, None]
        between = float((means.square().sum(1) * sizes).sum())
        within = float(_deviations(x, means[which]).square().sum())
        ratio = between / within if within > 0 else (math.inf if between > 0 else math.nan)
        return Separation(ratio, *_distances(x, which, sizes))


def why_not_within(labels: Tensor) -> str | None:
    """Why these labels give no distance within a class; None if they do."""
    return "no class has two examples" if len(torch.unique(labels)) == len(labels) else None


def why_not_between(labels: Tensor) -> str | None:
    """Why these labels give no distance between classes; None if they do."""
    classes = len(torch.unique(labels))
    return None if classes > 1 else f"two classes are needed; there {'is one' if classes else 'is none'}"


def _deviations(x: Tensor, mean: Tensor) -> Tensor:
    """x − mean, 0 where it is within the mean's own rounding error: equal rows must not differ from their mean."""
    deviations = x - mean
    rounding = len(x) * torch.finfo(x.dtype).eps * x.abs().amax(0)
    return torch.where(deviations.abs() <= rounding, 0.0, deviations)


def _distances(x: Tensor, which: Tensor, sizes: Tensor) -> tuple[float, float]:
    """Mean distance within a class and between classes, in chunks of rows so that no n × n × d tensor is made."""
    n = len(x)
    step = max(1, CHUNK // max(1, n))
    same = total = 0.0
    for start in range(0, n, step):
        rows = slice(start, start + step)
        # from differences: expanding the square loses the digits of near neighbours
        distance = torch.cdist(x[rows], x, compute_mode="donot_use_mm_for_euclid_dist")
        total += float(distance.sum())
        same += float(torch.where(which[rows, None] == which, distance, 0.0).sum())
    pairs = float((sizes * (sizes - 1)).sum())
    others = n * n - float(sizes.square().sum())
    return (same / pairs if pairs else math.nan), ((total - same) / others if others else math.nan)
