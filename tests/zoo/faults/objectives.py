"""The loss is not the one that was meant."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam

from zoo.loops import accuracy, classes, explained, fit, last, squares
from zoo.material import digits, holdout, pairs, table, teacher
from zoo.models import autoencoder, cnn, hf_vit, mlp
from zoo.registry import Check, Watch, below, fault, worse_than

DOUBLE = {"double_softmax"}


@fault("softmax applied twice, MLP", DOUBLE, wrong={"learning_rate_too_low", "vanishing"})
def double(watch: Watch, seed: int) -> Check:
    data, model = digits(), nn.Sequential(*mlp(64, 48, 10), nn.Softmax(1))
    batches = pairs(*data[:2], steps=200, seed=seed)
    losses = fit(watch, model, SGD(model.parameters(), lr=0.1), batches, holdout=holdout(data))
    return worse_than(last(losses), 1.3)


@fault("softmax applied twice, CNN", DOUBLE, wrong={"learning_rate_too_low", "vanishing"})
def double_cnn(watch: Watch, seed: int) -> Check:
    data, model = digits(images=True), cnn(norm=True)
    batches = pairs(*data[:2], steps=150, seed=seed)
    losses = fit(
        watch, model, Adam(model.parameters(), lr=1e-3), batches, lambda out, y: classes(out.softmax(1), y),
        holdout=holdout(data),
    )  # fmt: skip
    return worse_than(last(losses), 1.3)


@fault("softmax applied twice, ViT", DOUBLE)
def double_vit(watch: Watch, seed: int) -> Check:
    data, model = digits(images=True), hf_vit()
    batches = pairs(*data[:2], steps=100, seed=seed)
    losses = fit(
        watch, model, Adam(model.parameters(), lr=1e-3), batches, lambda out, y: classes(out.logits.softmax(1), y),
        holdout=holdout(data),
    )  # fmt: skip
    return worse_than(last(losses), 1.3)


@fault("sigmoid before binary_cross_entropy_with_logits, MLP", DOUBLE)
def double_sigmoid(watch: Watch, seed: int) -> Check:
    data, model = table("breast_cancer"), nn.Sequential(*mlp(30, 32, 1), nn.Sigmoid(), nn.Flatten(0))
    data = (data[0], data[1].float(), data[2], data[3].float())
    optimizer = Adam(model.parameters(), lr=1e-3)
    losses = fit(
        watch, model, optimizer, pairs(*data[:2], steps=200, size=32, seed=seed),
        lambda out, y: F.binary_cross_entropy_with_logits(out, y),
        holdout=holdout(data), loss=F.binary_cross_entropy_with_logits,
    )  # fmt: skip
    return worse_than(last(losses), 0.4)


@fault("nll_loss of probabilities, MLP", DOUBLE)
def nll_of_probabilities(watch: Watch, seed: int) -> Check:
    data, model = digits(), nn.Sequential(*mlp(64, 48, 10), nn.Softmax(1))
    optimizer = SGD(model.parameters(), lr=0.1)
    batches = pairs(*data[:2], steps=150, seed=seed)
    losses = fit(watch, model, optimizer, batches, lambda out, y: F.nll_loss(out, y), holdout=holdout(data))
    return below(-last(losses), 1.01)


class Router(nn.Module):
    """Three experts of one expert's capacity; the router's softmax is applied to its own softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(64, 8), nn.ModuleList(mlp(64, 6, 10) for _ in range(8))

    def forward(self, x: Tensor) -> Tensor:
        shares = self.router(x).softmax(1).softmax(1)
        best, index = shares.topk(2, dim=1)
        outputs = torch.stack([expert(x) for expert in self.experts], 1)
        taken = outputs.gather(1, index.unsqueeze(2).expand(-1, -1, 10))
        return (best.unsqueeze(2) * taken).sum(1)


@fault("softmax twice in a router, mixture of experts", DOUBLE)
def double_router(watch: Watch, seed: int) -> Check | None:
    data, model = digits(), Router()
    optimizer = Adam(model.parameters(), lr=1e-3)
    fit(watch, model, optimizer, pairs(*data[:2], steps=120, seed=seed), holdout=holdout(data))
    return None


@fault("loss maximised, MLP", {"loss_maximised"}, wrong={"holdout_differs", "nonfinite"})
def maximised(watch: Watch, seed: int) -> Check:
    data, model = digits(), mlp(64, 48, 10)
    optimizer, losses = Adam(model.parameters(), lr=1e-3), []
    with watch(model, optimizer, holdout=holdout(data)) as w:
        for x, y in pairs(*data[:2], steps=150, seed=seed):
            loss = classes(model(x), y)
            optimizer.zero_grad()
            (-loss).backward()
            optimizer.step()
            w.log(loss=loss)
            losses.append(loss.item())
    return worse_than(last(losses), 3)


