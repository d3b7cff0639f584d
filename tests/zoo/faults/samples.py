"""The data are not what they should be: labels, classes, scale, duplicates, single batches."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW
from torch.utils.data import TensorDataset

from zoo.loops import accuracy, fit, last, tokens
from zoo.material import VOCABULARY, Split, digits, holdout, language, pairs, passages, rows_of, table
from zoo.models import GPT, cnn, mlp
from zoo.registry import Check, Watch, below, fault, worse_than

UNRELATED = {"labels_unrelated"}


@fault("inputs shuffled against labels, MLP", UNRELATED, since=None, wrong={"learning_rate_too_low", "label_noise"})
def shuffled(watch: Watch, seed: int) -> Check:
    data, model = digits(), mlp(64, 48, 10)
    order = torch.randperm(len(data[0]), generator=torch.Generator().manual_seed(seed))
    batches = pairs(data[0][order], data[1], steps=200, seed=seed)
    fit(watch, model, Adam(model.parameters(), lr=1e-3), batches, holdout=holdout(data))
    return below(accuracy(model, *data[2:]), 0.3)


@fault("inputs shuffled against labels, CNN", UNRELATED, since=None, wrong={"learning_rate_too_low"})
def shuffled_cnn(watch: Watch, seed: int) -> Check:
    """Only the inputs pass through a loader that shuffles."""
    data, model = digits(images=True), cnn()
    g = torch.Generator().manual_seed(seed)
    batches = [(data[0][torch.randperm(1397, generator=g)[:50]], data[1][rows]) for rows in rows_of(1397, steps=150)]
    fit(watch, model, SGD(model.parameters(), lr=0.05, momentum=0.9), batches, holdout=holdout(data))
    return below(accuracy(model, *data[2:]), 0.3)


@fault("inputs shuffled against labels, GPT", UNRELATED, since=None)
def shuffled_gpt(watch: Watch, seed: int) -> Check:
    """Targets of other passages: no more than the frequency of letters can be learned."""
    model, text = GPT(), passages(400, 33, seed=seed)
    other = passages(400, 33, seed=seed + 10)
    batches = pairs(text[:, :-1], other[:, 1:], steps=150, size=16, seed=seed)
    losses = fit(watch, model, AdamW(model.parameters(), lr=3e-3), batches, tokens, holdout=language())
    return worse_than(last(losses), 2.6)


@fault("inputs are all zero, MLP", UNRELATED, since=None)
def empty_inputs(watch: Watch, seed: int) -> Check:
    """A missing file was read as an empty image."""
    data, model = digits(), mlp(64, 48, 10)
    batches = pairs(torch.zeros_like(data[0]), data[1], steps=150, seed=seed)
    fit(watch, model, Adam(model.parameters(), lr=3e-3), batches, holdout=holdout(data))
    return below(accuracy(model, *data[2:]), 0.3)


def rare(split: Split, share: int, seed: int) -> tuple[Tensor, Tensor]:
    """One example in `share` is of class 1; the inputs tell little of it."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(2000, 20, generator=g)
    y = (torch.arange(2000) % share == 0).long()
    x[:, 0] += 0.5 * y
    return x, y


@fault("99 to 1 classes, MLP", {"majority_guess"}, since=None, wrong={"overfitting"})
def majority(watch: Watch, seed: int) -> Check:
    x, y = rare(digits(), 100, seed)
    model = mlp(20, 32, 2)
    held = TensorDataset(x[1500:], y[1500:])
    fit(watch, model, Adam(model.parameters(), lr=1e-3), pairs(x[:1500], y[:1500], steps=200, seed=seed), holdout=held)
    found = (model(x).argmax(1) == 1)[y == 1].float().mean()
    return below(float(found), 0.3)


@fault("one class in thirty, images", {"majority_guess"}, since=None)
def majority_images(watch: Watch, seed: int) -> Check:
    """Is it an eight? Of the eights, few were kept, and half of these are mirrored beyond recognition."""
    data, model = digits(images=True), cnn(classes=2)
    keep = (data[1] != 8) | (torch.arange(len(data[1])) % 4 == 0)
    x, y = data[0][keep], (data[1][keep] == 8).long()
    held = TensorDataset(data[2], (data[3] == 8).long())
    fit(watch, model, SGD(model.parameters(), lr=2e-3), pairs(x, y, steps=200, seed=seed), holdout=held)
    return below(float((model(data[2]).argmax(1) == 1).float().mean()), 0.01)


@fault("class never seen, MLP", {"class_never_seen"}, wrong={"overfitting"})
def unseen(watch: Watch, seed: int) -> Check:
    data, model = digits(), mlp(64, 48, 10)
    keep = data[1] != 7
    batches = pairs(data[0][keep], data[1][keep], steps=200, seed=seed)
    fit(watch, model, Adam(model.parameters(), lr=3e-3), batches, holdout=holdout(data))
    sevens = data[3] == 7
    return below(accuracy(model, data[2][sevens], data[3][sevens]), 0.1)


@fault("class never seen, wine", {"class_never_seen"}, wrong={"overfitting"})
def unseen_wine(watch: Watch, seed: int) -> Check:
    """The file is sorted by class and its end was cut off."""
    data, model = table("wine"), mlp(13, 24, 3)
    keep = data[1] != 2
    batches = pairs(data[0][keep], data[1][keep], steps=150, size=20, seed=seed)
    fit(watch, model, Adam(model.parameters(), lr=3e-3), batches, holdout=holdout(data))
    return below(accuracy(model, *data[2:]), 0.85)


UNSCALED = {"unscaled_inputs", "inputs_out_of_range"}


@fault("inputs times 100, MLP", UNSCALED, wrong={"exploding"})
def times_100(watch: Watch, seed: int) -> Check:
    data, model = digits(), mlp(64, 64, 64, 10)
    data = (data[0] * 100, data[1], data[2] * 100, data[3])
    batches = pairs(*data[:2], steps=200, seed=seed)
    losses = fit(watch, model, SGD(model.parameters(), lr=0.1, momentum=0.9), batches, holdout=holdout(data))
    return worse_than(last(losses), 1)


@fault("raw measurements, breast cancer", UNSCALED)
def raw(watch: Watch, seed: int) -> Check:
    """Columns from 0.001 to 4,254."""
    data, model = table("breast_cancer", scaled=False), mlp(30, 32, 2)
    batches = pairs(*data[:2], steps=200, size=32, seed=seed)
    losses = fit(watch, model, SGD(model.parameters(), lr=0.05), batches, holdout=holdout(data))
    return worse_than(last(losses), 0.4)


@fault("raw measurements, wine", UNSCALED)
def raw_wine(watch: Watch, seed: int) -> Check:
    data, model = table("wine", scaled=False), mlp(13, 32, 3)
    batches = pairs(*data[:2], steps=200, size=32, seed=seed)
    losses = fit(watch, model, Adam(model.parameters(), lr=1e-3), batches, holdout=holdout(data))
    return worse_than(last(losses), 0.35)


@fault("tokens of one letter, GPT", {"duplicated_data", "inputs_out_of_range", *UNRELATED}, since=None)
def one_token(watch: Watch, seed: int) -> Check:
    """Every token was unknown to the tokenizer."""
    model, text = GPT(), passages(400, 33, seed=seed)
    unknown = torch.full_like(text, VOCABULARY - 1)
    batches = pairs(unknown[:, :-1], text[:, 1:], steps=120, size=16, seed=seed)
    losses = fit(watch, model, AdamW(model.parameters(), lr=3e-3), batches, tokens, holdout=language())
    return worse_than(last(losses), 2.6)
