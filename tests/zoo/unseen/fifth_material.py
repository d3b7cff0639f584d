"""Data of the fifth blind set, which no other case has."""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.unseen.third_material import UNTRAINED, kept, split

__all__ = ["SEEDS", "TOO_HIGH", "UNTRAINED", "Split", "generator", "kept", "split"]

Split = tuple[Tensor, Tensor, Tensor, Tensor]
SEEDS = (0, 1)
TOO_HIGH = {"diverging", "exploding", "learning_rate_too_high", "nonfinite"}


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(52_000 + seed)


def flats(seed: int, count: int = 1600, *, noise: float = 0.1) -> Split:
    """Ten columns of a flat, standardised, and its rent, likewise."""
    g = generator(seed)
    x = torch.randn(count, 10, generator=g)
    rent = x[:, 0] + 0.9 * (1.3 * x[:, 1]).sin() + 0.7 * x[:, 2] * x[:, 3] + 0.5 * x[:, 4].clamp(min=0) - 0.4 * x[:, 5]
    rent = (rent - rent.mean()) / rent.std() + noise * torch.randn(count, generator=g)
    return split(x, rent[:, None])


def clients(seed: int, count: int = 1600, classes: int = 3) -> Split:
    """Nine columns and the kind of client: each kind has three centres."""
    g = generator(seed)
    centres = 2.0 * torch.randn(3 * classes, 9, generator=g)
    which = torch.randint(3 * classes, (count,), generator=g)
    x = centres[which] + torch.randn(count, 9, generator=g)
    return split((x - x.mean(0)) / x.std(0), which % classes)


def stains(seed: int, count: int = 800, size: int = 12, *, radius: tuple[float, float] = (2.0, 4.0)) -> Split:
    """Grey pictures with one round stain each, and the mask of its pixels, both (count, 1, size, size)."""
    g = generator(seed)
    middle = 2 + (size - 5) * torch.rand(count, 2, 1, 1, generator=g)
    reach = radius[0] + (radius[1] - radius[0]) * torch.rand(count, 1, 1, generator=g)
    place = torch.arange(size)
    far = ((place[:, None] - middle[:, 0]) ** 2 + (place - middle[:, 1]) ** 2).sqrt()
    mask = (far < reach).float()[:, None]
    ground = 0.3 * torch.randn(count, 1, 1, 1, generator=g)
    return split(mask + ground + 0.35 * torch.randn(mask.shape, generator=g), mask)


def meters(seed: int, count: int = 1200, length: int = 24, ahead: int = 4, *, noise: float = 0.1) -> Split:
    """Windows of meters with a rhythm of their own, (count, 1, length), and the next readings, (count, ahead)."""
    g = generator(seed)
    pace, phase = 0.25 + 0.5 * torch.rand(count, 1, generator=g), 6.28 * torch.rand(count, 2, generator=g)
    t = torch.arange(length + ahead)
    level = (pace * t + phase[:, :1]).sin() + 0.6 * (2.5 * pace * t + phase[:, 1:]).cos()
    level = level + noise * torch.randn(level.shape, generator=g)
    return split(level[:, None, :length], level[:, length:])


def letters_to(seed: int, count: int = 1600, length: int = 12, words: int = 60, kinds: int = 4) -> Split:
    """Texts of words from 1: four of twelve belong to the kind of the text, the others are any."""
    g = generator(seed)
    kind = torch.randint(kinds, (count,), generator=g)
    each = (words - 1) // kinds
    own = 1 + each * kind[:, None] + torch.randint(each, (count, length), generator=g)
    text = torch.randint(1, words, (count, length), generator=g)
    places = torch.rand(count, length, generator=g).argsort(1) < 4
    return split(torch.where(places, own, text), kind)


def sentences(seed: int, count: int = 600, longest: int = 20, *, tongue: int = 0) -> Tensor:
    """A language of the words 2 to 17 in which each is followed by one of two; 1 ends a sentence, and 0 fills up.

    The words 16 and 17 are always the last of a sentence."""
    rule = 2 + torch.randint(16, (18, 2), generator=torch.Generator().manual_seed(60 + tongue))
    g = generator(seed + 70 * tongue)
    text = 2 + torch.randint(14, (count, 1), generator=g)
    for _ in range(longest - 1):
        word = text[:, -1:]
        after = rule[word, torch.randint(2, (count, 1), generator=g)]
        after = torch.where(word >= 16, 1, after)
        text = torch.cat([text, torch.where(word <= 1, 0, after)], 1)
    return text


def papers(seed: int, nodes: int = 240, kinds: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    """Which papers cite each other (normalised, with themselves), words in each, and the subject."""
    g = generator(seed)
    subject = torch.arange(nodes) % kinds
    likely = torch.where(subject[:, None] == subject, 0.06, 0.006)
    edges = (torch.rand(nodes, nodes, generator=g) < likely).float().triu(1)
    edges = edges + edges.T + torch.eye(nodes)
    share = torch.where(torch.arange(40) % kinds == subject[:, None], 0.22, 0.1)
    words = (torch.rand(nodes, 40, generator=g) < share).float()
    root = edges.sum(1).rsqrt()
    return root[:, None] * edges * root, words, subject


def spiral(seed: int, count: int = 1200) -> Tensor:
    """Points on a spiral, of about unit spread."""
    g = generator(seed)
    turn = 1.5 + 7.5 * torch.rand(count, generator=g)
    points = torch.stack([turn * turn.cos(), turn * turn.sin()], 1) / 5
    return points + 0.04 * torch.randn(count, 2, generator=g)


def apart(points: Tensor, data: Tensor) -> float:
    """The median distance from a point to the nearest of the data."""
    return float(torch.cdist(points, data).min(1).values.median())


def walk(state: Tensor, move: Tensor, cells: int = 8) -> tuple[Tensor, Tensor, Tensor]:
    """A corridor of cells: a move of 0 goes left and of 1 right. The next cell, the reward, and whether it is over:
    both ends are doors, of which only the right one pays."""
    after = (state + 2 * move - 1).clamp(0, cells - 1)
    return after, (after == cells - 1).float(), (after == 0) | (after == cells - 1)
