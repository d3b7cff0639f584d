"""Faults of the third blind set: what is asked of the model."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adagrad, Adam, AdamW, RMSprop

from zoo.loops import accuracy, fit, last
from zoo.material import digits, pairs, table
from zoo.models import mlp
from zoo.registry import Check, Watch, above, below, fault, worse_than
from zoo.unseen.third_material import chain, frames, generator, kept, split, visits


@fault("pairs marked 0 and 1 for a loss of −1 and 1, siamese network", {"embedding_collapse", "targets_out_of_range"},
       since=None)  # fmt: skip
def unmarked_pairs(watch: Watch, seed: int) -> Check:
    """`cosine_embedding_loss` counts 0 as neither: nothing pushes different digits apart."""
    data, model = digits(), mlp(64, 64, 16)
    optimizer = Adam(model.parameters(), lr=2e-3)
    with watch(model, optimizer) as w:
        for x, y in pairs(*data[:2], steps=250, size=80, seed=seed):
            a, b = model(x).chunk(2)
            same = (y[:40] == y[40:]).float()
            loss = F.cosine_embedding_loss(a, b, same, margin=0.2)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    with torch.no_grad():
        z = F.normalize(model(data[2][:200]), dim=1)
    return above(float((z @ z.T)[data[3][:200, None] != data[3][:200]].mean()), 0.8)


@fault("forty labels of which each is rare, MLP", {"majority_guess"}, since=None)
def rare_labels(watch: Watch, seed: int) -> Check:
    """Each label is on in one example of fifty: saying no to all is nearly right, and is all that is learned."""
    g = generator(seed)
    x = torch.randn(1600, 24, generator=g)
    score = x @ torch.randn(24, 40, generator=g) / 5 + 0.4 * torch.randn(1600, 40, generator=g)
    data, model = split(x, (score > score.quantile(0.98, dim=0)).float()), mlp(24, 64, 40)
    optimizer = SGD(model.parameters(), lr=0.2, momentum=0.9)
    with watch(model, optimizer, holdout=kept(data), loss=F.binary_cross_entropy_with_logits) as w:
        for a, b in pairs(*data[:2], steps=250, size=50, seed=seed):
            loss = F.binary_cross_entropy_with_logits(model(a), b)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    with torch.no_grad():
        return below(float(((model(data[2]) > 0) * data[3]).sum() / data[3].sum()), 0.1)


@fault("values in a column against targets in a row, corridor", {"targets_broadcast"})
def broadcast_values(watch: Watch, seed: int) -> Check:
    """gather(1, …) keeps its axis and the target has none: every value is drawn to the mean of the batch."""
    g = generator(seed)
    place, move = torch.randint(12, (3000,), generator=g), torch.randint(2, (3000,), generator=g)
    then = (place + 2 * move - 1).clamp(0, 11)
    ended = (then == 11).float()
    model = mlp(12, 48, 2)
    lagging = mlp(12, 48, 2)
    lagging.load_state_dict(model.state_dict())
    optimizer = RMSprop(model.parameters(), lr=2e-3)
    with watch(model, optimizer) as w:
        for step, (rows, _) in enumerate(pairs(torch.arange(3000), place, steps=400, size=64, seed=seed)):
            with torch.no_grad():
                best = lagging(F.one_hot(then[rows], 12).float()).amax(1)
                target = ended[rows] + 0.9 * (1 - ended[rows]) * best
            q = model(F.one_hot(place[rows], 12).float()).gather(1, move[rows, None])
            loss = F.smooth_l1_loss(q, target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
            if step % 20 == 0:
                lagging.load_state_dict(model.state_dict())
    with torch.no_grad():
        values = model(torch.eye(12)[4:11]).amax(1)
    return above(float((values - 0.9 ** torch.arange(6, -1, -1)).abs().mean()), 0.15)


class Sparse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(64, 96), nn.Linear(96, 64)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        code = F.relu(self.encoder(x))
        return self.decoder(code), code


@fault("a penalty on the code that leaves none, sparse autoencoder", {"dead_units", "zero_gradients"}, since=None,
       where="encoder")  # fmt: skip
def no_code(watch: Watch, seed: int) -> Check:
    """The error is averaged over pixels and the penalty is summed over units: a code of zeros is cheapest."""
    data, model = digits(), Sparse()
    optimizer = Adam(model.parameters(), lr=3e-3)
    with watch(model, optimizer) as w:
        for x, _ in pairs(*data[:2], steps=250, size=64, seed=seed):
            out, code = model(x)
            loss = F.mse_loss(out, x) + 0.1 * code.abs().sum(1).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    with torch.no_grad():
        return above(float((model(data[2])[0] - data[2]).square().mean() / data[2].var(0).mean()), 0.9)


@fault("the angle by its cosine, directions", {"exploding", "nonfinite"}, since=None)
def by_cosine(watch: Watch, seed: int) -> Check:
    """acos has no slope at 1, where a good answer is."""
    g = generator(seed)
    x = F.normalize(torch.randn(1500, 3, generator=g), dim=1)
    turn = torch.linalg.qr(torch.randn(3, 3, generator=g))[0]
    data, model = split(x, x @ turn), nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 3))
    optimizer, taken = Adam(model.parameters(), lr=5e-3), []
    with watch(model, optimizer) as w:
        for a, b in pairs(*data[:2], steps=400, size=50, seed=seed):
            loss = torch.acos((F.normalize(model(a), dim=1) * b).sum(1)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
            taken.append(float(loss))
    return worse_than(taken[-1], 1.0)


class Detector(nn.Module):
    """For each of 16 cells of a picture: is something there, and its box."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, stride=3), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1), nn.ReLU(),
        )  # fmt: skip
        self.seen, self.box = nn.Conv2d(width, 1, 1), nn.Conv2d(width, 4, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.body(x)
        return self.seen(h).flatten(1), self.box(h).flatten(2).transpose(1, 2)


ANCHORS = torch.cat([torch.cartesian_prod(torch.arange(4), torch.arange(4)) * 3 + 1.5, torch.full((16, 2), 2.5)], 1)


def overlap(boxes: Tensor) -> Tensor:
    """Of each box with each anchor: what both cover over what either does."""
    low = torch.maximum((boxes[:, None, :2] - boxes[:, None, 2:] / 2), ANCHORS[:, :2] - ANCHORS[:, 2:] / 2)
    high = torch.minimum((boxes[:, None, :2] + boxes[:, None, 2:] / 2), ANCHORS[:, :2] + ANCHORS[:, 2:] / 2)
    both = (high - low).clamp(min=0).prod(2)
    return both / (boxes[:, None, 2:].prod(2) + ANCHORS[:, 2:].prod(1) - both)


@fault("no anchor is near enough, detection", {"class_never_seen", "frozen", "no_gradient", "not_moving",
       "zero_gradients"}, where="box")  # fmt: skip
def no_anchor(watch: Watch, seed: int) -> Check:
    """Anchors are smaller than what is in the pictures, and count from an overlap of 0.8: none ever does."""
    picture, box, _, _ = frames(seed)
    data, model = split(picture, box), Detector()
    optimizer = AdamW(model.parameters(), lr=3e-3)
    with watch(model, optimizer) as w:
        for x, y in pairs(*data[:2], steps=220, size=24, seed=seed):
            seen, said = model(x)
            hit = (overlap(y) > 0.8).float()
            offset = (y[:, None] - ANCHORS) / 4
            there = F.binary_cross_entropy_with_logits(seen, hit)
            where = (hit[..., None] * F.smooth_l1_loss(said, offset, reduction="none")).sum() / hit.sum().clamp(min=1)
            loss = there + where
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss, there=there, where=where)
    with torch.no_grad():
        seen, said = model(data[2])
    best = seen.argmax(1)
    found = ANCHORS[best] + 4 * said[torch.arange(len(best)), best]
    return above(float((found[:, :2] - data[3][:, :2]).norm(dim=1).mean()), 2.0)


