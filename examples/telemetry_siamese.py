"""Training accuracy rises, validation accuracy stays at 50 %: four runs, and what telemetry says about each.

    python examples/telemetry_siamese.py            # half a minute on one core, nothing is downloaded
    python examples/telemetry_siamese.py --variants healthy leak

Of two handwritten digits the one wins that is ahead on a clock face of ten: 3 beats 2, 1, 0 and 9, and loses to 4, 5, 6
and 7. Neither digit alone says anything about the winner. One backbone, trained on single digits before, looks at both;
a new head compares them, and learns at 10 times the backbone's learning rate.

The same training runs four times: as it is meant, with a backbone that is frozen and was never trained, with training
images that are brighter where they win, and with parameters in each other's group of the optimizer. By their curves
the three failures look alike. By their findings they do not.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
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
    "frozen": "the backbone was never trained, and is frozen",
    "leak": "in the training data the winner's image is brighter",
    "swapped": "each group of the optimizer holds the other's parameters: backbone 10×, head 1×",
}
LEARNING_RATE = 1.5e-3
EPOCHS, BATCH, TRAINING_PAIRS, VALIDATION_PAIRS = 40, 20, 200, 400
Batch = dict[str, Tensor]


class Siamese(nn.Module):
    def __init__(self, width: int = 128, features: int = 32) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Linear(64, width), nn.LayerNorm(width), nn.ReLU(),
            nn.Linear(width, width), nn.LayerNorm(width), nn.ReLU(),
            nn.Linear(width, features), nn.LayerNorm(features),
        )  # fmt: skip
        self.head = nn.Sequential(nn.Linear(2 * features, width), nn.ReLU(), nn.Linear(width, 2))

    def forward(self, img1: Tensor, img2: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.cat([self.backbone(img1), self.backbone(img2)], dim=1))
        return logits


class Digits:
    """Images of digits for training and others for validation; whatever is drawn comes from one generator."""

    def __init__(self, seed: int) -> None:
        images, digits = (torch.tensor(part) for part in load_digits(return_X_y=True))
        self.images, self.digits = images.float() / 16, digits
        self.generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(digits), generator=self.generator)
        self.training, self.validation = order[:1000], order[1000:]

    def draw(self, among: Tensor, n: int) -> Tensor:
        return among[torch.randint(len(among), (n,), generator=self.generator)]

    def pairs(self, among: Tensor, n: int, *, leak: bool = False) -> Batch:
        """As many that the first wins (`winner` 0: it is one to four ahead) as that the second does."""
        first, second = self.draw(among, 4 * n), self.draw(among, 4 * n)
        ahead = (self.digits[first] - self.digits[second]) % 10
        kept = torch.cat([((ahead > low) & (ahead < low + 5)).nonzero()[: n // 2, 0] for low in (0, 5)])
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
        for layer in (1, 4):
            nn.init.constant_(model.backbone.get_parameter(f"{layer}.bias"), -1.75)  # a bad start: few units answer
        model.backbone.requires_grad_(False)
    else:
        pretrain(model.backbone, digits)
    held = {"backbone": model.backbone, "head": model.head}
    if variant == "swapped":
        held = {"backbone": model.head, "head": model.backbone}
    rates = {"backbone": LEARNING_RATE, "head": 10 * LEARNING_RATE}
    groups = [{"name": name, "params": list(part.parameters()), "lr": rates[name]} for name, part in held.items()]
    return model, torch.optim.Adam(groups)


def train_epoch(
    model: Siamese, optimizer: torch.optim.Optimizer, loader: Iterator[Batch], telemetry: TrainingTelemetry, epoch: int
) -> float:
    """Accuracy on the batches, each before its step."""
    right = seen = 0
    for batch_idx, batch in enumerate(loader, 1):
        outputs = model(batch["img1"], batch["img2"])
        loss = nn.functional.cross_entropy(outputs, batch["winner"])
        hits = int((outputs.argmax(1) == batch["winner"]).sum())
        right, seen = right + hits, seen + len(outputs)

        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        telemetry.on_batch_end(
            model, optimizer, batch_idx, epoch, "cpu", batch, loss=loss, train_accuracy=hits / len(outputs)
        )
    return right / seen


@dataclass
class Result:
    telemetry: TrainingTelemetry
    training: float
    validation: float


def train(variant: str, seed: int, folder: Path, epochs: int = EPOCHS) -> Result:
    """One run; the accuracies are those of its last epoch."""
    torch.manual_seed(seed)
    digits = Digits(seed)
    model, optimizer = build(variant, digits)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.94)
    training = digits.pairs(digits.training, TRAINING_PAIRS, leak=variant == "leak")
    validation = digits.pairs(digits.validation, VALIDATION_PAIRS)
    config = TelemetryConfig(collect_every_n=3, output_dir=folder, holdout_size=VALIDATION_PAIRS)
    accuracy = 0.0
    with TrainingTelemetry(config) as telemetry:
        telemetry.set_holdout_data([validation])
        for epoch in range(epochs):
            accuracy = train_epoch(model, optimizer, digits.epoch(training), telemetry, epoch)
            scheduler.step()
    with torch.no_grad():
        predicted = model(validation["img1"], validation["img2"]).argmax(1)
    return Result(telemetry, accuracy, (predicted == validation["winner"]).double().mean().item())


def show(results: dict[str, Result], epochs: int, console: Console) -> None:
    table = Table(title=f"Accuracy after {epochs} epochs; guessing gets 50 %")
    for column, side in (("run", "left"), ("", "left"), ("training", "right"), ("validation", "right")):
        table.add_column(column, justify="right" if side == "right" else "left")
    for variant, result in results.items():
        table.add_row(variant, VARIANTS[variant], f"{result.training:.1%}", f"{result.validation:.1%}")
    console.print(table)
    for variant, result in results.items():
        console.rule(variant)
        for finding in result.telemetry.run.findings():
            console.print(f"[bold]{finding.severity}, {finding.kind}:[/] {finding.title}", highlight=False)
            console.print(f"{finding.detail}\n[italic]{finding.advice}[/]\n", highlight=False)


def main() -> None:
    parser = argparse.ArgumentParser(description="Four trainings of one model, three of which do not generalise.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS), help="which of the four")
    parser.add_argument("--out", type=Path, default=Path("outputs/telemetry_siamese"))
    options = parser.parse_args()

    torch.set_num_threads(1)  # for a model this small, more threads only wait for each other
    console = Console()
    results = {
        variant: train(variant, options.seed, options.out / variant, options.epochs) for variant in options.variants
    }
    show(results, options.epochs, console)
    for result in results.values():
        result.telemetry.plot()
    comparison = ls.compare([result.telemetry.run for result in results.values()], names=options.variants)
    report = comparison.save(options.out / "comparison")
    console.print(f"The plots are in {options.out}/<run>/plots, and the runs side by side in {report}.")


if __name__ == "__main__":
    main()
