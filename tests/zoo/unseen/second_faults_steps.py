"""Faults of the second blind set: the optimizer, its rate and the order of calls, and parts that are not trained."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW, RMSprop
from torch.optim.lr_scheduler import LambdaLR

from zoo.loops import accuracy, classes, explained, fit, last, squares
from zoo.material import pairs
from zoo.models import mlp
from zoo.registry import Check, Watch, above, below, fault, worse_than
from zoo.unseen.second_material import (
    TOO_HIGH,
    UNTRAINED,
    brackets,
    generator,
    glyphs,
    graphs,
    houses,
    kept,
    made_text,
    pictures,
    series,
    split,
)
from zoo.unseen.second_models import GIN, TCN, Encoder, Experts, Mixer, llama


def spoken(seed: int) -> Any:
    """A Llama that has learned the made language."""
    rows, model = made_text(seed, 400), llama()
    optimizer = AdamW(model.parameters(), lr=5e-3)
    for x, _ in pairs(rows, rows, steps=60, size=32, seed=seed):
        optimizer.zero_grad()
        model(input_ids=x, labels=x).loss.backward()
        optimizer.step()
    return model


def adapted(model: Any, **options: Any) -> Any:
    from peft import LoraConfig, get_peft_model

    settings = LoraConfig(r=4, lora_alpha=16, target_modules=["q_proj", "v_proj", "up_proj", "down_proj"], **options)
    return get_peft_model(model, settings)


def tuned(watch: Watch, model: Any, optimizer: torch.optim.Optimizer, seed: int, steps: int = 120) -> list[float]:
    """Of the language whose words stand in another order."""
    rows, taken = made_text(seed, 400, other=True), []
    with watch(model, optimizer) as w:
        for x, _ in pairs(rows, rows, steps=steps, size=32, seed=seed):
            loss = model(input_ids=x, labels=x).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
            taken.append(loss.item())
    return taken


@fault("optimizer made before the adapters, Llama", {*UNTRAINED, "dead_adapters"})
def before_adapters(watch: Watch, seed: int) -> Check:
    """It holds the base's weights, which the adapters' library freezes."""
    base = spoken(seed)
    optimizer = AdamW(base.parameters(), lr=5e-3, weight_decay=0.0)
    return worse_than(last(tuned(watch, adapted(base), optimizer, seed)), 2.0)


@fault("the half of the adapters that begins at zero is frozen, Llama", {*UNTRAINED, "dead_adapters", "zero_gradients"})
def frozen_half(watch: Watch, seed: int) -> Check:
    """B stays zero, so that A makes no difference and gets no gradient."""
    model = adapted(spoken(seed))
    for name, p in model.named_parameters():
        if "lora_B" in name:
            p.requires_grad_(False)
    optimizer = AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-3)
    return worse_than(last(tuned(watch, model, optimizer, seed)), 2.0)


@fault("schedule stepped at every part of a batch, mixer", {"learning_rate_too_low", "learning_rate_zero",
       "schedule_twice"}, since=None)  # fmt: skip
def every_part(watch: Watch, seed: int) -> Check:
    """Eight parts are accumulated, and the linear decay is over after an eighth of the run."""
    data, model = pictures(seed, noise=0.15), Mixer()
    optimizer = AdamW(model.parameters(), lr=2e-3)
    schedule, taken = LambdaLR(optimizer, lambda step: max(0.0, 1 - step / 150)), []
    batches = pairs(*data[:2], steps=150 * 8, size=8, seed=seed)
    with watch(model, optimizer, holdout=kept(data)) as w:
        for number, (x, y) in enumerate(batches, 1):
            loss = classes(model(x), y)
            (loss / 8).backward()
            schedule.step()
            if number % 8 == 0:
                optimizer.step()
                optimizer.zero_grad()
                w.log(loss=loss)
                taken.append(loss.item())
    return below(accuracy(model, *data[2:]), 0.5)


@fault("linear decay that goes below zero, transformer", {"learning_rate_zero", "loss_maximised"}, since=None)
def below_zero(watch: Watch, seed: int) -> Check:
    """1 − step / 120 in a run of 300 steps: from step 120 on it climbs."""
    rows, label = brackets(seed)
    data, model = split(rows, label), Encoder()
    optimizer = AdamW(model.parameters(), lr=2e-3)
    schedule = LambdaLR(optimizer, lambda step: 1 - step / 120)
    taken = fit(watch, model, optimizer, pairs(*data[:2], steps=300, size=32, seed=seed), schedule=schedule,
                holdout=kept(data))  # fmt: skip
    return worse_than(last(taken), 0.7)


class Adding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.GRU(2, 32, batch_first=True), nn.Linear(32, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[1][0])


def adding(seed: int, count: int = 1600, length: int = 10) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Numbers of which two are marked; their sum."""
    g = generator(seed)
    numbers = torch.rand(count, length, generator=g)
    marks = torch.zeros(count, length)
    marks.scatter_(1, torch.rand(count, length, generator=g).topk(2).indices, 1.0)
    return split(torch.stack([numbers, marks], 2), (numbers * marks).sum(1, keepdim=True))


