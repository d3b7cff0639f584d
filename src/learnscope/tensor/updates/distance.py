"""Squared distances between tensors: cheaper than all statistics of a change."""

from collections.abc import Iterable

import torch
from torch import Tensor

from learnscope.tensor.context import arithmetic_dtype, plain, plain_arithmetic
from learnscope.tensor.gradients.gradient import row_squares
from learnscope.tensor.rows import WIDTH

PIECE = 1 << 20
"""Entries whose differences are held at a time."""


def squared_distances(parts: Iterable[tuple[int, Tensor, Tensor]], count: int) -> Tensor:
    """`[2, count]` float64 on the CPU: Σ(new − old)² and Σold², of parts (owner, new, old) added up by owner.

    Differences are computed in float32 (float64 where one of the two is), accurate at any magnitude. A part has at
    most `PIECE` entries, and is no longer read once the next one is asked for.

    >>> squared_distances([(0, torch.tensor([6.0, 8.0]), torch.tensor([3.0, 4.0]))], 1).tolist()
    [[25.0], [25.0]]
    """
    sums = torch.zeros(2, count, dtype=torch.float64, device="cpu")
    buffers: dict[tuple[torch.dtype, torch.device], _Differences] = {}
    for owner, new, old in parts:
        with plain_arithmetic(new.device):
            key = arithmetic_dtype(new, old), new.device
            if key not in buffers:
                buffers[key] = _Differences(*key)
            buffers[key].add(owner, plain(new), plain(old), sums)
    for buffer in buffers.values():
        buffer.flush(sums)
    return sums


class _Differences:
    """Differences and old entries of several parts, each starting a new row, so that small ones share a pass."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._space = torch.zeros(2, PIECE // WIDTH, WIDTH, dtype=dtype, device=device)
        self._filled = 0
        self._owners: list[tuple[int, int]] = []
        """The owner and number of rows of each part."""

    def add(self, owner: int, new: Tensor, old: Tensor, sums: Tensor) -> None:
        length = new.numel()
        rows = -(-length // WIDTH)
        if self._filled + rows > self._space.shape[1]:
            self.flush(sums)
        spaces = self._space[:, self._filled : self._filled + rows].view(2, -1)
        spaces[:, length:] = 0
        change, before = (space[:length].view(new.shape) for space in spaces)
        before.copy_(old)
        if new.dtype == change.dtype:
            torch.sub(new, before, out=change)
        else:
            change.copy_(new).sub_(before)
        self._owners.append((owner, rows))
        self._filled += rows

    def flush(self, sums: Tensor) -> None:
        if self._owners:
            squares = row_squares(self._space[:, : self._filled].reshape(-1, WIDTH)).cpu().view(2, -1)
            owners, rows = torch.tensor(self._owners, dtype=torch.int64, device="cpu").unbind(1)
            sums.index_add_(1, torch.repeat_interleave(owners, rows), squares)
        self._filled, self._owners = 0, []