@fault("hinge of labels 0 and 1, breast cancer", {"majority_guess", "targets_out_of_range", "zero_gradients"},
       since=None)  # fmt: skip
def hinge(watch: Watch, seed: int) -> Check:
    """A label of 0 costs 1 whatever is said, so all are said to be 1."""
    data, model = table("breast_cancer"), nn.Sequential(mlp(30, 32, 1), nn.Flatten(0))
    optimizer = Adagrad(model.parameters(), lr=0.02)
    with watch(model, optimizer) as w:
        for x, y in pairs(*data[:2], steps=250, size=40, seed=seed):
            loss = (1 - y * model(x)).clamp(min=0).mean()
            w.log(loss=loss)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        return below(float(((model(data[2]) > 0) == data[3]).double().mean()), 0.75)


@fault(
    "soft targets at a temperature of 100, distillation",
    {"learning_rate_too_low", "temperature_too_high", "vanishing"},
    since=None,
)
def lukewarm(watch: Watch, seed: int) -> Check:
    """Both sides are nearly even, and the loss is not multiplied by the temperature's square."""
    data, teacher, model = visits(seed), mlp(12, 64, 3), mlp(12, 24, 3)
    first = Adam(teacher.parameters(), lr=5e-3)
    for x, y in pairs(*data[:2], steps=150, size=60, seed=seed):
        first.zero_grad()
        F.cross_entropy(teacher(x), y).backward()
        first.step()

    def objective(out: Tensor, soft: Tensor) -> Tensor:
        return F.kl_div(F.log_softmax(out / 100, 1), F.softmax(soft / 100, 1), reduction="batchmean")

    with torch.no_grad():
        soft = teacher(data[0])
    fit(watch, model, SGD(model.parameters(), lr=0.1, momentum=0.9), pairs(data[0], soft, steps=250, size=40,
        seed=seed), objective)  # fmt: skip
    return below(accuracy(model, *data[2:]), 0.75)


