"""The demo's data: handwritten digits that ship with scikit-learn, and sums modulo a prime."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

import learnscope as ls

HELD_OUT = 360
"""Digits that no run trains on: a fifth of the 1,797."""


def digits() -> tuple[TensorDataset, TensorDataset]:
    """Images of shape (1, 8, 8) with pixels from 0 to 1, and their digits: for training, and held out."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ls.RunError(
            "the demo trains on scikit-learn's digits, and scikit-learn is not installed: "
            "python -m pip install scikit-learn"
        ) from error
    bunch = load_digits()
    images = torch.tensor(bunch.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(bunch.target, dtype=torch.int64)
    # the file is sorted by writer: a random split has all writers in both parts
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    test, train = order[:HELD_OUT], order[HELD_OUT:]
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


def few_with_wrong_labels(data: TensorDataset, examples: int, wrong: float) -> TensorDataset:
    """The first `examples`, a share `wrong` of them with another digit's label: noise to be memorised."""
    images, labels = data.tensors[0][:examples], data.tensors[1][:examples].clone()
    count = round(wrong * examples)
    shift = torch.randint(1, 10, (count,), generator=torch.Generator().manual_seed(0))
    labels[:count] = (labels[:count] + shift) % 10
    return TensorDataset(images, labels)


def with_a_blank_image(data: TensorDataset, position: int) -> TensorDataset:
    """The same data with one blank image, as a broken file or a failed crop gives."""
    images = data.tensors[0].clone()
    images[position] = 0
    return TensorDataset(images, data.tensors[1])


def sums_modulo(p: int, share: float, seed: int) -> tuple[TensorDataset, TensorDataset]:
    """All pairs (a, b) below `p` with (a + b) mod p, a random `share` of them for training, the rest held out."""
    pairs = torch.cartesian_prod(torch.arange(p), torch.arange(p))
    sums: Tensor = pairs.sum(1) % p
    order = torch.randperm(p * p, generator=torch.Generator().manual_seed(seed))
    train, test = order.tensor_split([round(share * p * p)])
    return TensorDataset(pairs[train], sums[train]), TensorDataset(pairs[test], sums[test])
