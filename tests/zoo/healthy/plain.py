"""Classification, regression and language models as they are usually trained."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW, RMSprop

from zoo.loops import accuracy, classes, explained, fit, last, squares, tokens
from zoo.material import digits, holdout, language, pairs, passages, table, teacher
from zoo.models import GPT, LSTM, RowReader, cnn, hf_gpt2, hf_vit, mlp
from zoo.registry import Check, Watch, above, below, healthy


@healthy("classification, MLP on digits")
def plain_mlp(watch: Watch, seed: int) -> Check:
    data, model = digits(), mlp(64, 64, 10)
    fit(watch, model, Adam(model.parameters(), lr=3e-3), pairs(*data[:2], steps=250, seed=seed), holdout=holdout(data))
    return above(accuracy(model, *data[2:]), 0.9)


@healthy("classification, MLP on wine")
def wine(watch: Watch, seed: int) -> Check:
    data, model = table("wine"), mlp(13, 32, 3)
    batches = pairs(*data[:2], steps=120, size=20, seed=seed)
    fit(watch, model, SGD(model.parameters(), lr=0.05), batches, holdout=holdout(data))
    return above(accuracy(model, *data[2:]), 0.9)


@healthy("classification, MLP on breast cancer")
def cancer(watch: Watch, seed: int) -> Check:
    data, model = table("breast_cancer"), mlp(30, 32, 2)
    batches = pairs(*data[:2], steps=150, size=32, seed=seed)
    fit(watch, model, AdamW(model.parameters(), lr=1e-3, weight_decay=0.01), batches, holdout=holdout(data))
    return above(accuracy(model, *data[2:]), 0.92)


@healthy("SGD with momentum, CNN")
def momentum(watch: Watch, seed: int) -> Check:
    data, model = digits(images=True), cnn()
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    fit(watch, model, optimizer, pairs(*data[:2], steps=200, seed=seed), holdout=holdout(data))
    return above(accuracy(model, *data[2:]), 0.9)


@healthy("RMSprop, recurrent network")
def rmsprop(watch: Watch, seed: int) -> Check:
    data, model = digits(), RowReader()
    batches = pairs(*data[:2], steps=250, seed=seed)
    fit(watch, model, RMSprop(model.parameters(), lr=3e-3), batches, holdout=holdout(data))
    return above(accuracy(model, *data[2:]), 0.88)


@healthy("batch norm, CNN", seeds=range(4))
def batch_norm(watch: Watch, seed: int) -> Check:
    data, model = digits(images=True), cnn(norm=True)
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    fit(watch, model, optimizer, pairs(*data[:2], steps=200, seed=seed), holdout=holdout(data))
    return above(accuracy(model, *data[2:]), 0.93)


@healthy("dropout, MLP", seeds=range(4))
def dropout(watch: Watch, seed: int) -> Check:
    """With an evaluation now and then, in eval mode, as it should be."""
    data, model = digits(), mlp(64, 96, 96, 10, dropout=0.4)
    optimizer = Adam(model.parameters(), lr=3e-3)
    with watch(model, optimizer, holdout=holdout(data)) as w:
        for number, (x, y) in enumerate(pairs(*data[:2], steps=250, seed=seed), 1):
            loss = classes(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
            if number % 50 == 0:
                model.eval()
                with torch.no_grad():
                    model(data[2])
                model.train()
    return above(accuracy(model, *data[2:]), 0.92)


@healthy("vision transformer, Hugging Face", seeds=(0, 1))
def vit(watch: Watch, seed: int) -> Check:
    data, model = digits(images=True), hf_vit()
    batches = pairs(*data[:2], steps=250, seed=seed)
    optimizer = AdamW(model.parameters(), lr=3e-3)
    fit(watch, model, optimizer, batches, lambda out, y: classes(out.logits, y), holdout=holdout(data))
    return above(accuracy(model, *data[2:]), 0.75)


def raw_regression(watch: Watch, seed: int, scale: float) -> Check:
    """The loss has the scale of the targets' square; so have its gradients."""
    data, model = teacher(6000, seed=seed), mlp(16, 64, 64, 1)
    data = (data[0], data[1] * scale, data[2], data[3] * scale)
    rate = {1.0: 3e-3, 10.0: 1e-2, 100.0: 3e-2}[scale]
    watching = {"holdout": holdout(data), "loss": F.mse_loss}
    batches = pairs(*data[:2], steps=300, size=64, seed=seed)
    fit(watch, model, Adam(model.parameters(), lr=rate), batches, squares, **watching)
    return above(explained(model, *data[2:]), 0.7)


