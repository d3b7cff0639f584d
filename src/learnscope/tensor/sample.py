"""A fixed random sample of the entries of a tensor."""

from __future__ import annotations

import torch
from torch import Tensor


def fixed_entries(entries: int, size: int, seed: int, device: torch.device) -> Tensor:
    """Indices of all entries if there are at most `size`, else of `size` entries drawn with replacement.

    >>> fixed_entries(3, 8, 0, torch.device("cpu")).tolist()
    [0, 1, 2]
    """
    if entries <= size:
        return torch.arange(entries, device=device)
    generator = torch.Generator(device="cpu").manual_seed(seed)
    return torch.randint(entries, (size,), generator=generator, device="cpu").to(device)
