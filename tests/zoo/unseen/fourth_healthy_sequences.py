"""Sound trainings of the fourth blind set: texts, series and rows."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW, NAdam

from zoo.loops import accuracy, fit, last, tokens
from zoo.material import pairs, rows_of
from zoo.registry import Check, Watch, above, below, healthy
from zoo.unseen.fourth_material import SEEDS, generator, kept, split, tides, told_first
from zoo.unseen.third_material import chain
from zoo.unseen.third_models import small_gpt2


class Shop(nn.Module):
    """What is bought next after three things, by nearness of vectors."""

    def __init__(self, things: int = 400, width: int = 24) -> None:
        super().__init__()
        self.seen, self.next = nn.Embedding(things, width), nn.Embedding(things, width)
        self.mix = nn.Linear(3 * width, width)
        for table in (self.seen, self.next):
            nn.init.normal_(table.weight, std=0.3)

    def forward(self, three: Tensor) -> Tensor:
        return self.mix(self.seen(three).flatten(1)).tanh()


@healthy("what is bought next, softmax over a sample of the things", seeds=SEEDS)
def sampled(watch: Watch, seed: int) -> Check:
    """Of 400 things the right one and 30 others are compared, each by how often it is drawn."""
    g, model = generator(seed), Shop()
    kind = torch.randint(20, (6000,), generator=g)
    three = 20 * kind[:, None] + torch.randint(20, (6000, 3), generator=g)
    after = 20 * ((kind + 1) % 20) + (20 * torch.rand(6000, generator=g) ** 2).long()
    often = torch.bincount(after[:5000], minlength=400).float() + 1
    often = often / often.sum()
    optimizer = Adam(model.parameters(), lr=1e-2)
    with watch(model, optimizer) as w:
        for rows in rows_of(5000, steps=350, size=64, seed=seed):
            others = often.multinomial(30)
            asked, right = model(three[rows]), after[rows]
            good = (asked * model.next(right)).sum(1, keepdim=True) - often[right].log()[:, None]
            bad = asked @ model.next(others).T - often[others].log()
            bad = bad.masked_fill(others == right[:, None], -1e4)
            loss = F.cross_entropy(torch.cat([good, bad], 1), torch.zeros(64, dtype=torch.long))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    with torch.no_grad():
        best = (model(three[5000:]) @ model.next.weight.T).topk(20, 1).indices
    return above(float((best // 20 == (after[5000:] // 20)[:, None]).double().mean()), 0.7)


class Reservoir(nn.Module):
    """A recurrent network that stays as it was drawn, and a readout."""

    def __init__(self, width: int = 120) -> None:
        super().__init__()
        self.rnn, self.readout = nn.RNN(1, width, batch_first=True), nn.Linear(width, 1)
        nn.init.orthogonal_(self.rnn.weight_hh_l0, 0.95)
        self.rnn.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.readout(self.rnn(x)[0][:, -1]).squeeze(1)


@healthy("next level of the tide, a reservoir that is not trained", seeds=SEEDS)
def reservoir(watch: Watch, seed: int) -> Check:
    data, model = tides(seed), Reservoir()
    fit(watch, model, NAdam(model.readout.parameters(), lr=5e-3), pairs(*data[:2], steps=300, size=50, seed=seed),
        F.mse_loss, holdout=kept(data), loss=F.mse_loss)  # fmt: skip
    with torch.no_grad():
        return below(float(F.mse_loss(model(data[2]), data[3]) / data[3].var()), 0.2)


class Decays(nn.Module):
    """Linear recurrences, each with a decay of its own, between two maps."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embedding, self.into = nn.Embedding(12, width), nn.Linear(width, 2 * width)
        self.decay, self.out = nn.Parameter(torch.linspace(-2, 5, width)), nn.Linear(width, 4)
        self.norm = nn.LayerNorm(width)

    def forward(self, text: Tensor) -> Tensor:
        value, gate = self.into(self.embedding(text)).chunk(2, -1)
        value, keep = value * gate.sigmoid(), self.decay.sigmoid()
        age = torch.arange(text.shape[1] - 1, -1, -1)
        held = (value * keep ** age[:, None]).sum(1)
        return self.out(self.norm(held))


@healthy("the first of thirty words, linear recurrences with learned decays", seeds=SEEDS)
def decays(watch: Watch, seed: int) -> Check:
    data, model = told_first(seed, 1600, 30), Decays()
    norms = [model.decay, *model.norm.parameters()]
    rest = [p for name, p in model.named_parameters() if name != "decay" and not name.startswith("norm")]
    optimizer = AdamW([{"params": rest}, {"params": norms, "weight_decay": 0.0, "lr": 1e-3}], lr=5e-3, weight_decay=0.1)
    fit(watch, model, optimizer, pairs(*data[:2], steps=300, size=50, seed=seed), holdout=kept(data), clip=1.0)
    return above(accuracy(model, *data[2:]), 0.95)


def said(model: nn.Module, text: Tensor, start: int) -> Tensor:
    """The log probability of the tokens from `start` on."""
    logits = model(input_ids=text).logits[:, start - 1 : -1].log_softmax(-1)
    return logits.gather(2, text[:, start:, None]).squeeze(2).sum(1)


