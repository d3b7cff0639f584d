"""Known causes on models, data and loops that no other case has."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW, NAdam
from torch.utils.data import TensorDataset

from zoo.loops import accuracy, classes, explained, fit, last, squares, tokens
from zoo.material import VOCABULARY, digits, holdout, language, pairs, passages, table, teacher
from zoo.models import LSTM, RowReader, hf_bert, mlp
from zoo.registry import Check, Watch, above, below, fault, worse_than


class Residual(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(1, width, 3, padding=1), nn.Linear(width * 16, 10)
        self.blocks = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = x + torch.relu(block(x))
        return self.head(F.max_pool2d(x, 2).flatten(1))


@fault("rate of 1e-6 from a configuration, GRU", {"learning_rate_too_low"})
def tiny(watch: Watch, seed: int) -> Check:
    data, model = digits(), RowReader(nn.GRU)
    batches = pairs(*data[:2], steps=150, seed=seed)
    losses = fit(watch, model, NAdam(model.parameters(), lr=1e-6), batches, holdout=holdout(data))
    return worse_than(last(losses), 2.2)


@fault("steps that overshoot, residual network", {"learning_rate_too_high", "diverging"})
def overshoots(watch: Watch, seed: int) -> Check:
    data, model = digits(images=True), Residual()
    optimizer = SGD(model.parameters(), lr=1.0, momentum=0.9)
    losses = fit(watch, model, optimizer, pairs(*data[:2], steps=120, seed=seed), holdout=holdout(data))
    return worse_than(last(losses), 1.5)


@fault("clipped by value, MLP", {"clipped_hard"})
def clipped_by_value(watch: Watch, seed: int) -> Check:
    data, model = digits(), mlp(64, 48, 10)
    optimizer = SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, holdout=holdout(data)) as w:
        for x, y in pairs(*data[:2], steps=150, seed=seed):
            loss = classes(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_value_(model.parameters(), 1e-5)
            optimizer.step()
            w.log(loss=loss)
    return below(accuracy(model, *data[2:]), 0.5)


@fault("gradients cleared once an epoch, GRU", {"gradients_not_cleared"}, since=2)
def once_an_epoch(watch: Watch, seed: int) -> Check | None:
    data, model = digits(), RowReader(nn.GRU)
    optimizer = Adam(model.parameters(), lr=3e-3)
    with watch(model, optimizer, holdout=holdout(data)) as w:
        for _ in range(6):
            optimizer.zero_grad()
            for x, y in pairs(*data[:2], steps=27, seed=seed):
                loss = classes(model(x), y)
                loss.backward()
                optimizer.step()
                w.log(loss=loss)
    return None


@fault("eval mode from the start, dropout", {"eval_mode_training"})
def loaded_in_eval(watch: Watch, seed: int) -> Check | None:
    """As a model is that was loaded for inference."""
    data, model = table("breast_cancer"), mlp(30, 48, 48, 2, dropout=0.3).eval()
    batches = pairs(*data[:2], steps=120, size=32, seed=seed)
    fit(watch, model, Adam(model.parameters(), lr=3e-3), batches, holdout=holdout(data))
    return None


@fault("softmax before the loss of several labels, MLP", {"double_softmax"})
def softmax_of_labels(watch: Watch, seed: int) -> Check:
    data, model = digits(), nn.Sequential(*mlp(64, 64, 10), nn.Softmax(1))
    hot, held = F.one_hot(data[1], 10).float(), F.one_hot(data[3], 10).float()
    losses = fit(
        watch, model, Adam(model.parameters(), lr=1e-3), pairs(data[0], hot, steps=150, seed=seed),
        lambda out, y: F.binary_cross_entropy_with_logits(out, y),
        holdout=[(data[2][:200], held[:200])], loss=F.binary_cross_entropy_with_logits,
    )  # fmt: skip
    return worse_than(last(losses), 0.4)


@fault("every label is the same, wine", {"majority_guess", "class_never_seen"})
def one_label(watch: Watch, seed: int) -> Check:
    """The column of the labels was overwritten."""
    data, model = table("wine"), mlp(13, 24, 3)
    batches = pairs(data[0], torch.zeros_like(data[1]), steps=120, size=20, seed=seed)
    fit(watch, model, Adam(model.parameters(), lr=3e-3), batches, holdout=holdout(data))
    return below(accuracy(model, *data[2:]), 0.5)


@fault("pixels from 0 to 255, residual network", {"unscaled_inputs", "inputs_out_of_range"})
def pixels(watch: Watch, seed: int) -> Check:
    data, model = digits(images=True), Residual()
    data = (data[0] * 255, data[1], data[2] * 255, data[3])
    optimizer = SGD(model.parameters(), lr=0.02, momentum=0.9)
    losses = fit(watch, model, optimizer, pairs(*data[:2], steps=150, seed=seed), holdout=holdout(data))
    return worse_than(last(losses), 1)


@fault("pixels in another order in the holdout, MLP", {"holdout_differs"}, since=None, wrong={"overfitting"})
def other_columns(watch: Watch, seed: int) -> Check:
    """Written column by column and read row by row."""
    data, model = digits(), mlp(64, 48, 10)
    turned = data[2].view(-1, 8, 8).transpose(1, 2).reshape(-1, 64)
    batches = pairs(*data[:2], steps=150, seed=seed)
    held = TensorDataset(turned[:200], data[3][:200])
    fit(watch, model, Adam(model.parameters(), lr=3e-3), batches, holdout=held)
    return below(accuracy(model, turned, data[3]), 0.5)


@fault("ReLU at the end, targets below zero", {"targets_out_of_range", "dead_units"})
def positive_outputs(watch: Watch, seed: int) -> Check:
    data = teacher(seed=seed)
    data = (data[0], data[1] - 3, data[2], data[3] - 3)
    model = nn.Sequential(*mlp(16, 48, 1), nn.ReLU())
    watching = {"holdout": holdout(data), "loss": F.mse_loss}
    fit(watch, model, Adam(model.parameters(), lr=3e-3), pairs(*data[:2], steps=150, seed=seed), squares, **watching)
    return below(explained(model, *data[2:]), 0)


@fault("embedding resized after the optimizer, LSTM", {"frozen", "not_optimised", "not_moving"}, where="encoder")
def resized(watch: Watch, seed: int) -> Check | None:
    model, text = LSTM(), passages(400, 25, seed=seed)
    optimizer = AdamW(model.parameters(), lr=1e-2)
    model.encoder = nn.Embedding(VOCABULARY + 8, 48)
    batches = pairs(text[:, :-1], text[:, 1:], steps=120, size=16, seed=seed)
    fit(watch, model, optimizer, batches, tokens, holdout=language(length=24))
    return None


@fault("logarithm of a probability of zero, MLP", {"nonfinite", "exploding_initialisation"}, since=None)
def log_of_zero(watch: Watch, seed: int) -> Check:
    """The loss is written by hand; outputs of large weights make some probabilities vanish."""
    data, model = digits(), mlp(64, 48, 10)
    nn.init.normal_(model[2].weight, std=60)
    optimizer = SGD(model.parameters(), lr=0.1)
    losses = fit(
        watch, model, optimizer, pairs(*data[:2], steps=80, seed=seed),
        lambda out, y: -out.softmax(1).gather(1, y[:, None]).log().mean(), holdout=holdout(data),
    )  # fmt: skip
    return worse_than(last(losses), 5)


@fault("one batch of noise, LSTM", {"bad_batch", "loss_spike"}, since=140)
def noise_batch(watch: Watch, seed: int) -> Check:
    """A corrupted shard: random tokens."""
    model, text = LSTM(), passages(800, 25, seed=seed)
    torch.manual_seed(seed)
    noise = torch.randint(VOCABULARY, (16, 24))
    batches = (
        (noise, noise.roll(1, 1)) if n == 140 else (x, y)
        for n, (x, y) in enumerate(pairs(text[:, :-1], text[:, 1:], steps=200, size=16, seed=seed), 1)
    )
    optimizer = AdamW(model.parameters(), lr=1e-2)
    losses = fit(watch, model, optimizer, batches, tokens, clip=1.0, holdout=language(length=24))
    return above(losses[139], 1.7 * losses[138])


@fault("recurrent weights drawn too large, LSTM", {"exploding_initialisation", "exploding"})
def wild_lstm(watch: Watch, seed: int) -> Check:
    model, text = LSTM(), passages(400, 25, seed=seed)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=4.0)
    batches = pairs(text[:, :-1], text[:, 1:], steps=120, size=16, seed=seed)
    losses = fit(watch, model, AdamW(model.parameters(), lr=1e-3), batches, tokens, holdout=language(length=24))
    return worse_than(last(losses), 5)


@fault("eight passages over and over, LSTM", {"duplicated_data", "overfitting"}, since=None)
def eight_passages(watch: Watch, seed: int) -> Check:
    model, text = LSTM(), passages(8, 25, seed=seed).repeat(50, 1)
    batches = pairs(text[:, :-1], text[:, 1:], steps=150, size=16, seed=seed)
    losses = fit(watch, model, AdamW(model.parameters(), lr=1e-2), batches, tokens, holdout=language(length=24))
    return below(last(losses), 1)


@fault("labels drawn at random, BERT", {"labels_unrelated"}, since=None)
def random_labels(watch: Watch, seed: int) -> Check | None:
    g = torch.Generator().manual_seed(seed)
    model, text = hf_bert(labels=4), passages(2000, 8, seed=seed)
    labels = torch.randint(4, (2000,), generator=g)
    held = passages(100, 8, held_out=True)
    watching = {"holdout": [{"input_ids": held, "labels": torch.randint(4, (100,), generator=g)}]}
    optimizer = AdamW(model.parameters(), lr=1e-3)
    with watch(model, optimizer, **watching) as w:
        for x, y in pairs(text, labels, steps=120, size=16, seed=seed):
            loss = model(input_ids=x, labels=y).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    return None


@fault("every second step left out, MLP", {"backward_without_step"})
def every_second(watch: Watch, seed: int) -> Check | None:
    data, model = table("wine"), mlp(13, 32, 3)
    optimizer = Adam(model.parameters(), lr=3e-3)
    with watch(model, optimizer, holdout=holdout(data)) as w:
        for number, (x, y) in enumerate(pairs(*data[:2], steps=200, size=20, seed=seed)):
            optimizer.zero_grad()
            loss = classes(model(x), y)
            loss.backward()
            w.log(loss=loss)
            if number % 2:
                optimizer.step()
    return None


@fault("penalty on the weights of 1, MLP", {"weight_decay_too_strong"})
def penalty(watch: Watch, seed: int) -> Check:
    """The decay is written into the loss by hand."""
    data, model = digits(), mlp(64, 48, 10)
    optimizer = SGD(model.parameters(), lr=0.05)
    with watch(model, optimizer, holdout=holdout(data)) as w:
        for x, y in pairs(*data[:2], steps=150, seed=seed):
            loss = classes(model(x), y) + sum(p.square().sum() for p in model.parameters())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    return below(accuracy(model, *data[2:]), 0.5)
