"""From numbers per tensor to numbers per layer, component or group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Segments:
    """Which of n numbers belong to which named scope. A number may belong to none."""

    def __init__(self, members: Mapping[str, Sequence[int]]) -> None:
        self.scopes = [scope for scope, indices in members.items() if len(indices)]
        self.members = [list(members[scope]) for scope in self.scopes]
        self._from = torch.tensor([i for indices in self.members for i in indices], dtype=torch.int64, device="cpu")
        lengths = torch.tensor([len(indices) for indices in self.members], dtype=torch.int64, device="cpu")
        self._to = torch.repeat_interleave(torch.arange(len(self.scopes), device="cpu"), lengths)
        self._gathered = self._from.numpy().copy()
        self._starts = (lengths.cumsum(0) - lengths).numpy()

    def sum(self, values: Tensor) -> Tensor:
        """Σ over each scope's members, along the first dimension."""
        self._move(values.device)
        out = values.new_zeros(len(self.scopes), *values.shape[1:])
        return out.index_add_(0, self._to, values[self._from])

    def sums(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """The same of numbers that have been read."""
        if not self.scopes:
            return np.zeros((0, *values.shape[1:]))
        return np.add.reduceat(values[self._gathered], self._starts, axis=0)

    def max(self, values: Tensor) -> Tensor:
        """The largest of each scope's members; a NaN among them gives NaN."""
        self._move(values.device)
        out = values.new_full((len(self.scopes),), -torch.inf)
        return out.scatter_reduce_(0, self._to, values[self._from], "amax")

    def largest(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """The same of numbers that have been read."""
        if not self.scopes:
            return np.zeros(0)
        return np.maximum.reduceat(values[self._gathered], self._starts)

    def spread(self, entries: Tensor, mean: Tensor, centred: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and unbiased variance of each scope, from the members' numbers of entries, means and Σ(x − mean)².

        The variance is (Σᵢ Mᵢ + Σᵢ nᵢ(meanᵢ − mean)²)/(n − 1); NaN for a single entry.
        """
        n = self.sum(entries)
        overall = self.sum(entries * mean) / n
        between = torch.zeros_like(overall).index_add_(
            0, self._to, entries[self._from] * (mean[self._from] - overall[self._to]).square()
        )
        return overall, torch.where(n > 1, (self.sum(centred) + between) / (n - 1), torch.nan)

    def _move(self, device: torch.device) -> None:
        if self._from.device != device:
            self._from, self._to = self._from.to(device), self._to.to(device)


class JointSegments:
    """Several kinds of scopes over the same numbers, added up together."""

    def __init__(self, kinds: Mapping[str, Segments], entries: Sequence[int]) -> None:
        self.kinds = dict(kinds)
        self.entries = np.array(entries, np.float64)
        """Of each tensor: a further number to add up."""
        starts = np.cumsum([0, *(len(segments.scopes) for segments in kinds.values())]).tolist()
        self.slices = dict(zip(kinds, map(slice, starts, starts[1:]), strict=False))
        """Of the scopes of all kinds one after another, those of each."""
        scopes = (indices for segments in kinds.values() for indices in segments.members)
        self.joined = Segments({str(place): indices for place, indices in enumerate(scopes)})
        """The scopes of all kinds, one after another."""

    def sums(self, values: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
        """Σ over the members of each scope, by kind."""
        sums = self.joined.sums(values)
        return {kind: sums[rows] for kind, rows in self.slices.items()}