@fault("rate of 0.5 per cent written as 0.5, GRU", TOO_HIGH)
def per_cent(watch: Watch, seed: int) -> Check:
    data, model = adding(seed), Adding()
    fit(watch, model, RMSprop(model.parameters(), lr=0.5), pairs(*data[:2], steps=250, size=50, seed=seed), squares,
        holdout=kept(data), loss=F.mse_loss)  # fmt: skip
    return below(explained(model, *data[2:]), 0.3)


@fault("momentum of one, convolutions over the past", {*TOO_HIGH, "momentum_too_high"}, since=None)
def all_momentum(watch: Watch, seed: int) -> Check:
    """Nothing of any gradient is ever forgotten."""
    data, model = series(seed), TCN()
    taken = fit(watch, model, SGD(model.parameters(), lr=0.1, momentum=1.0),
                pairs(*data[:2], steps=250, size=32, seed=seed), squares, holdout=kept(data),
                loss=F.mse_loss)  # fmt: skip
    return worse_than(last(taken), 0.3)


@fault("the generator's gradients stay in the discriminator, GAN", {"gradients_not_cleared"}, since=None)
def left_over(watch: Watch, seed: int) -> Check:
    """Only the generator's are cleared: the discriminator adds up all that ever came through it."""
    g = generator(seed)
    maker, judge = mlp(4, 32, 32, 2), mlp(2, 32, 32, 1)
    first, second = (Adam(part.parameters(), lr=2e-3, betas=(0.5, 0.99)) for part in (maker, judge))
    centre = torch.tensor([1.0, -1.0])
    with watch(nn.ModuleDict({"maker": maker, "judge": judge}), [first, second]) as w:
        for _ in range(400):
            real, fake = centre + 0.4 * torch.randn(64, 2, generator=g), maker(torch.randn(64, 4))
            loss = F.softplus(-judge(real)).mean() + F.softplus(judge(fake.detach())).mean()
            loss.backward()
            second.step()
            made = F.softplus(-judge(fake)).mean()
            first.zero_grad()
            made.backward()
            first.step()
            w.log(loss=loss, made=made)
    with torch.no_grad():
        return above(float((maker(torch.randn(500, 4)).mean(0) - centre).norm()), 0.8)


@fault("gradients taken after the step, mixture of experts", {"backward_without_step", "gradients_cleared_early",
       "steps_without_backward", "zero_gradients", *UNTRAINED})  # fmt: skip
def after_the_step(watch: Watch, seed: int) -> Check:
    """zero_grad, step, backward: what backward leaves is thrown away at the next step's start."""
    data, model = houses(seed), Experts()
    optimizer = AdamW(model.parameters(), lr=3e-3)
    with watch(model, optimizer, holdout=kept(data), loss=F.mse_loss) as w:
        for x, y in pairs(*data[:2], steps=200, size=50, seed=seed):
            loss = F.mse_loss(model(x), y)
            optimizer.zero_grad()
            optimizer.step()
            loss.backward()
            w.log(loss=loss)
    return below(explained(model, *data[2:]), 0.3)


@fault("batch norm in batches of one, pictures of unequal light", {"stale_batch_norm", "holdout_differs"}, since=None)
def batches_of_one(watch: Watch, seed: int) -> Check:
    """In training each picture is normalised by itself; in evaluation by averages that suit none."""
    x, kind, _ = glyphs(1200, seed=seed)
    g = generator(seed)
    light = (1.2 * torch.randn(len(x), 1, 1, 1, generator=g)).exp()
    data = split(light * (x + 3 * torch.randn(len(x), 1, 1, 1, generator=g)), kind)
    model = nn.Sequential(
        nn.BatchNorm2d(1), nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(12, 24, 3), nn.BatchNorm2d(24), nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(24, 4),
    )  # fmt: skip
    fit(watch, model, Adam(model.parameters(), lr=1e-3), pairs(*data[:2], steps=600, size=1, seed=seed),
        holdout=kept(data))  # fmt: skip
    held = accuracy(model, *data[2:])
    model.train()
    with torch.no_grad():
        trained = sum(int(model(a[None]).argmax()) == int(b) for a, b in zip(data[2], data[3], strict=True))
    return above(trained / len(data[2]) - held, 0.15)


@fault("dropout by function without its flag, graphs", {"dropout_in_evaluation"}, since=None)
def flagless(watch: Watch, seed: int) -> Check:
    """F.dropout(h, 0.85) drops in evaluation too: two answers to the same graph differ."""
    adjacency, label = graphs(seed, 1200)
    data, model = split(adjacency, label), GIN(always_dropped=0.85)
    fit(watch, model, AdamW(model.parameters(), lr=3e-3), pairs(*data[:2], steps=250, size=50, seed=seed),
        holdout=kept(data))  # fmt: skip
    dropped = accuracy(model, *data[2:])
    model.always = 0.0
    return above(accuracy(model, *data[2:]) - dropped, 0.01)


