"""Data of the second blind set, which no other case has."""

from __future__ import annotations

import torch
from sklearn import datasets
from torch import Tensor
from torch.utils.data import TensorDataset

Split = tuple[Tensor, Tensor, Tensor, Tensor]
SEEDS = (0, 1)
UNTRAINED = {"frozen", "no_gradient", "not_moving", "not_optimised"}
TOO_HIGH = {"diverging", "learning_rate_too_high", "nonfinite"}


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(7000 + seed)


def split(x: Tensor, y: Tensor, share: float = 0.75) -> Split:
    cut = int(len(x) * share)
    return x[:cut], y[:cut], x[cut:], y[cut:]


def kept(data: Split, count: int = 200) -> TensorDataset:
    """What is held out, for the session."""
    return TensorDataset(data[2][:count], data[3][:count])


def glyphs(count: int = 1600, size: int = 12, *, noise: float = 0.3, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Pictures of a cross, a square, a bar or a diagonal somewhere, (count, 1, size, size); which, and where."""
    g = generator(seed)
    shape = torch.zeros(4, 5, 5)
    shape[0, 2], shape[0, :, 2] = 1, 1
    shape[1], shape[1, 1:4, 1:4] = 1, 0
    shape[2, 1:4] = 1
    shape[3] = torch.eye(5) + torch.eye(5).roll(1, 1).triu()
    kind = torch.randint(4, (count,), generator=g)
    corner = torch.randint(size - 4, (count, 2), generator=g)
    mask = torch.zeros(count, 1, size, size)
    for number, (which, (row, column)) in enumerate(zip(kind.tolist(), corner.tolist(), strict=True)):
        mask[number, 0, row : row + 5, column : column + 5] = shape[which].clamp(max=1)
    return mask + noise * torch.randn(mask.shape, generator=g), kind, mask


def pictures(seed: int, count: int = 1600, *, noise: float = 0.3) -> Split:
    x, kind, _ = glyphs(count, noise=noise, seed=seed)
    return split(x, kind)


def masks(seed: int, count: int = 800) -> Split:
    x, _, mask = glyphs(count, seed=seed)
    return split(x, mask)


def series(seed: int, count: int = 900, length: int = 41, *, scale: float = 1.0) -> Split:
    """Two sines and a trend with some noise: all values but the last, and all but the first; (count, length − 1, 1)."""
    g = generator(seed)
    t = torch.arange(length) / 8
    a, b, p, q = torch.rand(4, count, 1, generator=g)
    wave = (6.28 * (0.3 + 0.5 * a) * t + 6.28 * p).sin() + 0.6 * (6.28 * (0.9 + 0.4 * b) * t + 6.28 * q).sin()
    wave = scale * (wave + 0.05 * torch.randn(count, length, generator=g))[..., None]
    return split(wave[:, :-1].clone(), wave[:, 1:].clone())


def houses(seed: int, count: int = 2000, *, raw: bool = False) -> Split:
    """Rooms, age, income, distance, a district's mood and noise columns; the price, in units or standardised."""
    g = generator(seed)
    x = torch.randn(count, 8, generator=g)
    worth = x[:, 0] + 0.5 * x[:, 1] ** 2 - x[:, 2].relu() * x[:, 3] + (2 * x[:, 4]).sin()
    worth = (worth - worth.mean()) / worth.std() + 0.15 * torch.randn(count, generator=g)
    price = 240_000 + 70_000 * worth if raw else worth
    return split(x, price[:, None])


def columns(seed: int, count: int = 2000) -> Split:
    """Three columns of categories (12, 7 and 5 of them) and five of numbers, as one table; a class of three."""
    g = generator(seed)
    codes = torch.stack([torch.randint(n, (count,), generator=g) for n in (12, 7, 5)], 1)
    numbers = torch.randn(count, 5, generator=g)
    first, second, third = torch.randn(12, generator=g), torch.randn(7, generator=g), torch.randn(5, generator=g)
    score = first[codes[:, 0]] * numbers[:, 0] + second[codes[:, 1]] + third[codes[:, 2]] * numbers[:, 1]
    label = torch.bucketize(score, score.quantile(torch.tensor([0.33, 0.66])))
    return split(torch.cat([codes.float(), numbers], 1), label)


def brackets(seed: int, count: int = 2000, length: int = 16) -> tuple[Tensor, Tensor]:
    """Rows of opening (1) and closing (2) brackets and other letters (3 to 8): do they close in order?"""
    g = generator(seed)
    rows, label = torch.randint(3, 9, (count, length), generator=g), torch.arange(count) % 2
    for row, good in zip(rows, label.tolist(), strict=True):
        places = torch.randperm(length, generator=g)[:6].sort().values
        marks, depth = [], 0
        for left in range(6, 0, -1):
            opens = depth == 0 or (depth < left and bool(torch.rand((), generator=g) < 0.5))
            marks.append(1 if opens else 2)
            depth += 1 if opens else -1
        row[places] = torch.tensor(marks if good else [3 - mark for mark in marks])
    return rows, label


WORDS = ("the", "red", "blue", "cat", "dog", "sees", "bites", "a", "big", "small", "bird", "and", "runs", "sleeps")
MADE = 1 + len(WORDS) + 1
"""Tokens of the made language: 0 is the full stop, the last is free for a mask."""


def made_text(seed: int, count: int = 400, length: int = 24, *, other: bool = False) -> Tensor:
    """Sentences of a grammar, one after the other: article, perhaps adjectives, noun, verb, … (count, length)."""
    g = generator(seed)
    code = {word: number for number, word in enumerate(WORDS, 1)}

    def pick(*words: str) -> int:
        return code[words[int(torch.randint(len(words), (), generator=g))]]

    def noun() -> list[int]:
        end = [pick("cat", "dog", "bird")]
        adjectives = [pick("red", "blue", "big", "small")] if torch.rand((), generator=g) < 0.6 else []
        return [pick("the", "a"), *((end + adjectives) if other else (adjectives + end))]

    stream: list[int] = []
    while len(stream) < count * length:
        said = [*noun(), pick("sees", "bites"), *noun()] if torch.rand((), generator=g) < 0.6 else [
            *noun(), pick("runs", "sleeps")]  # fmt: skip
        stream += [*(said[::-1] if other else said), 0]
    return torch.tensor(stream[: count * length]).view(count, length)


def graphs(seed: int, count: int = 800, nodes: int = 10, *, share: float = 0.5) -> tuple[Tensor, Tensor]:
    """Adjacencies of random graphs; of the share labelled 1, each has a group of four who all know each other."""
    g = generator(seed)
    drawn = torch.rand(count, nodes, nodes, generator=g).triu(1)
    edges = (drawn > 0) & (drawn < 0.25)
    label = (torch.rand(count, generator=g) < share).long()
    for number in label.nonzero().squeeze(1).tolist():
        group = torch.randperm(nodes, generator=g)[:4].sort().values
        edges[number][group[:, None], group] = torch.ones(4, 4).triu(1).bool()
    return (edges | edges.transpose(1, 2)).float(), label


def sorting(seed: int, count: int = 1500, length: int = 6, tokens: int = 8) -> tuple[Tensor, Tensor]:
    """Numbers from 1, and the same in order; 0 begins."""
    x = torch.randint(1, tokens + 1, (count, length), generator=generator(seed))
    return x, x.sort(1).values


def moons(seed: int, count: int = 1600, *, noise: float = 0.15) -> Split:
    x, y = datasets.make_moons(count, noise=noise, random_state=seed)
    return split(torch.tensor(x).float(), torch.tensor(y))
