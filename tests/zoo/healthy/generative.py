"""Models without classes: codes, images, pairs."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Adam, AdamW

from zoo.loops import accuracy, explained, fit, last, squares
from zoo.material import VOCABULARY, digits, holdout, pairs, passages
from zoo.models import GPT, VAE, autoencoder, cnn, mlp
from zoo.registry import Check, Watch, above, below, healthy


@healthy("autoencoder, digits")
def reconstructs(watch: Watch, seed: int) -> Check:
    data, model = digits(), autoencoder()
    watching = {"holdout": [(data[2][:200], data[2][:200])], "loss": F.mse_loss}
    batches = pairs(data[0], data[0], steps=250, seed=seed)
    fit(watch, model, Adam(model.parameters(), lr=3e-3), batches, squares, **watching)
    live = data[0].std(0) > 0.1
    left = (model(data[2]) - data[2]).square()[:, live].mean() / data[2][:, live].var(0).mean()
    return above(1 - float(left), 0.5)


@healthy("denoising autoencoder, convolutions")
def denoises(watch: Watch, seed: int) -> Check:
    data = digits(images=True)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 1, 1)
    )
    torch.manual_seed(seed)
    noisy = data[0] + 0.3 * torch.randn_like(data[0])
    held = data[2] + 0.3 * torch.randn_like(data[2])
    watching = {"holdout": [(held[:200], data[2][:200])], "loss": F.mse_loss}
    batches = pairs(noisy, data[0], steps=150, seed=seed)
    losses = fit(watch, model, Adam(model.parameters(), lr=3e-3), batches, squares, **watching)
    return below(last(losses), 0.04)


@healthy("variational autoencoder, summed loss", seeds=range(4))
def vae(watch: Watch, seed: int) -> Check:
    data, model = digits(), VAE()
    optimizer, losses = Adam(model.parameters(), lr=3e-3), []
    with watch(model, optimizer) as w:
        for x, _ in pairs(*data[:2], steps=300, seed=seed):
            image, mean, log_variance = model(x)
            fit_of = F.binary_cross_entropy_with_logits(image, x, reduction="sum")
            loss = fit_of - 0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
            losses.append(loss.item())
    return below(last(losses) / last(losses[:20]), 0.75)


@healthy("adversarial pair, GAN", seeds=range(4))
def gan(watch: Watch, seed: int) -> Check:
    """Points on a shifted ellipse: the mean and the spread of what is made are those of the data."""
    g = torch.Generator().manual_seed(seed)
    real = torch.randn(2000, 2, generator=g) * torch.tensor([0.5, 1.5]) + torch.tensor([2.0, -1.0])
    both = nn.ModuleDict({"D": mlp(2, 32, 32, 1), "G": mlp(4, 32, 32, 2)})
    critic, maker = both["D"], both["G"]
    optimizers = [
        Adam(critic.parameters(), lr=2e-3, betas=(0.5, 0.9)),
        Adam(maker.parameters(), lr=1e-3, betas=(0.5, 0.9)),
    ]
    with watch(both, optimizers) as w:
        for x, _ in pairs(real, real, steps=300, size=64, seed=seed):
            fake = maker(torch.randn(64, 4))
            loss_d = F.softplus(-critic(x)).mean() + F.softplus(critic(fake.detach())).mean()
            optimizers[0].zero_grad()
            loss_d.backward()
            optimizers[0].step()
            loss_g = F.softplus(-critic(fake)).mean()
            optimizers[1].zero_grad()
            loss_g.backward()
            optimizers[1].step()
            w.log(loss_D=loss_d, loss_G=loss_g)
    made = maker(torch.randn(1000, 4)).detach()
    return below(float((made.mean(0) - real.mean(0)).norm()), 1.0)


def contrast(first: Tensor, second: Tensor, temperature: float = 0.2) -> Tensor:
    scores = F.normalize(first, dim=1) @ F.normalize(second, dim=1).T / temperature
    return F.cross_entropy(scores, torch.arange(len(scores)))


def views(x: Tensor) -> tuple[Tensor, Tensor]:
    return x + 0.1 * torch.randn_like(x), x * (torch.rand_like(x) > 0.2)


@healthy("contrastive pairs, MLP")
def contrastive(watch: Watch, seed: int) -> Check:
    data, model = digits(), mlp(64, 96, 24)
    optimizer, losses = Adam(model.parameters(), lr=3e-3), []
    with watch(model, optimizer) as w:
        for x, _ in pairs(*data[:2], steps=250, size=64, seed=seed):
            first, second = views(x)
            loss = contrast(model(first), model(second))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
            losses.append(loss.item())
    return below(last(losses), 1.6)


class Bootstrapped(nn.Module):
    """A student predicts what a slowly moving teacher makes of another view (Grill et al. 2020)."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.predictor = mlp(64, 64, 16, norm=True), mlp(16, 32, 16, norm=True)
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        predicted = self.predictor(self.student(first))
        with torch.no_grad():
            aim = self.teacher(second)
        return 1 - F.cosine_similarity(predicted, aim).mean()

    @torch.no_grad()
    def follow(self) -> None:
        for slow, fast in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
            slow.lerp_(fast, 0.02)


