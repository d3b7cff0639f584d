"""A copy of weights in a narrower dtype than theirs, compared with the weights of now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

import torch
from torch import Tensor

from learnscope.tensor.context import common_dtype, plain, plain_arithmetic


class Kept(Protocol):
    """Weights at one step: `dtype` is "native", or the one that all of them were rounded to."""

    @property
    def tensors(self) -> Mapping[str, Tensor]: ...

    @property
    def dtype(self) -> str: ...


class RoundedWeights(Mapping[str, Tensor]):
    """The older weights as far as their rounded copy tells, made one tensor at a time when it is asked for.

    Where a weight of now rounds to what was kept, nothing shows that it changed: it stands for the older one. Elsewhere
    what was kept does. An unchanged model is then compared with itself, and no change is rounded twice.
    """

    def __init__(self, kept: Mapping[str, Tensor], now: Mapping[str, Tensor], rounded: frozenset[str]) -> None:
        self._kept, self._now, self.rounded = kept, now, rounded

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.rounded:
            return self._kept[name]
        new = plain(self._now[name])
        old = self._kept[name].to(new.device)
        wide = common_dtype(new.dtype, old.dtype)
        with plain_arithmetic(new.device):
            seen, shown = old.to(wide), new.to(old.dtype).to(wide)
            return torch.where(shown == seen, new.to(wide), seen)

    def __iter__(self) -> Iterator[str]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)


def as_they_were(kept: Kept, now: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The kept weights, to be compared with those of now: as they are, unless they were rounded."""
    rounded = _rounded(kept, now)
    return RoundedWeights(kept.tensors, now, rounded) if rounded else kept.tensors


def precision_note(kept: Kept, now: Mapping[str, Tensor]) -> dict[str, str]:
    """For the notes of a record: how precisely changes are known; nothing if the copy is exact."""
    if not _rounded(kept, now):
        return {}
    kind = torch.finfo(getattr(torch, kept.dtype))
    return {
        "precision": f"previous weights are kept as {kept.dtype}: a change is known to within {kind.eps / 2:.1e} of "
        f"the weight, and up to {kind.eps:.1e} of it may count as none"
    }


def _rounded(kept: Kept, now: Mapping[str, Tensor]) -> frozenset[str]:
    """The weights whose copy has a dtype that cannot hold all their values."""
    if kept.dtype == "native":  # whatever the weights are now, the copy is exact
        return frozenset()
    pairs = {name: (now[name].dtype, old.dtype) for name, old in kept.tensors.items() if name in now}
    return frozenset(name for name, (new, old) in pairs.items() if common_dtype(new, old) != old)
