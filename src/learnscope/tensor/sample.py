"""Some entries of a tensor, the same ones at every call."""

from __future__ import annotations

import torch
from torch import Tensor


def fixed_entries(entries: int, size: int, seed: int, device: torch.device) -> Tensor:
    """Places of all entries where these are no more than `size`, else of `size` of them, drawn with replacement.

    >>> fixed_entries(3, 8, 0, torch.device("cpu")).tolist()
    [0, 1, 2]
    """
    if entries <= size:
        return torch.arange(entries, device=device)
    generator = torch.Generator(device="cpu").manual_seed(seed)
    return torch.randint(entries, (size,), generator=generator, device="cpu").to(device)


def pick(tensor: Tensor, places: Tensor) -> Tensor:
    """The entries at these places of the flattened tensor, which is not copied for it."""
    return torch.take(tensor, places)
