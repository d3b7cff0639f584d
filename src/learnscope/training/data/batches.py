"""Rows of token ids as one batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Row = tuple[list[int], list[int]]
"""Ids and labels of the same length; a label of -100 is ignored by the loss."""


def collated(rows: Sequence[Row], pad: int) -> dict[str, Tensor]:
    """Padded on the right."""
    longest = max(len(ids) for ids, _ in rows)

    def padded(parts: list[list[int]], fill: int) -> Tensor:
        return torch.tensor([part + [fill] * (longest - len(part)) for part in parts])

    return {
        "input_ids": padded([ids for ids, _ in rows], pad),
        "attention_mask": padded([[1] * len(ids) for ids, _ in rows], 0),
        "labels": padded([labels for _, labels in rows], -100),
    }