class TextVAE(nn.Module):
    def __init__(self, width: int = 32, code: int = 8) -> None:
        super().__init__()
        self.embedding, self.encoder = nn.Embedding(16, width), nn.GRU(width, width, batch_first=True)
        self.code, self.start = nn.Linear(width, 2 * code), nn.Linear(code, width)
        self.decoder, self.head = nn.GRU(width, width, batch_first=True), nn.Linear(width, 16)

    def forward(self, text: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, spread = self.code(self.encoder(self.embedding(text))[1][0]).chunk(2, 1)
        z = mean + torch.randn_like(mean) * (spread / 2).exp()
        return self.head(self.decoder(self.embedding(text[:, :-1]), self.start(z).tanh()[None])[0]), mean, spread


@fault("a decoder that needs no code, text autoencoder", {"posterior_collapse"}, since=None)
def needs_no_code(watch: Watch, seed: int) -> Check:
    """The decoder is given every letter but the next, and the divergence counts in full from the first step."""
    text, model = torch.cat([chain(seed, 150, 16, tongue=tongue) for tongue in range(4)]), TextVAE()
    optimizer, taken = Adam(model.parameters(), lr=3e-3), []
    with watch(model, optimizer) as w:
        for x, _ in pairs(text, text, steps=250, size=40, seed=seed):
            out, mean, spread = model(x)
            error = F.cross_entropy(out.flatten(0, 1), x[:, 1:].flatten(), reduction="sum") / len(x)
            divergence = -0.5 * (1 + spread - mean.square() - spread.exp()).sum(1).mean()
            loss = error + divergence
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss, error=error, divergence=divergence)
            taken.append(float(divergence))
    return below(last(taken), 0.3)
