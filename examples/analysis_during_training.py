"""Three analyzers in your own training loop: which labels are wrong, where gradients go, when memorizing begins.

    python examples/analysis_during_training.py         # 20 seconds on one core, nothing is downloaded

A network learns handwritten digits, of which a tenth has a wrong label. `LearningDynamicsAnalyzer` tracks every example
with the logits that the loop computes anyway, `GradientFlowAnalyzer` reads the gradients before every tenth step, and
`MemorizationDetector` runs over training and test data every fifth epoch. None of them changes the training by a bit.
At the end there are figures, and the wrong labels are at the top of the list.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import learnscope as ls
from learnscope.dynamics import GradientFlowAnalyzer, LearningDynamicsAnalyzer, MemorizationDetector

EPOCHS, BATCH, WRONG = 40, 64, 0.1
SCORES = {"el2n_mean": "EL2N", "aum": "margin (AUM)", "confidence": "confidence", "cumulative_loss": "loss"}
"""Scores of the ledger that can rank examples by how wrong their label looks."""


def digits(generator: torch.Generator) -> tuple[TensorDataset, TensorDataset, Tensor]:
    """Training data with some wrong labels, test data with none, and which labels are wrong."""
    bunch = load_digits()
    images, labels = torch.tensor(bunch.data, dtype=torch.float32) / 16, torch.tensor(bunch.target)
    order = torch.randperm(len(labels), generator=generator)
    train, test = order[:1400], order[1400:]
    wrong = torch.zeros(len(train), dtype=torch.bool)
    wrong[: round(WRONG * len(train))] = True
    shift = torch.randint(1, 10, (len(train),), generator=generator)
    given = torch.where(wrong, (labels[train] + shift) % 10, labels[train])
    return TensorDataset(images[train], given), TensorDataset(images[test], labels[test]), wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("analysis_during_training"), help="where figures go")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    options = parser.parse_args()
    torch.set_num_threads(1)  # fastest for a model this small
    torch.manual_seed(options.seed)
    train, test, wrong = digits(torch.Generator().manual_seed(options.seed))
    # items with their own index: a position in a shuffled loader does not identify an example
    train_loader = DataLoader(ls.IndexedDataset(train), batch_size=BATCH, shuffle=True)
    test_loader = DataLoader(test, batch_size=BATCH)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    criterion = nn.CrossEntropyLoss()

    dynamics = LearningDynamicsAnalyzer(num_classes=10)
    gradients = GradientFlowAnalyzer(model)
    memorization = MemorizationDetector(num_classes=10)
    for epoch in track(range(options.epochs), "training"):
        for batch_idx, (inputs, targets, ids) in enumerate(train_loader):
            outputs = model(inputs)
            loss = criterion(outputs, targets)
            optimizer.zero_grad()
            loss.backward()
            if batch_idx % 10 == 0:
                gradients.track_batch_gradients(loss, epoch, batch_idx)
            optimizer.step()
            dynamics.track_batch(model, inputs, targets, ids, epoch, logits=outputs)
        dynamics.compute_epoch_statistics(train_loader, model, epoch)
        gradients.compute_epoch_statistics(epoch)
        if epoch % 5 == 0:
            memorization.compute_memorization_scores(model, train_loader, test_loader, epoch)
    show(dynamics, gradients, memorization, wrong, options.out)


def show(
    dynamics: LearningDynamicsAnalyzer, gradients: GradientFlowAnalyzer, memorization: MemorizationDetector,
    wrong: Tensor, out: Path,
) -> None:  # fmt: skip
    console = Console()
    patterns = dynamics.analyze_learning_patterns()
    forgetting = patterns["forgetting_statistics"]
    console.print(
        f"\n[bold]{patterns['total_examples']:,} examples[/]: {len(patterns['easy_examples']):,} easy, "
        f"{len(patterns['medium_examples']):,} between, {len(patterns['hard_examples']):,} hard; "
        f"{forgetting['examples_with_forgetting']:,} were forgotten at some time, {forgetting['never_learned']:,} were "
        "never learned"
    )
    frame = dynamics.frame().set_index("id")
    truth = wrong.numpy()[frame.index]
    table = Table("score", "AUROC", title="Which labels are wrong? By score of the ledger")
    for column, name in SCORES.items():
        high_is_wrong = column in ("el2n_mean", "cumulative_loss")
        table.add_row(name, f"{roc_auc_score(truth, frame[column] * (1 if high_is_wrong else -1)):.4f}")
    suspects = memorization.find_label_noise(true_noise=wrong.numpy())
    found = suspects.attrs["noise_score"]
    table.add_row("MemorizationDetector, every fifth epoch", f"{found['auroc']:.4f}")
    console.print(table)
    evolution = memorization.analyze_memorization_evolution()
    last = evolution["epochs"][-1]
    learned = memorization.memorization_proxies().set_index("id")["correct"][wrong.nonzero().flatten().tolist()]
    console.print(
        f"By epoch {last}, {learned.mean():.0%} of the wrong labels were learned by heart, and test accuracy was "
        f"{evolution['test_accuracy'][-1]:.3f} (at its best {max(evolution['test_accuracy']):.3f})."
    )
    flow = gradients.analyze_gradient_flow()
    console.print(f"Layers whose gradients vanish: {flow['vanishing_layers'] or 'none'}; explode: "
                  f"{flow['exploding_layers'] or 'none'}")  # fmt: skip
    paths = [
        *dynamics.plot_learning_dynamics(save_dir=out), *gradients.plot_gradient_flow(save_dir=out),
        *memorization.plot_memorization(save_dir=out),
    ]  # fmt: skip
    console.print(f"{len(paths)} figures in {out}: {', '.join(path.name for path in paths)}")


if __name__ == "__main__":
    main()