@fault("loss maximised, autoencoder", {"loss_maximised"}, wrong={"learning_rate_too_high"})
def maximised_autoencoder(watch: Watch, seed: int) -> Check:
    """`maximize=True` was copied from another script."""
    data, model = digits(), autoencoder()
    optimizer = SGD(model.parameters(), lr=0.1, maximize=True)
    watching = {"holdout": [(data[2][:200], data[2][:200])], "loss": F.mse_loss}
    batches = pairs(data[0], data[0], steps=150, seed=seed)
    losses = fit(watch, model, optimizer, batches, squares, **watching)
    return worse_than(last(losses), 1)


@fault("summed loss, MLP", {"summed_loss"}, wrong={"exploding"})
def summed(watch: Watch, seed: int) -> Check:
    data, model = digits(), mlp(64, 48, 10)
    optimizer = SGD(model.parameters(), lr=0.1)
    losses = fit(
        watch, model, optimizer, pairs(*data[:2], steps=150, seed=seed),
        lambda out, y: F.cross_entropy(out, y, reduction="sum"), holdout=holdout(data),
    )  # fmt: skip
    return worse_than(last(losses) / 50, 1)


@fault("summed loss, regression", {"summed_loss"}, wrong={"exploding"})
def summed_regression(watch: Watch, seed: int) -> Check:
    data, model = teacher(seed=seed), mlp(16, 48, 1)
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = fit(
        watch, model, optimizer, pairs(*data[:2], steps=150, seed=seed),
        lambda out, y: nn.MSELoss(reduction="sum")(out, y), holdout=holdout(data), loss=F.mse_loss,
    )  # fmt: skip
    return worse_than(last(losses) / 50, 0.9)


@fault(
    "targets broadcast against outputs, regression",
    {"labels_unrelated", "majority_guess", "targets_broadcast"},
    since=None,
)
def broadcast(watch: Watch, seed: int) -> Check:
    """Outputs of shape (B, 1), targets of shape (B,): every output is held against every target."""
    data, model = teacher(seed=seed), mlp(16, 48, 1)
    optimizer = Adam(model.parameters(), lr=3e-3)
    watching = {"holdout": holdout(data), "loss": F.mse_loss}
    fit(watch, model, optimizer, pairs(data[0], data[1].squeeze(1), steps=200, seed=seed), squares, **watching)
    return below(explained(model, *data[2:]), 0.2)


@fault("targets of −1 and 1 for binary cross-entropy, MLP", {"targets_out_of_range"}, wrong={"loss_maximised"})
def signed_targets(watch: Watch, seed: int) -> Check:
    data, model = table("breast_cancer"), nn.Sequential(*mlp(30, 32, 1), nn.Flatten(0))
    data = (data[0], 2 * data[1].float() - 1, data[2], 2 * data[3].float() - 1)
    optimizer = Adam(model.parameters(), lr=3e-3)
    losses = fit(
        watch, model, optimizer, pairs(*data[:2], steps=150, size=32, seed=seed),
        lambda out, y: F.binary_cross_entropy_with_logits(out, y),
        holdout=holdout(data), loss=F.binary_cross_entropy_with_logits,
    )  # fmt: skip
    return below(last(losses), -1)


@fault("masks of 0 and 255, segmentation", {"targets_out_of_range"})
def wide_masks(watch: Watch, seed: int) -> Check:
    data = digits(images=True)
    masks, held = (data[0] > 0.5).float() * 255, (data[2] > 0.5).float() * 255
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 3, padding=1))
    losses = fit(
        watch, model, Adam(model.parameters(), lr=1e-3), pairs(data[0], masks, steps=120, seed=seed),
        lambda out, y: F.binary_cross_entropy_with_logits(out, y),
        holdout=[(data[2][:100], held[:100])], loss=F.binary_cross_entropy_with_logits,
    )  # fmt: skip
    return below(last(losses), -1)


@fault("sigmoid at the end, raw targets", {"targets_out_of_range"})
def out_of_reach(watch: Watch, seed: int) -> Check:
    """Targets from 25 to 346, outputs from 0 to 1."""
    data = table("diabetes", scaled=False)
    scale = data[0].mean(0), data[0].std(0)
    data = ((data[0] - scale[0]) / scale[1], data[1], (data[2] - scale[0]) / scale[1], data[3])
    model = nn.Sequential(*mlp(10, 32, 1), nn.Sigmoid())
    optimizer = Adam(model.parameters(), lr=3e-3)
    watching = {"holdout": holdout(data), "loss": F.mse_loss}
    fit(watch, model, optimizer, pairs(*data[:2], steps=200, size=32, seed=seed), squares, **watching)
    return below(explained(model, *data[2:]), 0)


@fault("ignore_index is a class, MLP", {"ignored_class"})
def ignored(watch: Watch, seed: int) -> Check:
    data, model = digits(), mlp(64, 48, 10)
    fit(
        watch, model, Adam(model.parameters(), lr=3e-3), pairs(*data[:2], steps=200, seed=seed),
        lambda out, y: F.cross_entropy(out, y, ignore_index=0), holdout=holdout(data),
    )  # fmt: skip
    zeros = data[3] == 0
    return below(accuracy(model, data[2][zeros], data[3][zeros]), 0.2)
