"""Models that are trained in part, in turns, or on several things at once."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW
from torch.utils.data import TensorDataset

from zoo.loops import accuracy, classes, fit, last, tokens
from zoo.material import digits, holdout, pairs, passages, rows_of
from zoo.models import GPT, Bag, hf_gpt2, mlp
from zoo.registry import Check, Watch, above, below, healthy


class TopOne(nn.Module):
    """Each example goes to one expert; what it makes is scaled by the router's share (Fedus et al. 2021)."""

    def __init__(self, experts: int = 4) -> None:
        super().__init__()
        self.stem, self.router = nn.Linear(64, 48), nn.Linear(48, experts)
        self.experts, self.head = nn.ModuleList(mlp(48, 48, 48) for _ in range(experts)), nn.Linear(48, 10)
        self.balance = torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.stem(x))
        shares = self.router(hidden).softmax(1)
        best, chosen = shares.max(1)
        out = torch.zeros_like(hidden)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero().squeeze(1)
            if len(rows):
                out = out.index_add(0, rows, best[rows, None] * expert(hidden[rows]))
        used = F.one_hot(chosen, len(self.experts)).float().mean(0)
        self.balance = len(self.experts) * (used * shares.mean(0)).sum()
        return self.head(torch.relu(hidden + out))


@healthy("one expert of four, mixture of experts", seeds=range(4))
def experts(watch: Watch, seed: int) -> Check:
    data, model = digits(), TopOne()
    optimizer = Adam(model.parameters(), lr=2e-3)
    with watch(model, optimizer, holdout=holdout(data)) as w:
        for x, y in pairs(*data[:2], steps=200, size=16, seed=seed):
            loss = classes(model(x), y) + 0.01 * model.balance
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    return above(accuracy(model, *data[2:]), 0.9)


@healthy("adapters, LoRA on GPT-2", seeds=(0, 1))
def lora(watch: Watch, seed: int) -> Check:
    """A model that knows the letters learns, by adapters, that two of them have changed places."""
    from peft import LoraConfig, get_peft_model

    base, text = hf_gpt2(), passages(1200, 33, seed=seed)
    optimizer = AdamW(base.parameters(), lr=5e-3)
    for x, _ in pairs(text, text, steps=220, size=16, seed=seed):
        loss = base(input_ids=x, labels=x).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    config = LoraConfig(r=8, lora_alpha=16, target_modules=["c_attn", "c_proj", "c_fc"], fan_in_fan_out=True)
    model = get_peft_model(base, config)
    places = torch.arange(40)
    places[9], places[13] = 13, 9
    moved, held = places[text], places[passages(32, 33, held_out=True)]
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer, losses = AdamW(trained, lr=1e-2), []
    with watch(model, optimizer, holdout=[{"input_ids": held, "labels": held}]) as w:
        for x, _ in pairs(moved, moved, steps=120, size=16, seed=seed):
            loss = model(input_ids=x, labels=x).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
            losses.append(loss.item())
    return below(last(losses), min(2.6, last(losses[:5]) - 0.05))


