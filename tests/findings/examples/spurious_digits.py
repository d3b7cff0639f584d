"""Handwritten digits with a bright pixel that gives the class away in training, or does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

import learnscope as ls

TRAINING = 1297
BRIGHT = 3.0
"""Of a pixel whose others are 0 to 1: plainer than any digit, so that it is learned first."""


@dataclass(frozen=True)
class Digits:
    """Images of 64 pixels, classes, ids and the attribute; the test set's attribute is always drawn at random."""

    train: tuple[Tensor, Tensor, Tensor, Tensor]
    test: tuple[Tensor, Tensor, Tensor, Tensor]


def spurious_digits(seed: int = 0, share: float = 0.95, bright: float = BRIGHT) -> Digits:
    """The attribute is the class for `share` of the training examples, and any of the ten for the others."""
    random = np.random.default_rng(seed)
    found = load_digits()
    order = random.permutation(len(found.target))
    images, classes = (found.images / 16)[order], found.target[order]
    n = len(classes)
    tied = (random.random(n) < share) & (np.arange(n) < TRAINING)
    attribute = np.where(tied, classes, random.integers(0, 10, n))
    images[:, :, [0, 7]] = 0  # the outermost columns, which are nearly empty
    images[np.arange(n), attribute % 8, np.where(attribute < 8, 0, 7)] = bright
    x = torch.tensor(images.reshape(n, 64), dtype=torch.float32)
    whole = (x, torch.tensor(classes), torch.arange(n), torch.tensor(attribute))
    train, test = tuple(part[:TRAINING] for part in whole), tuple(part[TRAINING:] for part in whole)
    return Digits(train, test)  # type: ignore[arg-type]


def train_digits(data: Digits, probes: Sequence[ls.Probe], *, run: Path | None = None, seed: int = 0,
                 epochs: int = 30) -> ls.Run:  # fmt: skip
    """A small perceptron, SGD with momentum, 21 steps an epoch: below a second on one core."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    x, y = data.train[:2]
    with ls.watch(model, optimizer, run=run, probes=probes, train=[data.train], test=[data.test], holdout=[data.test],
                  strict=True) as w:  # fmt: skip
        for _ in range(epochs):
            for chosen in torch.randperm(len(x)).split(64):
                optimizer.zero_grad()
                F.cross_entropy(model(x[chosen]), y[chosen]).backward()
                optimizer.step()
            w.end_epoch()
    return w.run if run is None else ls.open_run(run)
