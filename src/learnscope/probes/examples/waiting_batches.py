"""Room for the batches that wait to be written to a ledger."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor

from learnscope.tensor.examples.at_once import Places

BATCHES, LOGITS = 32, 2**18
"""Batches, and logits, processed together: one by one, small batches would cost several times as much."""
SMALL = 2**14
"""Entries of inputs up to which copying all of them is cheaper than taking a sample at every step."""
DENSE = torch.strided
Kind = tuple[Any, ...]


class Waiting(NamedTuple):
    """Copies: what the loop handed over may be overwritten by its next step."""

    ids: Tensor
    logits: Tensor
    targets: Tensor
    sample: Tensor | None
    unsampled: bool
    """Whether `sample` is all of the inputs, still to be sampled."""
    grand: Tensor | None
    groups: NDArray[Any] | None


def kind_of(ids: Any, z: Any, y: Any, x: Any) -> Kind | None:
    """All that is checked of a small batch of tensors; None for any other, which is checked each time."""
    if not (type(ids) is type(z) is type(y) is Tensor) or z.ndim != 2 or y.ndim != 1 or z.numel() >= LOGITS:
        return None
    inputs = None
    if x is not None:
        if type(x) is not Tensor or x.ndim < 2 or x.layout is not DENSE or x.numel() > SMALL:
            return None
        inputs = x.shape, x.dtype, x.device
    return ids.shape, ids.dtype, ids.device, z.shape, z.dtype, z.device, y.shape, y.dtype, y.device, inputs


class Block:
    """Room for batches of one kind, filled again and again: nothing is allocated at a step."""

    def __init__(self, joins: Kind, ids: Tensor, logits: Tensor, targets: Tensor, inputs: Tensor | None) -> None:
        self.joins = joins
        """What batches of this kind have in common with others that they are processed with."""
        parts = [ids, logits, targets, *([] if inputs is None else [inputs])]
        count = max(1, min(BATCHES, -(-LOGITS // max(1, logits.numel()))))
        with torch.inference_mode(False):  # room that was made in it could not be written outside of it
            rooms = [torch.empty((count, *part.shape), dtype=part.dtype, device=part.device) for part in parts]
            self._places = [list(place) for place in zip(*(room.unbind() for room in rooms), strict=True)]
        self._batches = [
            Waiting(
                place[0], place[1], place[2], place[3] if inputs is not None else None, inputs is not None, None, None
            )
            for place in self._places
        ]
        self._memory = Places(self._places)
        self.used = 0
        self._joined: Kind = ()

    def joined(self, epoch: int) -> Kind:
        """What batches that were presented in `epoch` have in common."""
        if not self._joined or self._joined[0] != epoch:
            self._joined = (epoch, *self.joins)
        return self._joined

    def put(self, ids: Tensor, logits: Tensor, targets: Tensor, inputs: Tensor | None) -> Waiting | None:
        """A copy of the batch; None if there is no room left."""
        if self.used == len(self._places):
            return None
        if not self._memory.put(self.used, ids, logits, targets, inputs):
            parts = [ids, logits.detach(), targets, *([] if inputs is None else [inputs.detach()])]
            torch._foreach_copy_(self._places[self.used], parts)
        self.used += 1
        return self._batches[self.used - 1]
