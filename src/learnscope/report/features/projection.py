"""Features of several epochs, projected onto the same plane so that they can be compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from learnscope.reading.gather import Floats

METHODS = ("pca", "umap")
NEIGHBOURS = 15
"""Of umap, which needs more points than this."""


@dataclass(frozen=True)
class Plane:
    """Points [n, 2] of each part, and the names of the axes."""

    points: list[Floats]
    axes: tuple[str, str]
    explained: tuple[float, float] | None
    """Share of the variance of all parts that each axis explains; None for umap."""


def project(parts: Sequence[Floats], method: str) -> Plane:
    """Project parts [n, d], finite and with the same d, fitted together."""
    rows = np.concatenate([np.asarray(part, dtype=np.float64) for part in parts])
    plane, explained = _pca(rows) if method == "pca" else (_umap(rows), None)
    names = ("UMAP 1", "UMAP 2")
    if explained is not None:
        names = (f"component 1 ({explained[0]:.0%})", f"component 2 ({explained[1]:.0%})")
    ends = np.cumsum([len(part) for part in parts])[:-1]
    return Plane([np.ascontiguousarray(part) for part in np.split(plane, ends)], names, explained)


def _pca(rows: Floats) -> tuple[Floats, tuple[float, float]]:
    """The two leading principal components, from the smaller of XᵀX and XXᵀ; the largest entry of each is positive."""
    size = float(np.abs(rows).max(initial=0.0)) or 1.0  # so that squares neither underflow nor overflow
    x = rows / size
    x = x - x.mean(0)
    tall = x.shape[1] <= x.shape[0]
    values, vectors = np.linalg.eigh(x.T @ x if tall else x @ x.T)
    values, vectors = np.maximum(values[::-1][:2], 0), vectors[:, ::-1][:, :2]
    plane = np.zeros((len(x), 2))
    plane[:, : len(values)] = x @ vectors if tall else vectors * np.sqrt(values)
    largest = plane[np.abs(plane).argmax(0), np.arange(2)]
    total = float((x**2).sum())
    shares = [float(value) / total if total > 0 else 0.0 for value in values] + [0.0]
    return plane * np.where(largest < 0, -1.0, 1.0) * size, (shares[0], shares[1])


def _umap(rows: Floats) -> Floats:
    try:
        from umap import UMAP  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError as error:
        raise ImportError("method='umap' needs a package that is not installed: pip install umap-learn") from error
    if len(rows) <= NEIGHBOURS:
        raise ValueError(f"umap needs more than {NEIGHBOURS} points, and there are {len(rows)}: use method='pca'")
    # reproducible only with a seed and one thread
    plane = UMAP(n_neighbors=NEIGHBOURS, random_state=0, n_jobs=1).fit_transform(rows)
    return np.asarray(plane, dtype=np.float64)
