"""Grokking, a spurious attribute, and a normal run side by side: the same analyzers tell them apart.

    python examples/analysis_multi_phenomenon.py        # under a minute on one core, nothing is downloaded

- grokking: addition modulo 47, of which the model sees 40 % of the pairs: known by heart long before it is understood.
- bias: handwritten digits with a bright stroke, whose place gives the digit away in 95 % of the training images and
  says nothing in the test images. The model reads the stroke.
- normal: the same digits, with the stroke anywhere.

Each training is followed by a `LearningDynamicsAnalyzer`, which is saved, loaded again and compared, and by probes that
make it a run with findings. Each ends in figures.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn

import learnscope as ls
from learnscope.demo.data import digits, sums_modulo
from learnscope.demo.models import ModularAdder
from learnscope.dynamics import LearningDynamicsAnalyzer

P, STEPS, EVERY = 47, 1800, 20
EPOCHS, BATCH = 30, 64
Batch = dict[str, Tensor]
Trained = tuple[LearningDynamicsAnalyzer, ls.Run]


def train_grokking_model(run: Path, options: argparse.Namespace) -> Trained:
    """All training pairs in every step, so that a step is an epoch; weight decay does the rest."""
    torch.manual_seed(0)
    train, test = sums_modulo(P, share=0.4, seed=0)
    pairs, sums = train.tensors
    model = ModularAdder(P)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, betas=(0.9, 0.98), eps=1e-6, weight_decay=1.0)
    analyzer = LearningDynamicsAnalyzer(num_classes=P)
    probes = [ls.Memorization(keep_arrays=False), ls.ParameterChange(every=EVERY)]
    with ls.watch(model, optimizer, run=run, probes=probes, train=[(pairs, sums)], test=[test.tensors]) as w:
        for step in track(range(options.steps), "grokking"):
            logits = model(pairs)
            optimizer.zero_grad()
            nn.functional.cross_entropy(logits, sums).backward()
            optimizer.step()
            if step % EVERY == 0:
                analyzer.track_batch(model, pairs, sums, torch.arange(len(sums)), step, logits=logits)
                analyzer.compute_epoch_statistics(epoch=step)
                w.end_epoch()
    return analyzer, w.run


def train_biased_model(run: Path, options: argparse.Namespace) -> Trained:
    return train_on_strokes(run, "bias", options.epochs, giving_away=0.95)


def train_normal_model(run: Path, options: argparse.Namespace) -> Trained:
    return train_on_strokes(run, "normal", options.epochs, giving_away=0.0)


def train_on_strokes(run: Path, name: str, epochs: int, giving_away: float) -> Trained:
    torch.manual_seed(0)
    draw = torch.Generator().manual_seed(0)
    train, test = digits()
    seen = with_strokes(*train.tensors, giving_away, draw)
    unseen = with_strokes(*test.tensors, 0.0, draw)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    analyzer = LearningDynamicsAnalyzer(num_classes=10)
    probes = [ls.GroupAccuracy(), ls.Memorization(keep_arrays=False), ls.FeatureEvolution(every=3, samples=200)]
    data = {"train": [seen], "test": [unseen], "holdout": [unseen]}
    with ls.watch(model, optimizer, run=run, probes=probes, task=ls.DictTask("x", "y"), **data) as w:
        for epoch in track(range(epochs), name):
            for ids in torch.randperm(len(seen["y"]), generator=draw).split(BATCH):
                x, y = seen["x"][ids], seen["y"][ids]
                logits = model(x)
                optimizer.zero_grad()
                nn.functional.cross_entropy(logits, y).backward()
                optimizer.step()
                analyzer.track_batch(model, x, y, ids, epoch, logits=logits)
            analyzer.compute_epoch_statistics(epoch=epoch)
            w.end_epoch()
    return analyzer, w.run


def with_strokes(images: Tensor, labels: Tensor, giving_away: float, draw: torch.Generator) -> Batch:
    """A bright stroke in one of ten places at the rim: the digit's own for a share of the images, else anywhere."""
    place = torch.randint(10, labels.shape, generator=draw)
    place = torch.where(torch.rand(labels.shape, generator=draw) < giving_away, labels, place)
    images = images.clone()
    row, column = place % 5, torch.where(place < 5, 0, 7)
    rows = torch.arange(len(labels))
    images[rows, 0, row, column] = 2.0
    images[rows, 0, row + 1, column] = 2.0
    return {"x": images, "y": labels, "group": place}


TRAINED: dict[str, Callable[[Path, argparse.Namespace], Trained]] = {
    "grokking": train_grokking_model, "bias": train_biased_model, "normal": train_normal_model,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("analysis_multi_phenomenon"), help="where everything goes")
    parser.add_argument("--steps", type=int, default=STEPS, help="of the model that groks")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="of the two others")
    options = parser.parse_args()
    out: Path = options.out
    torch.set_num_threads(1)  # models this small are faster so
    runs: dict[str, ls.Run] = {}
    for name, train in TRAINED.items():
        shutil.rmtree(out / "runs" / name, ignore_errors=True)  # this example's own, of an earlier time
        analyzer, runs[name] = train(out / "runs" / name, options)
        analyzer.save(out / "saved" / f"{name}_analyzer.pkl")

    console = Console()
    table = Table("", "examples", "hard", "easy", "forgotten", "never learned", "mean p(gold)")
    for name in TRAINED:
        analyzer = LearningDynamicsAnalyzer.load(out / "saved" / f"{name}_analyzer.pkl")
        analysis = analyzer.analyze_learning_patterns()
        forgetting = analysis["forgetting_statistics"]
        counts = (
            analysis["total_examples"], len(analysis["hard_examples"]), len(analysis["easy_examples"]),
            forgetting["examples_with_forgetting"], forgetting["never_learned"],
        )  # fmt: skip
        table.add_row(name, *(f"{count:,}" for count in counts), f"{1 - analysis['mean_difficulty']:.3f}")
        analyzer.plot_learning_dynamics(out / "figures" / name)
    console.print(table)
    for name, run in runs.items():
        found = run.findings()
        console.print(f"\n[bold]{name}[/]: {'what its run says' if found else 'nothing to report'}")
        for finding in found:
            console.print(f"- {finding.title}")
        run.report(findings=found)
    console.print(f"\nFigures are in {out / 'figures'}, the runs' reports in {out / 'runs'}")


if __name__ == "__main__":
    main()