@healthy("the better of two answers, preferences against a reference", seeds=SEEDS)
def preferences(watch: Watch, seed: int) -> Check:
    """The loss begins at the logarithm of two; the answer that is preferred has more of the high tokens."""
    model, text = small_gpt2(), chain(seed, 600)
    first = Adam(model.parameters(), lr=2e-3)
    for rows in rows_of(400, steps=80, size=32, seed=seed):
        first.zero_grad()
        model(input_ids=text[rows], labels=text[rows]).loss.backward()
        first.step()
    reference, optimizer = copy.deepcopy(model).requires_grad_(False), AdamW(model.parameters(), lr=3e-4)
    other = torch.cat([text[:, :8], text.roll(1, 0)[:, 8:]], 1)
    high = (text[:, 8:] > 7).sum(1) >= (other[:, 8:] > 7).sum(1)
    good, bad = torch.where(high[:, None], text, other), torch.where(high[:, None], other, text)
    with watch(model, optimizer) as w:
        for rows in rows_of(400, steps=120, size=24, seed=seed):
            gain = said(model, good[rows], 8) - said(model, bad[rows], 8)
            with torch.no_grad():
                before = said(reference, good[rows], 8) - said(reference, bad[rows], 8)
            loss = -F.logsigmoid(0.2 * (gain - before)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    with torch.no_grad():
        gain = said(model, good[400:], 8) - said(model, bad[400:], 8)
        before = said(reference, good[400:], 8) - said(reference, bad[400:], 8)
    return above(float((gain > before).double().mean()), 0.7)


class Prompted(nn.Module):
    """A language model that stays as it is, behind six vectors that are trained."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.prompt = model.requires_grad_(False), nn.Parameter(0.1 * torch.randn(6, 32))

    def forward(self, text: Tensor) -> Tensor:
        known = self.model.get_input_embeddings()(text)
        prompt = self.prompt.expand(len(text), -1, -1)
        return self.model(inputs_embeds=torch.cat([prompt, known], 1)).logits[:, 6:]


@healthy("another tongue of two, nothing but a prompt is trained", seeds=SEEDS)
def prompted(watch: Watch, seed: int) -> Check:
    """The model read both tongues, each behind a mark; the prompt is to bring about the second."""
    model = small_gpt2(tokens=18, length=32)
    both = [F.pad(chain(seed, 400, tongue=tongue), (1, 0), value=16 + tongue) for tongue in (0, 1)]
    text, first = torch.cat(both), Adam(model.parameters(), lr=3e-3)
    for rows in rows_of(800, steps=250, size=32, seed=seed):
        first.zero_grad()
        model(input_ids=text[rows], labels=text[rows]).loss.backward()
        first.step()
    prompt, second = Prompted(model), both[1][:, 1:]
    optimizer = Adam([prompt.prompt], lr=0.05)
    with torch.no_grad():
        before = float(tokens(prompt(second[:, :-1]), second[:, 1:]))
    losses = fit(watch, prompt, optimizer, pairs(second[:, :-1], second[:, 1:], steps=150, size=24, seed=seed), tokens)
    return above(before - last(losses), 0.1)


@healthy("a walk's values from the next ones, half a gradient", seeds=SEEDS)
def walk(watch: Watch, seed: int) -> Check:
    """The targets move with the model, and the loss keeps what chance puts in."""
    g, model = generator(seed), nn.Linear(19, 1, bias=False)
    nn.init.constant_(model.weight, 0.5)
    optimizer = SGD(model.parameters(), lr=2.0)
    with watch(model, optimizer) as w:
        for _ in range(400):
            place = torch.randint(19, (64,), generator=g)
            after = place + 2 * torch.randint(2, (64,), generator=g) - 1
            with torch.no_grad():
                value = model(F.one_hot(after.clamp(0, 18), 19).float()).squeeze(1)
            target = torch.where(after < 0, 0.0, torch.where(after > 18, 1.0, value))
            loss = F.mse_loss(model(F.one_hot(place, 19).float()).squeeze(1), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    true = torch.arange(1, 20) / 20
    return below(float((model.weight[0].detach() - true).square().mean().sqrt()), 0.12)


class Slope(nn.Module):
    """An energy of place and speed, whose slopes say how both change."""

    def __init__(self) -> None:
        super().__init__()
        self.energy = nn.Sequential(nn.Linear(2, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 1))

    def forward(self, state: Tensor) -> Tensor:
        with torch.enable_grad():
            state = state if state.requires_grad else state.clone().requires_grad_()
            place, speed = torch.autograd.grad(self.energy(state).sum(), state, create_graph=True)[0].unbind(1)
        return torch.stack([speed, -place], 1)


@healthy("a pendulum by the slopes of its energy, second derivatives", seeds=SEEDS)
def pendulum(watch: Watch, seed: int) -> Check:
    """The last bias has no effect on the loss, as it should."""
    state = 2 * torch.randn(1600, 2, generator=generator(seed))
    moved = torch.stack([state[:, 1], -state[:, 0].sin()], 1)
    data, model = split(state, moved + 0.05 * torch.randn(1600, 2, generator=generator(seed + 1))), Slope()
    fit(watch, model, Adam(model.parameters(), lr=5e-3), pairs(*data[:2], steps=300, size=50, seed=seed), F.mse_loss)
    return below(float(F.mse_loss(model(data[2]), data[3]).detach()), 0.3)
