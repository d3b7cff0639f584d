"""Faults of the second blind set: in the loss, in what it is given, and in what the model may see."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW, NAdam, RMSprop

from zoo.loops import classes, explained, fit, last, tokens
from zoo.material import pairs
from zoo.models import mlp
from zoo.registry import Check, Watch, above, below, fault, worse_than
from zoo.unseen.second_material import (
    MADE,
    generator,
    glyphs,
    graphs,
    kept,
    made_text,
    masks,
    moons,
    series,
    split,
)
from zoo.unseen.second_models import GIN, TCN, Encoder, UNet, llama, masked_bert


def tagged(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rows of letters; the tag of each is how it compares with the one before."""
    rows = torch.randint(1, 9, (1200, 14), generator=generator(seed))
    return split(rows, (rows - rows.roll(1, 1)).sign() + 1)


@fault("softmax over time before the loss, tagger", {"double_softmax"}, since=None)
def softmax_over_time(watch: Watch, seed: int) -> Check:
    """softmax(dim=1) of (batch, time, tags), and cross-entropy takes another."""
    data, model = tagged(seed), Encoder(9, 3, tags=True)

    def objective(out: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(out.softmax(dim=1).flatten(0, 1), y.flatten())

    taken = fit(watch, model, AdamW(model.parameters(), lr=2e-3), pairs(*data[:2], steps=200, size=32, seed=seed),
                objective, holdout=kept(data))  # fmt: skip
    return worse_than(last(taken), 0.9)


@fault("logarithm of a forecast below zero, amounts", {"nonfinite"})
def log_of_negative(watch: Watch, seed: int) -> Check:
    """The error of the logarithms, and nothing keeps what the model says above zero."""
    g = generator(seed)
    x = torch.randn(1500, 6, generator=g)
    amount = (x[:, :1] + 0.5 * x[:, 1:2] + 0.1 * torch.randn(1500, 1, generator=g)).exp()
    data, model = split(x, amount), mlp(6, 64, 64, 1, activation=nn.ELU)

    def objective(out: Tensor, y: Tensor) -> Tensor:
        return (out.log() - y.log()).square().mean().sqrt()

    taken = fit(watch, model, Adam(model.parameters(), lr=3e-3), pairs(*data[:2], steps=150, size=100, seed=seed),
                objective, holdout=kept(data))  # fmt: skip
    return worse_than(last(taken), 10.0)


@fault("mean over an empty mask, tagger", {"bad_batch", "nonfinite"}, since=70)
def empty_mask(watch: Watch, seed: int) -> Check:
    """The loss counts marked places alone, and in the batch of step 70 none is marked: 0/0."""
    data, model = tagged(seed), Encoder(9, 3, tags=True)
    optimizer, taken = NAdam(model.parameters(), lr=2e-3), []
    with watch(model, optimizer, holdout=kept(data)) as w:
        for number, (x, y) in enumerate(pairs(*data[:2], steps=160, size=32, seed=seed), 1):
            marked = torch.rand(x.shape) < (0.0 if number == 70 else 0.5)
            each = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="none").view_as(marked)
            loss = (each * marked).sum() / marked.sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
            taken.append(loss.item())
    return worse_than(last(taken), 0.9)


@fault("loss added up over pixels, U-Net with Nesterov", {"summed_loss", "learning_rate_too_high"}, wrong={"exploding"})
def summed_pixels(watch: Watch, seed: int) -> Check:
    """reduction='sum' with the rate that was found for the mean."""
    data, model = masks(seed), UNet()

    def objective(out: Tensor, y: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(out, y, reduction="sum")

    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    taken = fit(watch, model, optimizer, pairs(*data[:2], steps=200, size=24, seed=seed), objective, holdout=kept(data),
                loss=objective)  # fmt: skip
    return worse_than(last(taken) / (24 * 144), 0.2)


class PictureVAE(nn.Module):
    def __init__(self, code: int = 6) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(1, 12, 4, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(432, 2 * code))
        self.decoder = nn.Sequential(nn.Linear(code, 96), nn.ReLU(), nn.Linear(96, 144), nn.Unflatten(1, (1, 12, 12)))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.encoder(x).chunk(2, 1)
        code = mean + torch.randn_like(mean) * (log_variance / 2).exp()
        return self.decoder(code), mean, log_variance


@fault("annealing of the divergence without an end, VAE", {"embedding_collapse", "posterior_collapse"}, since=None)
def endless_annealing(watch: Watch, seed: int) -> Check:
    """min(1, step / 100) was meant; the weight is step / 2."""
    x, _, mask = glyphs(1200, seed=seed)
    data, model = split(x, mask), PictureVAE()
    optimizer = Adam(model.parameters(), lr=3e-3)
    with watch(model, optimizer) as w:
        for step, (a, b) in enumerate(pairs(*data[:2], steps=250, size=50, seed=seed)):
            out, mean, log_variance = model(a)
            divergence = (mean.square() + log_variance.exp() - 1 - log_variance).sum(1).mean() / 2
            loss = F.mse_loss(out, b, reduction="sum") / len(a) + step / 2 * divergence
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss, divergence=divergence)
    return below(float(divergence), 0.05)


