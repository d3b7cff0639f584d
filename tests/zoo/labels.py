"""How right the estimates of wrong labels are: their count, interval, list and suggested class, on many data sets.

    python tests/zoo/labels.py chosen|judged [--json FILE]

The constants of `findings/examples/noise_estimate.py` were chosen on the data sets and trainings of `chosen`; `judged`
has others. With `--json` the labels are written, so that another project can be given the same (cleanlab, in an
environment of its own, with the probabilities of a cross-validated network).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402
import torch  # noqa: E402
from sklearn import datasets as D  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from learnscope.findings.examples.noise_estimate import estimate_noise  # noqa: E402
from learnscope.ledger import Ledger  # noqa: E402
from learnscope.model.examples.scores import example_scores  # noqa: E402

Training = tuple[int, float, int, str, int]
"""Width, learning rate, epochs, optimizer, batch."""
TRAININGS: dict[str, list[Training]] = {
    "chosen": [
        (64, 2e-3, 10, "adam", 50), (64, 5e-3, 6, "adam", 64), (256, 1e-3, 20, "adam", 32), (32, 0.05, 15, "sgd", 32),
    ],
    "judged": [(96, 3e-3, 8, "adam", 32), (256, 2e-3, 12, "adam", 50), (48, 0.03, 25, "sgd", 50)],
}  # fmt: skip
SETS = {
    "chosen": ["digits", "made 2000 5 1.0", "made 1500 3 2.0", "blobs 1200 6 2.0", "moons 800 0.2", "breast_cancer",
               "made 3000 10 1.5"],
    "judged": ["wine", "iris", "blobs 2000 10 3.0", "made 1000 4 1.2", "made 4000 8 2.0", "gauss 1500 3",
               "moons 1500 0.1", "digits"],
}  # fmt: skip
NOISE = [("any", 0.0), ("any", 0.02), ("any", 0.05), ("any", 0.1), ("any", 0.2), ("any", 0.3), ("next", 0.1),
         ("next", 0.2)]  # fmt: skip


def data(name: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    kind, *given = name.split()
    numbers = [float(value) for value in given]
    if kind == "made":
        n, classes, apart = numbers
        x, y = D.make_classification(
            int(n), 20, n_informative=10, n_redundant=2, n_classes=int(classes), n_clusters_per_class=2,
            class_sep=apart, flip_y=0, random_state=seed,
        )  # fmt: skip
    elif kind == "blobs":
        x, y = D.make_blobs(int(numbers[0]), 8, centers=int(numbers[1]), cluster_std=numbers[2], random_state=seed)
    elif kind == "moons":
        x, y = D.make_moons(int(numbers[0]), noise=numbers[1], random_state=seed)
    elif kind == "gauss":
        x, y = D.make_gaussian_quantiles(
            n_samples=int(numbers[0]), n_features=6, n_classes=int(numbers[1]), random_state=seed
        )
    else:
        x, y = getattr(D, f"load_{kind}")(return_X_y=True)
        if kind == "digits":
            return x / 16, y
    return (x - x.mean(0)) / (x.std(0) + 1e-9), y


@dataclass(frozen=True)
class Trained:
    name: str
    noise: tuple[str, float]
    frame: pd.DataFrame
    moved: np.ndarray
    true: np.ndarray


def train(name: str, noise: tuple[str, float], how: Training, seed: int) -> Trained:
    """A network on labels of which a share was moved, with every presentation in a ledger."""
    (kind, share), (width, rate, epochs, optimizer, size) = noise, how
    x, y = data(name, seed)
    classes = int(y.max()) + 1
    draw = np.random.RandomState(1000 * seed + int(share * 100) + 7 * (kind == "next"))
    moved = draw.rand(len(y)) < share
    others = np.ones(len(y), int) if kind == "next" else draw.randint(1, classes, len(y))
    inputs, labels = torch.tensor(x).float(), torch.tensor(np.where(moved, (y + others) % classes, y)).long()
    torch.manual_seed(seed)
    sizes = [x.shape[1], width, classes] if width < 200 else [x.shape[1], 128, 128, classes]
    layers = [part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), nn.ReLU())][:-1]
    model = nn.Sequential(*layers)
    options: dict[str, Any] = {} if optimizer == "adam" else {"momentum": 0.9}
    steps = (torch.optim.Adam if optimizer == "adam" else torch.optim.SGD)(model.parameters(), lr=rate, **options)
    ledger = Ledger()
    for epoch in range(epochs):
        for ids in torch.randperm(len(inputs)).split(size):
            logits = model(inputs[ids])
            steps.zero_grad()
            F.cross_entropy(logits, labels[ids]).backward()
            steps.step()
            s = example_scores(logits.detach(), labels[ids])
            ledger.update(ids.numpy(), p_gold=s.p_gold, correct=s.correct, margin=s.margin, loss=s.loss, el2n=s.el2n,
                          target=s.target, predicted=s.predicted, epoch=epoch)  # fmt: skip
    return Trained(name, noise, ledger.frame(), moved, y)


def rows(part: str) -> Iterator[dict[str, Any]]:
    for name in SETS[part]:
        for how in TRAININGS[part]:
            for noise in NOISE:
                one = train(name, noise, how, 0 if part == "chosen" else 5)
                found = estimate_noise(one.frame["el2n_mean"].to_numpy(np.float64))
                row: dict[str, Any] = {"data": name, "training": str(how), "noise": noise, "n": len(one.moved),
                                       "moved": int(one.moved.sum()), "found": found is not None}  # fmt: skip
                if found is not None:
                    listed, wrong = found.suspects, found.suspects & one.moved
                    other = one.frame["other_class"].to_numpy(np.int64, na_value=-1)
                    row |= {"number": found.number, "low": found.low, "high": found.high,
                            "precision": float(one.moved[listed].mean()), "expected": found.precision,
                            "recall": float(listed[one.moved].mean()) if one.moved.any() else None,
                            "suggested": float((other == one.true)[wrong].mean()) if wrong.any() else None}  # fmt: skip
                yield row | {"labels": one.frame["target"].astype(int).tolist()}


def table(found: pd.DataFrame) -> str:
    lines = ["| wrong labels | found | true number in the interval | number/true | precision (expected) | recall | "
             "suggested class right |", "|---" * 7 + "|"]  # fmt: skip
    for noise in NOISE:
        ours = found[found["noise"].map(tuple) == noise]
        hit = ours[ours["found"]]
        name = "none" if not noise[1] else f"{noise[1]:.0%} {'moved to the next class' if noise[0] == 'next' else ''}"
        if not len(hit):
            lines.append(f"| {name} | {len(hit)} of {len(ours)} | | | | | |")
            continue
        held = int(((hit["low"] <= hit["moved"]) & (hit["moved"] <= hit["high"])).sum())
        lines.append(
            f"| {name} | {len(hit)} of {len(ours)} | {held} of {len(hit)} | "
            f"{(hit['number'] / hit['moved']).median():.2f} | "
            f"{hit['precision'].mean():.2f} ({hit['expected'].mean():.2f}) | {hit['recall'].mean():.2f} | "
            f"{hit['suggested'].mean():.2f} |"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=list(SETS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = list(rows(options.part))
    if options.json:
        options.json.write_text(json.dumps(found))
    print(table(pd.DataFrame(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
