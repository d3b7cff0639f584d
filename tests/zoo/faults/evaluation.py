"""What is held out is not what it should be, or is evaluated by something else than the model."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW
from torch.utils.data import TensorDataset

from zoo.loops import accuracy, classes, fit, last, tokens
from zoo.material import VOCABULARY, digits, holdout, pairs, passages, table
from zoo.models import GPT, cnn, hf_gpt2, mlp
from zoo.registry import Check, Watch, above, fault

DIFFERS = {"holdout_differs"}


@fault("training examples inside the holdout, MLP", {"holdout_overlap"})
def overlap(watch: Watch, seed: int) -> Check | None:
    data, model = digits(), mlp(64, 48, 10)
    held = TensorDataset(torch.cat([data[0][:150], data[2][:100]]), torch.cat([data[1][:150], data[3][:100]]))
    fit(watch, model, Adam(model.parameters(), lr=3e-3), pairs(*data[:2], steps=200, seed=seed), holdout=held)
    return None


@fault("training examples inside the holdout, GPT", {"holdout_overlap"})
def overlap_gpt(watch: Watch, seed: int) -> Check | None:
    model, text = GPT(), passages(300, 33, seed=seed)
    held = TensorDataset(text[:64, :-1].clone(), text[:64, 1:].clone())
    batches = pairs(text[:, :-1], text[:, 1:], steps=150, size=16, seed=seed)
    fit(watch, model, AdamW(model.parameters(), lr=3e-3), batches, tokens, holdout=held)
    return None


@fault("holdout times 100, MLP", DIFFERS, wrong={"overfitting"})
def scaled_holdout(watch: Watch, seed: int) -> Check | None:
    data, model = digits(), mlp(64, 48, 10)
    held = TensorDataset(data[2][:200] * 100, data[3][:200])
    fit(watch, model, Adam(model.parameters(), lr=3e-3), pairs(*data[:2], steps=200, seed=seed), holdout=held)
    return None


@fault("holdout not normalised, CNN", DIFFERS, wrong={"overfitting"})
def raw_holdout(watch: Watch, seed: int) -> Check:
    """Training images are normalised, held-out ones are as read: pixels from 0 to 16."""
    data, model = digits(images=True), cnn()
    x = (data[0] - data[0].mean()) / data[0].std()
    held = TensorDataset(data[2][:200] * 16, data[3][:200])
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    fit(watch, model, optimizer, pairs(x, data[1], steps=150, seed=seed), holdout=held)
    meant = (data[2][:200] - data[0].mean()) / data[0].std()
    with torch.no_grad():
        wrong, right = (classes(model.eval()(x), data[3][:200]) for x in (held.tensors[0], meant))
    return above(float(wrong / right), 3)


@fault("holdout normalised twice, breast cancer", DIFFERS, wrong={"overfitting"})
def twice_normalised(watch: Watch, seed: int) -> Check:
    raw, data = table("breast_cancer", scaled=False), table("breast_cancer")
    again = (data[2] - raw[0].mean(0)) / raw[0].std(0)
    model = mlp(30, 32, 2)
    optimizer = Adam(model.parameters(), lr=3e-3)
    batches = pairs(*data[:2], steps=150, size=32, seed=seed)
    fit(watch, model, optimizer, batches, holdout=TensorDataset(again, data[3]))
    return above(1 - accuracy(model, again, data[3]), 0.2)


@fault("holdout classes numbered otherwise, MLP", DIFFERS, since=None, wrong={"overfitting"})
def other_classes(watch: Watch, seed: int) -> Check:
    """The order of the classes was taken from the folder listing of another machine."""
    data, model = digits(), mlp(64, 48, 10)
    other = torch.tensor([1, 2, 3, 4, 5, 6, 7, 8, 9, 0])[data[3]]
    held = TensorDataset(data[2][:200], other[:200])
    fit(watch, model, Adam(model.parameters(), lr=3e-3), pairs(*data[:2], steps=200, seed=seed), holdout=held)
    return above(1 - accuracy(model, data[2], other), 0.8)


@fault("holdout of another tokenizer, GPT", DIFFERS, since=None, wrong={"overfitting"})
def other_tokenizer(watch: Watch, seed: int) -> Check | None:
    model, text = GPT(), passages(600, 33, seed=seed)
    order = torch.randperm(VOCABULARY, generator=torch.Generator().manual_seed(7))
    held = order[passages(64, 33, held_out=True)]
    batches = pairs(text[:, :-1], text[:, 1:], steps=150, size=16, seed=seed)
    watching = {"holdout": TensorDataset(held[:, :-1].clone(), held[:, 1:].clone())}
    fit(watch, model, AdamW(model.parameters(), lr=5e-3), batches, tokens, **watching)
    return None


class Offset(nn.Module):
    """Position ids start at 1 in training, and at 0 in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.gpt = hf_gpt2(layers=1)
        nn.init.normal_(self.gpt.transformer.wpe.weight, std=1.0)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1]) + int(self.training)
        return self.gpt(input_ids=tokens, position_ids=places.expand_as(tokens)).logits