class Backbone(nn.Module):
    def __init__(self, body: nn.Module, width: int) -> None:
        super().__init__()
        self.body, self.head = body, nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def trained_body(seed: int) -> nn.Module:
    """All but the last layer of a network that knows the digits."""
    data, net = digits(), mlp(64, 64, 32, 10)
    optimizer = Adam(net.parameters(), lr=3e-3)
    for x, y in pairs(*data[:2], steps=150, seed=seed):
        loss = classes(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return net[:-1]


def odd(y: Tensor) -> Tensor:
    return y % 2


@healthy("frozen backbone, MLP", seeds=range(4))
def frozen(watch: Watch, seed: int) -> Check:
    """Odd or even, from features that are not trained any more."""
    data, model = digits(), Backbone(trained_body(seed), 32)
    model.body.requires_grad_(False)
    optimizer = Adam(model.head.parameters(), lr=1e-2)
    watching = {"holdout": [(data[2][:200], odd(data[3][:200]))]}
    fit(watch, model, optimizer, pairs(data[0], odd(data[1]), steps=150, seed=seed), **watching)
    return above(accuracy(model, data[2], odd(data[3])), 0.85)


@healthy("fine-tuning at a small rate, MLP")
def fine_tuning(watch: Watch, seed: int) -> Check:
    """A network that is nearly there: the loss hardly falls, and need not."""
    data, net = digits(), nn.Sequential(*trained_body(seed), nn.Linear(32, 10))
    optimizer = Adam(net[-1].parameters(), lr=1e-2)
    for x, y in pairs(*data[:2], steps=80, seed=seed):
        loss = classes(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    fit(watch, net, AdamW(net.parameters(), lr=2e-5), pairs(*data[:2], steps=150, seed=seed), holdout=holdout(data))
    return above(accuracy(net, *data[2:]), 0.9)


@healthy("rare embeddings, bag of tokens")
def rare(watch: Watch, seed: int) -> Check:
    """Of 2,000 tokens most are seen once or never; two dozen say which class it is."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(4, (1600,), generator=g)
    text = torch.randint(24, 2000, (1600, 12), generator=g)
    text[:, :3] = torch.randint(6, (1600, 3), generator=g) + 6 * y[:, None]
    model = Bag(2000, 4)
    watching = {"holdout": TensorDataset(text[1200:], y[1200:])}
    batches = pairs(text[:1200], y[:1200], steps=200, size=32, seed=seed)
    fit(watch, model, Adam(model.parameters(), lr=1e-2), batches, **watching)
    return above(accuracy(model, text[1200:], y[1200:]), 0.9)


class Tasks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.digit, self.odd = mlp(64, 64, 48), nn.Linear(48, 10), nn.Linear(48, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = torch.relu(self.body(x))
        return self.digit(hidden), self.odd(hidden)


@healthy("two tasks at once, MLP")
def two_tasks(watch: Watch, seed: int) -> Check:
    data, model = digits(), Tasks()
    optimizer = Adam(model.parameters(), lr=3e-3)
    with watch(model, optimizer) as w:
        for x, y in pairs(*data[:2], steps=250, seed=seed):
            digit, parity = model(x)
            loss = classes(digit, y) + 0.5 * classes(parity, odd(y))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    return above(float((model(data[2])[0].argmax(1) == data[3]).float().mean()), 0.9)


@healthy("pixels in or out, segmentation")
def segmentation(watch: Watch, seed: int) -> Check:
    data = digits(images=True)
    blurred, held = (F.avg_pool2d(x, 3, 1, 1) for x in (data[0], data[2]))
    masks, seen = (data[0] > 0.5).float(), (data[2] > 0.5).float()
    model = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 1, 3, padding=1))
    watching = {"holdout": [(held[:100], seen[:100])], "loss": F.binary_cross_entropy_with_logits}
    fit(
        watch, model, Adam(model.parameters(), lr=1e-2), pairs(blurred, masks, steps=200, seed=seed),
        lambda out, y: F.binary_cross_entropy_with_logits(out, y), **watching,
    )  # fmt: skip
    return above(float(((model(held) > 0) == (seen > 0)).float().mean()), 0.85)


class Reverses(nn.Module):
    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, width)
        self.encoder, self.decoder = nn.GRU(width, width, batch_first=True), nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, 11)

    def forward(self, source: Tensor, before: Tensor) -> Tensor:
        _, state = self.encoder(self.embed(source))
        return self.head(self.decoder(self.embed(before), state)[0])


@healthy("reversing a sequence, encoder and decoder")
def sequence_to_sequence(watch: Watch, seed: int) -> Check:
    g = torch.Generator().manual_seed(seed)
    source = torch.randint(10, (1500, 5), generator=g)
    target = source.flip(1)
    before = torch.cat([torch.full((1500, 1), 10), target[:, :-1]], 1)
    model = Reverses()
    optimizer, losses = Adam(model.parameters(), lr=1e-2), []
    with watch(model, optimizer) as w:
        for rows in rows_of(1500, steps=300, size=32, seed=seed):
            loss = tokens(model(source[rows], before[rows]), target[rows])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            w.log(loss=loss)
            losses.append(loss.item())
    return below(last(losses), 1.0)


@healthy("two optimizers in one loop, GPT")
def two_optimizers(watch: Watch, seed: int) -> Check:
    model, text = GPT(), passages(1500, 33, seed=seed)
    matrices = [p for p in model.blocks.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if not any(p is one for one in matrices)]
    optimizers = [SGD(matrices, lr=0.1, momentum=0.9), AdamW(others, lr=5e-3)]
    losses = []
    with watch(model, optimizers) as w:
        for x, y in pairs(text[:, :-1], text[:, 1:], steps=200, size=16, seed=seed):
            loss = tokens(model(x), y)
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            w.log(loss=loss)
            losses.append(loss.item())
    return below(last(losses), 2.5)
