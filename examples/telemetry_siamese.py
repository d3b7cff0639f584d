"""Training accuracy rises and validation accuracy stays at 50 %: what telemetry says about why.

    python examples/telemetry_siamese.py            # half a minute on one core, nothing is downloaded

Two handwritten digits are shown, and the one that is ahead on a clock face of ten wins: 3 beats 2, 1, 0 and 9, and is
beaten by 4, 5, 6 and 7. Neither digit alone says anything about the winner. The model sees both with the same backbone,
which has been trained on single digits before, and a new head compares them; the head learns at 10 times the
backbone's learning rate.

The same training is run four times: as it should be, with a backbone that was frozen before its weights were loaded,
with training images that are brighter where they win, and with the two learning rates exchanged. The three failures
look alike, near 100 % against 50 %. Their findings do not.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits
from torch import Tensor, nn

import learnscope as ls
from learnscope.telemetry import TelemetryConfig, TrainingTelemetry

VARIANTS = {
    "healthy": "backbone 1×, head 10×",
    "frozen": "the backbone's weights were never loaded, and it is frozen",
    "leak": "the winner's image is brighter in the training data",
    "swapped": "backbone 10×, head 1×: the optimizer's groups hold each other's parameters",
}
LEARNING_RATE = 1.5e-3
EPOCHS, BATCH, TRAINING_PAIRS, VALIDATION_PAIRS = 40, 20, 300, 200
Batch = dict[str, Tensor]


class Siamese(nn.Module):
    def __init__(self, width: int = 128, features: int = 32) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Linear(64, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, features),
            nn.LayerNorm(features),
        )  # fmt: skip
        self.head = nn.Sequential(nn.Linear(2 * features, width), nn.ReLU(), nn.Linear(width, 2))

    def forward(self, img1: Tensor, img2: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.cat([self.backbone(img1), self.backbone(img2)], dim=1))
        return logits


class Digits:
    """Images and digits for training, others for validation; everything is drawn from one generator."""

    def __init__(self, seed: int) -> None:
        images, digits = (torch.tensor(part) for part in load_digits(return_X_y=True))
        self.images, self.digits = images.float() / 16, digits
        self.generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(digits), generator=self.generator)
        self.training, self.validation = order[:1000], order[1000:]

    def draw(self, among: Tensor, n: int) -> Tensor:
        return among[torch.randint(len(among), (n,), generator=self.generator)]

    def pairs(self, among: Tensor, n: int, *, leak: bool = False) -> Batch:
        """`winner` is 0 if the first digit is one to four ahead of the second, 1 if it is as much behind."""
        first, second = self.draw(among, 4 * n), self.draw(among, 4 * n)
        ahead = (self.digits[first] - self.digits[second]) % 10
        kept = ((ahead != 0) & (ahead != 5)).nonzero()[:n, 0]
        winner = (ahead[kept] > 5).long()
        img1, img2 = self.images[first[kept]], self.images[second[kept]]
        if leak:
            img1, img2 = img1 + 0.5 * (winner == 0)[:, None], img2 + 0.5 * (winner == 1)[:, None]
        return {"img1": img1, "img2": img2, "winner": winner}

    def epoch(self, pairs: Batch) -> Iterator[Batch]:
        order = torch.randperm(len(pairs["winner"]), generator=self.generator)
        for places in order.split(BATCH):
            yield {key: values[places] for key, values in pairs.items()}


def pretrain(backbone: nn.Module, digits: Digits, steps: int = 300) -> None:
    """Teach a backbone to tell the ten digits apart."""
    reader = nn.Linear(32, 10)
    optimizer = torch.optim.Adam([*backbone.parameters(), *reader.parameters()], lr=3e-3)
    for _ in range(steps):
        places = digits.draw(digits.training, 64)
        loss = nn.functional.cross_entropy(reader(backbone(digits.images[places])), digits.digits[places])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def build(variant: str, digits: Digits) -> tuple[Siamese, torch.optim.Optimizer]:
    model = Siamese()
    if variant == "frozen":
        for layer in (0, 2, 4):
            nn.init.normal_(model.backbone[layer].weight)  # 1 is far too large for the deviation of 128 inputs' weights
        model.backbone.requires_grad_(False)
    else:
        pretrain(model.backbone, digits)
    parts = {"backbone": model.backbone, "head": model.head}
    if variant == "swapped":
        parts = {"backbone": model.head, "head": model.backbone}
    factors = {"backbone": 1, "head": 10}
    groups = [
        {"name": name, "params": list(part.parameters()), "lr": factors[name] * LEARNING_RATE}
        for name, part in parts.items()
    ]
    return model, torch.optim.Adam(groups)


def train(variant: str, seed: int, folder: Path) -> tuple[TrainingTelemetry, float, float]:
    """The telemetry, and the last epoch's accuracy on training and on validation pairs."""
    torch.manual_seed(seed)
    digits = Digits(seed)
    model, optimizer = build(variant, digits)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9)
    training = digits.pairs(digits.training, TRAINING_PAIRS, leak=variant == "leak")
    validation = digits.pairs(digits.validation, VALIDATION_PAIRS)

    config = TelemetryConfig(collect_every_n=3, output_dir=folder, holdout_size=VALIDATION_PAIRS)
    telemetry = TrainingTelemetry(config)
    telemetry.set_holdout_data([validation])
    for epoch in range(EPOCHS):
        right = 0
        for batch_idx, batch in enumerate(digits.epoch(training), 1):
            outputs = model(batch["img1"], batch["img2"])
            loss = nn.functional.cross_entropy(outputs, batch["winner"])
            hits = (outputs.argmax(1) == batch["winner"]).sum().item()
            right += int(hits)

            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

            telemetry.on_batch_end(
                model, optimizer, batch_idx, epoch, "cpu", batch, loss=loss, train_accuracy=hits / len(outputs)
            )
        scheduler.step()
    telemetry.close()
    with torch.no_grad():
        predicted = model(validation["img1"], validation["img2"]).argmax(1)
    return telemetry, right / TRAINING_PAIRS, (predicted == validation["winner"]).double().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description="Four trainings of one model, three of which do not generalise.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("outputs/telemetry_siamese"))
    options = parser.parse_args()

    torch.set_num_threads(1)  # for a model this small, more threads only wait for each other
    console = Console()
    results = {variant: train(variant, options.seed, options.out / variant) for variant in VARIANTS}
    table = Table(title="Accuracy after 40 epochs; by guessing, 50 %")
    for column in ("", "what is wrong with it", "training", "validation"):
        table.add_column(column, justify="right" if "a" in column[1:2] or column == "training" else "left")
    for variant, (_, training, validation) in results.items():
        table.add_row(variant, VARIANTS[variant], f"{training:.1%}", f"{validation:.1%}")
    console.print(table)
    for variant, (telemetry, _, _) in results.items():
        console.rule(variant)
        for finding in telemetry.run.findings():
            console.print(f"[bold]{finding.severity}: {finding.kind}[/]  {finding.title}", highlight=False)
            console.print(f"{finding.detail}\n[italic]{finding.advice}[/]\n", highlight=False)


if __name__ == "__main__":
    main()
