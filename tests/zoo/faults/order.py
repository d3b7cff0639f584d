"""Data in the wrong order, and settings that hide what is learned."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam

from zoo.loops import accuracy, fit, last
from zoo.material import digits, holdout, pairs, table
from zoo.models import cnn, mlp
from zoo.registry import Check, Watch, below, fault, worse_than


@fault("data sorted by class, CNN", {"sorted_data"})
def in_order(watch: Watch, seed: int) -> Check:
    data, model = digits(images=True), cnn()
    order = data[1].argsort(stable=True)
    x, y = data[0][order], data[1][order]
    batches = [(x[at : at + 20], y[at : at + 20]) for _ in range(3) for at in range(seed, len(x) - 20, 20)]
    fit(watch, model, Adam(model.parameters(), lr=3e-3), batches, holdout=holdout(data))
    return below(accuracy(model, *data[2:]), 0.6)


@fault("cosines without a temperature, MLP", {"temperature_too_high"})
def without_temperature(watch: Watch, seed: int) -> Check:
    """Classes are directions, and the cosine to each is the logit: at most 1."""
    data, model = digits(), mlp(64, 64, 16)
    ways = F.normalize(torch.randn(10, 16, generator=torch.Generator().manual_seed(seed)), dim=1)
    losses = fit(
        watch, model, SGD(model.parameters(), lr=0.5), pairs(*data[:2], steps=250, seed=seed),
        lambda code, y: F.cross_entropy(F.normalize(code, dim=1) @ ways.T / 10, y),
    )  # fmt: skip
    return worse_than(last(losses), 2.2)


class Coded(nn.Module):
    """A variational autoencoder of 8 × 8 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = cnn(classes=12), mlp(6, 48, 64)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.encoder(x).split(6, 1)
        return self.decoder(mean + torch.randn_like(mean) * (log_variance / 2).exp()).view(x.shape), mean, log_variance


@fault("divergence summed and error averaged, VAE", {"posterior_collapse", "embedding_collapse"}, since=None)
def empty_code(watch: Watch, seed: int) -> Check:
    data, model = digits(images=True), Coded()
    optimizer = Adam(model.parameters(), lr=3e-3)
    with watch(model, optimizer) as w:
        for x, _ in pairs(*data[:2], steps=200, seed=seed):
            out, mean, log_variance = model(x)
            loss = F.mse_loss(out, x) + (mean.square() + log_variance.exp() - 1 - log_variance).sum() / 2
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    with torch.no_grad():
        out = model(data[2])[0]
    return below(float(out.std(0).mean() / data[2].std(0).mean()), 0.3)


@fault("dropout of 0.95, MLP", {"dropout_too_strong"}, since=None)
def dropped(watch: Watch, seed: int) -> Check:
    """The share that is kept was meant."""
    data, model = table("wine"), mlp(13, 32, 32, 3, dropout=0.95)
    losses = fit(
        watch, model, Adam(model.parameters(), lr=1e-3), pairs(*data[:2], steps=250, size=32, seed=seed),
        holdout=holdout(data),
    )  # fmt: skip
    return worse_than(last(losses), 0.7)