@healthy("momentum encoder, MLP")
def bootstrapped(watch: Watch, seed: int) -> Check:
    data, model = digits(), Bootstrapped()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer, losses = Adam(trained, lr=3e-3), []
    with watch(model, optimizer) as w:
        for x, _ in pairs(*data[:2], steps=200, size=64, seed=seed):
            loss = model(*views(x))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            model.follow()
            w.log(loss=loss)
            losses.append(loss.item())
    spread = F.normalize(model.student(data[2]), dim=1).std(0).mean()
    return above(float(spread) if last(losses) < 0.5 else 0.0, 0.1)


@healthy("masked letters, transformer")
def masked(watch: Watch, seed: int) -> Check:
    """A sixth of the letters is hidden and predicted from both sides; the rest is not scored."""
    model, text = GPT(causal=False), passages(1000, 24, seed=seed)
    g = torch.Generator().manual_seed(seed)
    hidden = torch.rand(text.shape, generator=g) < 0.17
    inputs, targets = text.masked_fill(hidden, VOCABULARY - 1), text.masked_fill(~hidden, -100)
    held = passages(64, 24, held_out=True)
    over = torch.rand(held.shape, generator=g) < 0.17
    watching = {"holdout": [(held.masked_fill(over, VOCABULARY - 1), held.masked_fill(~over, -100))]}
    losses = fit(
        watch, model, AdamW(model.parameters(), lr=5e-3), pairs(inputs, targets, steps=300, size=32, seed=seed),
        lambda out, y: F.cross_entropy(out.flatten(0, 1), y.flatten()), clip=1.0, **watching,
    )  # fmt: skip
    return below(last(losses), 2.75)


@healthy("distillation, MLP from CNN")
def distilled(watch: Watch, seed: int) -> Check:
    data, teacher = digits(images=True), cnn()
    optimizer = Adam(teacher.parameters(), lr=3e-3)
    for x, y in pairs(*data[:2], steps=150, seed=seed):
        loss = F.cross_entropy(teacher(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    student = nn.Sequential(nn.Flatten(), *mlp(64, 48, 10))
    optimizer = Adam(student.parameters(), lr=3e-3)
    with watch(student, optimizer, holdout=holdout(data)) as w:
        for x, _ in pairs(*data[:2], steps=250, seed=seed):
            with torch.no_grad():
                aim = F.softmax(teacher(x) / 2, dim=1)
            loss = F.kl_div(F.log_softmax(student(x) / 2, dim=1), aim, reduction="batchmean") * 4
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    return above(accuracy(student, *data[2:]), 0.85)


class Centres(nn.Module):
    """Soft k-means in a learned space, with the reconstruction that holds the space open."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = mlp(64, 48, 8), mlp(8, 48, 64)
        self.centres = nn.Parameter(0.5 * torch.randn(10, 8))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        code = self.encoder(x)
        return self.decoder(code), (code[:, None] - self.centres[None]).square().sum(2)


@healthy("clusters in a learned space, autoencoder")
def clusters(watch: Watch, seed: int) -> Check:
    data, model = digits(), Centres()
    optimizer = Adam(model.parameters(), lr=3e-3)
    with watch(model, optimizer) as w:
        for x, _ in pairs(*data[:2], steps=250, seed=seed):
            image, distances = model(x)
            loss = F.mse_loss(image, x) + 0.002 * (F.softmin(distances, 1) * distances).sum(1).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    live = data[0].std(0) > 0.1
    whole = nn.Sequential(model.encoder, model.decoder, Columns(live))
    return above(explained(whole, data[2], data[2][:, live]), 0.3)


class Columns(nn.Module):
    def __init__(self, live: Tensor) -> None:
        super().__init__()
        self.register_buffer("live", live)

    def forward(self, x: Tensor) -> Tensor:
        return x[:, self.live]
