"""Data that comes with scikit-learn and Python, or is made here, and batches of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pydoc_data.topics import topics

import torch
from sklearn import datasets
from torch import Tensor
from torch.utils.data import TensorDataset

Split = tuple[Tensor, Tensor, Tensor, Tensor]
"""Training inputs and targets, held-out inputs and targets."""


@cache
def _table(name: str) -> tuple[Tensor, Tensor]:
    loaded = (
        getattr(datasets, f"load_{name}")(scaled=False) if name == "diabetes" else getattr(datasets, f"load_{name}")()
    )
    order = torch.randperm(len(loaded.target), generator=torch.Generator().manual_seed(0))
    return torch.tensor(loaded.data).float()[order], torch.tensor(loaded.target)[order]


def table(name: str, *, scaled: bool = True) -> Split:
    """`wine`, `breast_cancer`, `diabetes` (targets as numbers, standardised if scaled): a quarter is held out."""
    x, y = _table(name)
    cut = len(x) * 3 // 4
    if scaled:
        x = (x - x[:cut].mean(0)) / x[:cut].std(0)
    if name == "diabetes":
        y = y.float()
        y = ((y - y[:cut].mean()) / y[:cut].std() if scaled else y).unsqueeze(1)
    return x[:cut], y[:cut], x[cut:], y[cut:]


def digits(*, images: bool = False) -> Split:
    """Pixels from 0 to 1; 1,397 for training, 400 held out."""
    x, y = _table("digits")
    x = x / 16
    x = x.view(-1, 1, 8, 8) if images else x
    return x[:1397], y[:1397], x[1397:], y[1397:]


def few(x: Tensor, y: Tensor, each: int) -> tuple[Tensor, Tensor]:
    """The first `each` examples of every class, the classes in turn."""
    rows = torch.stack([(y == one).nonzero().squeeze(1)[:each] for one in y.unique()], 1).flatten()
    return x[rows], y[rows]


LETTERS = "".join(sorted(set("abcdefghijklmnopqrstuvwxyz .,'\n")))
VOCABULARY = len(LETTERS) + 1
PAD = len(LETTERS)
"""A token that stands for no letter."""


@cache
def letters() -> Tensor:
    """Python's own reference as small letters: 200,000 tokens."""
    text = " ".join(topics[key] for key in sorted(topics)).lower()
    text = re.sub(r" +", " ", re.sub(f"[^{re.escape(LETTERS)}]", " ", text))[:200_000]
    place = {letter: number for number, letter in enumerate(LETTERS)}
    return torch.tensor([place[letter] for letter in text])


def passages(count: int, length: int, *, held_out: bool = False, seed: int = 0) -> Tensor:
    """Passages of `length` tokens from the first 160,000 letters, or from the rest."""
    text = letters()
    text = text[160_000:] if held_out else text[:160_000]
    starts = torch.randint(len(text) - length, (count,), generator=torch.Generator().manual_seed(seed))
    return torch.stack([text[start : start + length] for start in starts])


def words(count: int, length: int, *, seed: int = 0, held_out: bool = False) -> tuple[Tensor, Tensor]:
    """Passages of unequal length, padded with PAD at the right, and the mask of what is text."""
    tokens = passages(count, length, seed=seed, held_out=held_out)
    lengths = torch.randint(length // 6, length // 2, (count, 1), generator=torch.Generator().manual_seed(seed + 1))
    mask = torch.arange(length) < lengths
    return tokens.where(mask, torch.tensor(PAD)), mask.long()


def teacher(count: int = 1500, width: int = 16, outputs: int = 1, *, seed: int = 0, noise: float = 0.05) -> Split:
    """Numbers that a small random network makes of normal inputs, standardised: a third is held out."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(count, width, generator=g)
    first, second = torch.randn(width, 24, generator=g) / width**0.5, torch.randn(24, outputs, generator=g)
    y = torch.tanh(2 * x @ first) @ second
    y = (y - y.mean(0)) / y.std(0) + noise * torch.randn(count, outputs, generator=g)
    cut = count * 2 // 3
    return x[:cut], y[:cut], x[cut:], y[cut:]


def pairs(x: Tensor, y: Tensor, *, steps: int, size: int = 50, seed: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches in a new random order each epoch, `steps` of them."""
    for rows in rows_of(len(x), steps=steps, size=size, seed=seed):
        yield x[rows], y[rows]


def rows_of(count: int, *, steps: int, size: int = 50, seed: int = 0) -> Iterator[Tensor]:
    """The rows of each batch."""
    g = torch.Generator().manual_seed(seed)
    taken = 0
    while True:
        for rows in torch.randperm(count, generator=g).split(min(size, count)):
            if len(rows) < min(size, count):
                continue
            if taken == steps:
                return
            taken += 1
            yield rows


def holdout(split: Split, count: int = 200) -> TensorDataset:
    return TensorDataset(split[2][:count], split[3][:count])


def language(count: int = 64, length: int = 32) -> TensorDataset:
    """Held-out passages with the next letters as targets."""
    tokens = passages(count, length + 1, held_out=True)
    return TensorDataset(tokens[:, :-1].clone(), tokens[:, 1:].clone())
