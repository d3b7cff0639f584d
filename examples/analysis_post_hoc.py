"""After the training: what saved checkpoints tell about memorizing, features, and the examples behind a transition.

    python examples/analysis_post_hoc.py                # half a minute on one core, nothing is downloaded

A small convolutional network learns handwritten digits; a checkpoint is kept every few epochs, as any training keeps
them. From these alone: how the gap between training and test accuracy went, how the features of two layers came to tell
the digits apart, and which examples made the steepest step. `ls.replay` gives the same numbers as a run, with findings.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import learnscope as ls
from learnscope.dynamics import FeatureEvolutionTracker, MemorizationDetector, PhaseTransitionAttributor

EPOCHS = (0, 1, 2, 3, 4, 6, 8, 10, 14, 18, 22, 26, 30)
BATCH = 64


class DigitNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer1 = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2))
        self.layer2 = nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2))
        self.layer3 = nn.Sequential(nn.Flatten(), nn.Linear(128, 64), nn.ReLU(), nn.Dropout(0.2))
        self.layer4 = nn.Sequential(nn.Linear(64, 32), nn.ReLU())
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.layer4(self.layer3(self.layer2(self.layer1(x)))))
        return logits


def digits(seed: int) -> tuple[TensorDataset, TensorDataset]:
    """Few training images, so that there is something to memorize."""
    bunch = load_digits()
    images, labels = torch.tensor(bunch.images, dtype=torch.float32)[:, None] / 16, torch.tensor(bunch.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    train, test = order[:500], order[500:1300]
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


def train(folder: Path, loader: DataLoader[tuple[Tensor, Tensor]], epochs: Sequence[int]) -> dict[int, Path]:
    """A training that knows nothing of what comes after it."""
    folder.mkdir(parents=True, exist_ok=True)
    model = DigitNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    kept = {}
    for epoch in track(range(epochs[-1] + 1), "training"):
        if epoch in epochs:
            kept[epoch] = folder / f"model_epoch_{epoch}.pth"
            torch.save(model.state_dict(), kept[epoch])
        for images, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
    return kept


def loaded(path: Path) -> DigitNet:
    model = DigitNet()
    model.load_state_dict(torch.load(path, weights_only=True))
    return model.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("analysis_post_hoc"), help="where checkpoints and figures go")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, nargs="+", default=EPOCHS, help="those whose checkpoints are kept")
    options = parser.parse_args()
    torch.set_num_threads(1)  # a model this small is faster so
    torch.manual_seed(options.seed)
    train_data, test_data = digits(options.seed)
    train_loader = DataLoader(train_data, batch_size=BATCH, shuffle=True)
    test_loader = DataLoader(test_data, batch_size=BATCH)
    files = train(options.out / "checkpoints", train_loader, options.epochs)
    checkpoints = {epoch: loaded(path) for epoch, path in files.items()}
    console, figures = Console(), options.out / "figures"

    memorization = MemorizationDetector(num_classes=10)
    for epoch, model in checkpoints.items():
        memorization.compute_memorization_scores(model, train_loader, test_loader, epoch)
    evolution = memorization.analyze_memorization_evolution()

    tracker = FeatureEvolutionTracker(model=DigitNet(), layer_names=["layer3", "layer4"])
    for epoch, model in track(checkpoints.items(), "features"):
        tracker.model.load_state_dict(model.state_dict())
        tracker.track_epoch(train_loader, epoch, sample_limit=500)
    course = tracker.analyze_evolution()
    table = Table("epoch", "training", "test", *(f"{layer}: silhouette" for layer in ("layer3", "layer4")))
    for place, epoch in enumerate(evolution["epochs"]):
        accuracies = (f"{evolution[f'{split}_accuracy'][place]:.3f}" for split in ("train", "test"))
        silhouettes = (
            f"{course[layer]['metrics']['silhouette']['values'][place]:.3f}" for layer in ("layer3", "layer4")
        )
        table.add_row(str(epoch), *accuracies, *silhouettes)
    console.print(table)
    for layer in ("layer3", "layer4"):
        transitions = tracker.detect_phase_transitions(layer, metric="silhouette_score")
        console.print(f"The silhouette of {layer} changes its level at epochs {transitions or '(none)'}")

    before, after = steepest(evolution["epochs"], evolution["test_accuracy"])
    attributor = PhaseTransitionAttributor(
        model_checkpoints={before: checkpoints[before], after: checkpoints[after]}, train_data=train_data,
        test_data=test_data,
    )  # fmt: skip
    attributions = attributor.compute_transition_attributions(before, after)
    critical = attributor.find_critical_examples(attributions, top_k=50)
    told = attributor.analyze_critical_examples(critical)
    console.print(
        f"Between epochs {before} and {after} test accuracy made its steepest step. Of the {len(critical)} examples "
        f"that drove it most, by digit: {told['label_distribution']}"
    )
    run = ls.replay(
        files, model=DigitNet(), run=options.out / "run", train=train_data, test=test_data, holdout=train_data,
        probes=[ls.Memorization(), ls.FeatureEvolution(layers=["layer3", "layer4"], samples=200), ls.ExampleLedger(),
                ls.ParameterChange()],
    )  # fmt: skip
    for finding in run.findings():
        console.print(f"[bold]{finding.title}[/]")
    paths = [
        *memorization.plot_memorization(save_dir=figures), *tracker.visualize_evolution("layer4", save_dir=figures),
        *tracker.plot_metrics_evolution("layer4", save_dir=figures),
        *attributor.plot_attributions(figures, attributions),
    ]  # fmt: skip
    console.print(f"{len(paths)} figures in {figures}; the run's report: {run.report()}")


def steepest(epochs: list[int], values: list[float]) -> tuple[int, int]:
    """Two neighbouring checkpoints between which most happened."""
    rises = [later - earlier for earlier, later in itertools.pairwise(values)]
    place = rises.index(max(rises))
    return epochs[place], epochs[place + 1]


if __name__ == "__main__":
    main()
