"""Copies of a small model's tensors in rows, as changes are computed: nothing has to be brought into rows again."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn, strided

from learnscope.tensor.rows import CACHED, WIDTH, Pack, plan

PACKED = 1 << 20
"""Entries in one matrix of small tensors on a CPU."""


class LaidOut:
    """Two matrices of rows: one holds the copies, in the other the tensors of now are put to be compared with them.

    Once they have been compared, the two can change places: what was put there is then the newer copy.
    """

    def __init__(self, pack: Pack, tensors: Sequence[Tensor]) -> None:
        self._pack, self._place = pack, 0
        self.filled = False
        """Whether tensors have been put beside the copies since these were last brought up to date."""
        shape = len(pack.owner), WIDTH
        self._matrices = [torch.zeros(shape, dtype=torch.float32, device="cpu") for _ in range(2)]
        self._views = [_views(matrix.view(-1), pack, tensors) for matrix in self._matrices]

    @property
    def tensors(self) -> list[Tensor]:
        """The copies, in the order and the shapes of the tensors; to be written by whoever keeps them."""
        return self._views[self._place]

    def are(self, tensors: Sequence[Tensor]) -> bool:
        """Whether these are the copies themselves, all of them, in this order."""
        own = self.tensors
        return len(own) == len(tensors) and all(a is b for a, b in zip(own, tensors, strict=True))

    def beside(self, tensors: Sequence[Tensor]) -> tuple[Pack, Tensor, Tensor]:
        """The tensors of now and the copies, as rows."""
        older, newer = self._matrices[self._place], self._matrices[1 - self._place]
        self._pack.fill_into(newer, tensors)
        self.filled = True
        return self._pack, newer, older

    def exchange(self) -> None:
        """What was put beside the copies becomes the copies."""
        self._place, self.filled = 1 - self._place, False


def laid_out(tensors: Sequence[Tensor]) -> LaidOut | None:
    """Room for copies of the tensors, if all are float32 on a CPU and fit into one matrix; else None."""
    usual = (Tensor, nn.Parameter)
    if not all(type(t) in usual and t.is_cpu and t.dtype is torch.float32 and t.layout is strided for t in tensors):
        return None
    layout = plan(tuple((t.numel(), t.dtype, t.device) for t in tensors), CACHED, PACKED)
    if layout.large or len(layout.packs) != 1:
        return None
    return LaidOut(layout.packs[0], tensors)


def _views(flat: Tensor, pack: Pack, tensors: Sequence[Tensor]) -> list[Tensor]:
    starts = dict(zip(pack.members, (pack.starts * WIDTH).tolist(), strict=True))  # a tensor without entries has none
    return [
        flat[starts.get(place, 0) : starts.get(place, 0) + tensor.numel()].view(tensor.shape)
        for place, tensor in enumerate(tensors)
    ]