@healthy("regression, targets × 1")
def regression(watch: Watch, seed: int) -> Check:
    return raw_regression(watch, seed, 1.0)


@healthy("regression, targets × 10")
def regression_10(watch: Watch, seed: int) -> Check:
    return raw_regression(watch, seed, 10.0)


@healthy("regression, targets × 100")
def regression_100(watch: Watch, seed: int) -> Check:
    return raw_regression(watch, seed, 100.0)


@healthy("regression with a robust loss, diabetes")
def diabetes(watch: Watch, seed: int) -> Check:
    data, model = table("diabetes"), mlp(10, 24, 1)
    watching = {"holdout": holdout(data), "loss": F.smooth_l1_loss}
    optimizer = Adam(model.parameters(), lr=2e-3, weight_decay=1e-3)
    batches = pairs(*data[:2], steps=150, size=32, seed=seed)
    fit(watch, model, optimizer, batches, lambda out, y: F.smooth_l1_loss(out, y), **watching)
    return above(explained(model, *data[2:]), 0.3)


def letters_model(watch: Watch, seed: int, model: nn.Module, *, rate: float, steps: int, clip: float = 1.0) -> Check:
    text = passages(1500, 33, seed=seed)
    batches = pairs(text[:, :-1], text[:, 1:], steps=steps, size=16, seed=seed)
    optimizer = AdamW(model.parameters(), lr=rate)
    losses = fit(watch, model, optimizer, batches, tokens, clip=clip, holdout=language())
    return below(last(losses), 2.4)


@healthy("language model, GPT")
def gpt(watch: Watch, seed: int) -> Check:
    return letters_model(watch, seed, GPT(), rate=5e-3, steps=250)


@healthy("language model, LSTM")
def lstm(watch: Watch, seed: int) -> Check:
    return letters_model(watch, seed, LSTM(), rate=1e-2, steps=250)


@healthy("tied weights, GPT")
def tied(watch: Watch, seed: int) -> Check:
    return letters_model(watch, seed, GPT(tied=True), rate=5e-3, steps=250)


@healthy("language model with its own loss, Hugging Face", seeds=(0, 1))
def gpt2(watch: Watch, seed: int) -> Check:
    model, text = hf_gpt2(), passages(1500, 32, seed=seed)
    optimizer, losses = AdamW(model.parameters(), lr=5e-3), []
    held = passages(48, 32, held_out=True)
    with watch(model, optimizer, holdout=[{"input_ids": held, "labels": held}]) as w:
        for x, _ in pairs(text, text, steps=190, size=16, seed=seed):
            loss = model(input_ids=x, labels=x).loss
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            w.log(loss=loss)
            losses.append(loss.item())
    return below(last(losses), 2.45)


@healthy("label smoothing, MLP")
def smoothed(watch: Watch, seed: int) -> Check:
    data, model = digits(), mlp(64, 64, 10)
    loss = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = Adam(model.parameters(), lr=3e-3)
    fit(watch, model, optimizer, pairs(*data[:2], steps=250, seed=seed), loss, holdout=holdout(data))
    return above(accuracy(model, *data[2:]), 0.9)


@healthy("imbalanced classes that are learned, MLP")
def imbalanced(watch: Watch, seed: int) -> Check:
    """Nine to one, and what tells the rare class is found."""
    data, model = digits(), mlp(64, 48, 2)
    y, held = (data[1] == 3).long(), (data[3] == 3).long()
    watching = {"holdout": [(data[2][:200], held[:200])]}
    fit(watch, model, Adam(model.parameters(), lr=3e-3), pairs(data[0], y, steps=400, seed=seed), **watching)
    found = (model(data[2]).argmax(1) == 1)[held == 1].float().mean()
    return above(float(found), 0.7)


@healthy("several labels an example, MLP")
def multi_label(watch: Watch, seed: int) -> Check:
    data, model = digits(), mlp(64, 64, 4)

    def facts(y: Tensor) -> Tensor:
        return torch.stack([y % 2 == 0, y > 4, y % 3 == 0, (y == 0) | (y == 8)], 1).float()

    watching = {"holdout": [(data[2][:200], facts(data[3][:200]))], "loss": F.binary_cross_entropy_with_logits}
    fit(
        watch, model, Adam(model.parameters(), lr=3e-3), pairs(data[0], facts(data[1]), steps=300, seed=seed),
        lambda out, y: F.binary_cross_entropy_with_logits(out, y), **watching,
    )  # fmt: skip
    return above(float(((model(data[2]) > 0) == (facts(data[3]) > 0)).float().mean()), 0.9)