@fault("position ids off by one, GPT-2", DIFFERS, since=None, wrong={"overfitting"})
def positions(watch: Watch, seed: int) -> Check:
    """What comes next depends on the place: a cycle of letters that starts anew in each passage."""
    g = torch.Generator().manual_seed(seed)
    cycle = torch.randint(VOCABULARY - 1, (25,), generator=g).expand(600, 25)
    noise = torch.randint(VOCABULARY - 1, (600, 25), generator=g)
    text = cycle.where(torch.rand(600, 25, generator=g) < 0.8, noise)
    model = Offset()
    held = TensorDataset(text[500:, :-1].clone(), text[500:, 1:].clone())
    batches = pairs(text[:500, :-1], text[:500, 1:], steps=150, size=16, seed=seed)
    losses = fit(watch, model, AdamW(model.parameters(), lr=5e-3), batches, tokens, holdout=held)
    with torch.no_grad():
        evaluated = tokens(model.eval()(held.tensors[0]), held.tensors[1])
    return above(float(evaluated), 2 * last(losses))


STALE = {"stale_batch_norm"}


@fault("batch norm with momentum 0, CNN", STALE, wrong={"overfitting", "holdout_differs"})
def stale(watch: Watch, seed: int) -> Check:
    data, model = digits(images=True), cnn(norm=True, momentum=0.0)
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    fit(watch, model, optimizer, pairs(*data[:2], steps=150, seed=seed), holdout=holdout(data))
    return above(1 - accuracy(model, *data[2:]), 0.1)


@fault("batch norm with momentum 0, MLP", STALE, wrong={"overfitting", "holdout_differs"})
def stale_mlp(watch: Watch, seed: int) -> Check:
    data, model = digits(), mlp(64, 64, 64, 10, norm=True)
    for layer in model:
        if isinstance(layer, nn.BatchNorm1d):
            layer.momentum = 0.0001  # TensorFlow's momentum of 0.9999, for which 0.0001 was right there
    data = (data[0] * 4, data[1], data[2] * 4, data[3])
    fit(watch, model, Adam(model.parameters(), lr=3e-3), pairs(*data[:2], steps=150, seed=seed), holdout=holdout(data))
    return above(1 - accuracy(model, *data[2:]), 0.1)


class WithAverage(nn.Module):
    """In evaluation, the average of the weights is used, as some wrappers do."""

    def __init__(self, net: nn.Module, decay: float) -> None:
        super().__init__()
        self.net, self.average, self.decay = net, copy.deepcopy(net).requires_grad_(False), decay

    @torch.no_grad()
    def update(self) -> None:
        for kept, new in zip(self.average.parameters(), self.net.parameters(), strict=True):
            kept.lerp_(new, 1 - self.decay)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x) if self.training else self.average(x)


@fault("average of the weights evaluated too early, MLP", DIFFERS, since=None, wrong={"overfitting"})
def early_average(watch: Watch, seed: int) -> Check:
    """With a decay of 0.9999, 200 steps leave the average where it began."""
    data, model = digits(), WithAverage(mlp(64, 48, 10), 0.9999)
    optimizer = Adam(model.net.parameters(), lr=3e-3)
    with watch(model, optimizer, holdout=holdout(data)) as w:
        for x, y in pairs(*data[:2], steps=200, seed=seed):
            loss = classes(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            model.update()
            w.log(loss=loss)
    return above(1 - accuracy(model, *data[2:]), 0.5)


@fault("average of the weights left in the model, MLP", {"loss_spike", "state_reset"}, since=61)
def average_left(watch: Watch, seed: int) -> Check:
    """Swapped in for an evaluation every 60 steps, and never swapped back."""
    data, model = digits(), mlp(64, 48, 10)
    kept, optimizer, losses = WithAverage(model, 0.99), Adam(model.parameters(), lr=3e-3), []
    with watch(model, optimizer, holdout=holdout(data)) as w:
        for number, (x, y) in enumerate(pairs(*data[:2], steps=240, seed=seed), 1):
            loss = classes(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            kept.update()
            w.log(loss=loss)
            losses.append(loss.item())
            if number % 60 == 0:
                model.load_state_dict(kept.average.state_dict())
    return above(sum(losses[60:64]), 1.5 * sum(losses[56:60]))