class Tower(nn.Module):
    """Thirty blocks that each add to the stream what they make of it, without norms or scales."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(8, 48), nn.Linear(48, 1)
        self.blocks = nn.ModuleList(mlp(48, 48, 48) for _ in range(30))
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.kaiming_normal_(layer.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


@fault("thirty residual branches of full size, houses", {"exploding", "exploding_initialisation"})
def full_size(watch: Watch, seed: int) -> Check:
    data, model = houses(seed), Tower()
    fit(watch, model, Adam(model.parameters(), lr=1e-3), pairs(*data[:2], steps=200, size=50, seed=seed), squares,
        holdout=kept(data), loss=F.mse_loss)  # fmt: skip
    return below(explained(model, *data[2:]), 0.3)


class Frozen(nn.Module):
    """Users and items by vectors from a file, which here is of another set: nothing is known of them."""

    def __init__(self) -> None:
        super().__init__()
        self.users = nn.Embedding.from_pretrained(torch.randn(80, 4))  # freeze=True unless told
        self.items = nn.Embedding.from_pretrained(torch.randn(60, 4))
        self.head = mlp(8, 16, 1)

    def forward(self, pair: Tensor) -> Tensor:
        return self.head(torch.cat([self.users(pair[:, 0]), self.items(pair[:, 1])], 1))


@fault("embeddings frozen by from_pretrained, pairs", UNTRAINED, where="users")
def frozen_tables(watch: Watch, seed: int) -> Check:
    g = generator(seed)
    pair = torch.stack([torch.randint(80, (2400,), generator=g), torch.randint(60, (2400,), generator=g)], 1)
    p, q = torch.randn(80, generator=g), torch.randn(60, generator=g)
    data, model = split(pair, (p[pair[:, 0]] + q[pair[:, 1]])[:, None]), Frozen()
    optimizer = AdamW(filter(lambda p: p.requires_grad, model.parameters()), lr=1e-2)
    fit(watch, model, optimizer, pairs(*data[:2], steps=300, size=64, seed=seed), squares, holdout=kept(data),
        loss=F.mse_loss)  # fmt: skip
    return below(explained(model, *data[2:]), 0.6)


@fault("router that only chooses, mixture of experts", {*UNTRAINED, "zero_gradients"}, where="router")
def only_chooses(watch: Watch, seed: int) -> Check:
    """argmax has no gradient, and the share that should multiply the answer was left out."""
    g = generator(seed)
    x = torch.randn(2400, 8, generator=g)
    group = torch.randint(4, (2400,), generator=g)
    x[:, :4] = 3.0 * F.one_hot(group, 4)
    y = (x[:, 4:] * torch.eye(4)[group] * torch.tensor([1.0, -1.0, 1.0, -1.0])).sum(1, keepdim=True)
    data, model = split(x, y), Experts(routed=False)
    model.experts = nn.ModuleList(nn.Linear(8, 1) for _ in range(4))
    fit(watch, model, Adam(model.parameters(), lr=1e-2), pairs(*data[:2], steps=300, size=64, seed=seed), squares,
        holdout=kept(data), loss=F.mse_loss)  # fmt: skip
    return below(explained(model, *data[2:]), 0.9)


class Rounded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = mlp(144, 48, 10), mlp(10, 48, 144)

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder((4 * self.encoder(x)).round() / 4)


@fault("code rounded without a way around, autoencoder", {*UNTRAINED, "zero_gradients", "vanishing"}, where="encoder")
def rounded(watch: Watch, seed: int) -> Check:
    """x + (x.round() − x).detach() was meant: a rounded number has a gradient of zero."""
    x = glyphs(1200, noise=0.1, seed=seed)[0].flatten(1)
    data, model = split(x, x), Rounded()
    fit(watch, model, Adam(model.parameters(), lr=3e-3), pairs(*data[:2], steps=300, size=50, seed=seed), squares,
        holdout=kept(data), loss=F.mse_loss)  # fmt: skip
    return below(explained(model, *data[2:]), 0.3)


@fault("logarithm of the probability out of the graph, actor and critic", UNTRAINED, where="actor")
def detached_actor(watch: Watch, seed: int) -> Check:
    """log_prob was computed where the action is drawn, under no_grad: only the critic learns."""
    g = generator(seed)
    model = nn.ModuleDict({"actor": mlp(4, 32, 4), "critic": mlp(4, 32, 1)})
    optimizer, won = Adam(model.parameters(), lr=5e-3), []
    with watch(model, optimizer) as w:
        for _ in range(300):
            shown = torch.randn(64, 4, generator=g)
            with torch.no_grad():
                policy = torch.distributions.Categorical(logits=model["actor"](shown))
                action = policy.sample()
                said = policy.log_prob(action)
            reward = (action == shown.argmax(1)).float()
            value = model["critic"](shown).squeeze(1)
            loss = -(said * (reward - value.detach())).mean() + F.mse_loss(value, reward)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss, reward=reward.mean())
            won.append(float(reward.mean()))
    return below(last(won), 0.4)