@fault("classes weighed by frequency in place of rarity, graphs", {"ignored_class", "majority_guess"}, since=None)
def weighed_wrongly(watch: Watch, seed: int) -> Check:
    adjacency, label = graphs(seed, 1600, share=0.08)
    data, model = split(adjacency, label), GIN()
    share = torch.bincount(data[1], minlength=2) / len(data[1])

    def objective(out: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(out, y, weight=share)

    fit(watch, model, AdamW(model.parameters(), lr=3e-3), pairs(*data[:2], steps=200, size=50, seed=seed), objective,
        holdout=kept(data, 400))  # fmt: skip
    with torch.no_grad():
        found = model(data[2][data[3] == 1]).argmax(1)
    return below(float(found.double().mean()), 0.3)


@fault("tanh at the end and tens in the targets, convolutions over the past", {"saturated_units",
       "targets_out_of_range"}, since=None)  # fmt: skip
def bounded(watch: Watch, seed: int) -> Check:
    data, model = series(seed, scale=12.0), nn.Sequential(TCN(), nn.Tanh())
    fit(watch, model, RMSprop(model.parameters(), lr=2e-3), pairs(*data[:2], steps=250, size=32, seed=seed), F.l1_loss,
        holdout=kept(data), loss=F.l1_loss)  # fmt: skip
    return below(explained(model, *data[2:]), 0.5)


def hidden(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The rows with a sixth of the tokens masked, and which they are."""
    masked = torch.rand(rows.shape) < 0.17
    return rows.masked_fill(masked, MADE - 1), masked


@fault("the loss is of the tokens that are seen, masked BERT", {"copies_input"}, since=None)
def seen_tokens(watch: Watch, seed: int) -> Check:
    """−100 was put on the masked places in place of the others."""
    rows, model = made_text(seed, 500), masked_bert()
    optimizer = AdamW(model.parameters(), lr=2e-3)
    with watch(model, optimizer) as w:
        for x, _ in pairs(rows[:400], rows[:400], steps=200, size=32, seed=seed):
            given, masked = hidden(x)
            loss = model(input_ids=given, labels=x.masked_fill(masked, -100)).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    given, masked = hidden(rows[400:])
    with torch.no_grad():
        right = model.eval()(input_ids=given).logits.argmax(-1) == rows[400:]
    return below(float(right[masked].double().mean()), 0.3)


@fault("labels moved the other way, Llama", {"copies_input", "labels_shifted"}, since=None)
def other_way(watch: Watch, seed: int) -> Check:
    """roll(+1) for roll(−1): each place is to say the token before it, which it can see."""
    rows, model = made_text(seed, 500), llama()
    optimizer, taken = AdamW(model.parameters(), lr=3e-3), []
    with watch(model, optimizer) as w:
        for x, _ in pairs(rows, rows, steps=200, size=32, seed=seed):
            loss = tokens(model(input_ids=x).logits[:, 1:], x.roll(1, 1)[:, 1:])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
            taken.append(loss.item())
    return below(last(taken), 0.5)


class UpsideDown(nn.Module):
    """A language model whose mask lets each place see itself and what follows."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Encoder(MADE, MADE, tags=True)

    def forward(self, rows: Tensor) -> Tensor:
        length = rows.shape[1]
        return self.body(rows, torch.ones(length, length).tril(-1).bool())


@fault("causal mask upside down, transformer", {"copies_input"}, since=None)
def upside_down(watch: Watch, seed: int) -> Check:
    rows, model = made_text(seed, 500), UpsideDown()
    data = split(rows[:, :-1].clone(), rows[:, 1:].clone(), 0.8)
    taken = fit(watch, model, AdamW(model.parameters(), lr=3e-3), pairs(*data[:2], steps=250, size=32, seed=seed),
                tokens, holdout=kept(data))  # fmt: skip
    return below(last(taken), 0.5)


@fault("noise drawn a second time for the target, diffusion", {"labels_unrelated"}, since=None)
def drawn_again(watch: Watch, seed: int) -> Check:
    """randn_like is called in the loss once more: nothing can be learned but zero."""
    x = moons(seed)[0]
    model, taken = mlp(3, 64, 64, 2, activation=nn.SiLU), []
    optimizer = AdamW(model.parameters(), lr=2e-3)
    with watch(model, optimizer) as w:
        for points, _ in pairs(x, x, steps=300, size=100, seed=seed):
            time = torch.rand(len(points), 1)
            given = (1 - time).sqrt() * points + time.sqrt() * torch.randn_like(points)
            loss = F.mse_loss(model(torch.cat([given, time], 1)), torch.randn_like(points))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
            taken.append(loss.item())
    return worse_than(last(taken), 0.9)


@fault("similarities times the temperature, two towers", {"double_softmax", "temperature_too_high"}, since=None)
def towers(watch: Watch, seed: int) -> Check:
    """Divided by 0.05 was meant; multiplied by it, all logits are between −0.05 and 0.05."""
    x, _, mask = glyphs(1200, seed=seed)
    one, two = mlp(144, 64, 16), mlp(144, 64, 16)
    model, taken = nn.ModuleDict({"picture": one, "outline": two}), []
    optimizer = AdamW(model.parameters(), lr=3e-3)
    with watch(model, optimizer) as w:
        for a, b in pairs(x.flatten(1), mask.flatten(1), steps=200, size=48, seed=seed):
            scores = F.normalize(one(a), dim=1) @ F.normalize(two(b), dim=1).T * 0.05
            loss = (classes(scores, torch.arange(48)) + classes(scores.T, torch.arange(48))) / 2
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
            taken.append(loss.item())
    return above(last(taken), 3.5)
