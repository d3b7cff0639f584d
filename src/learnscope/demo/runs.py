"""Four runs on handwritten digits: one healthy, three with a common mistake."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

import learnscope as ls
from learnscope.demo import data
from learnscope.demo.models import ConvNet, DeepSigmoidNet, UnsafeNet, WideNet
from learnscope.demo.scenario import DemoRun, Show


def train_healthy(run: Path, quick: bool, show: Show) -> None:
    """Warm-up and cosine, clipping, and gradients accumulated over four micro-batches."""
    torch.manual_seed(0)
    train, held_out = data.digits()
    epochs = 4 if quick else 12
    loader = DataLoader(ls.IndexedDataset(train), batch_size=128, shuffle=True, drop_last=True)
    steps = epochs * len(loader)
    model = ConvNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: warm_up_and_cosine(step, steps // 10, steps))
    # the default thresholds would keep almost every change of so high a learning rate
    sparse = ls.SparseQuality(every=20, thresholds=(1e-4, 1e-3, 5e-3))
    probes = [
        ls.GradientFlow(every=2, stability=True), ls.ParameterChange(every=10), ls.Holdout(every=10), ls.Loss(),
        ls.LearningRate(every=1), ls.BatchStats(every=5), ls.Momentum(every=10), ls.Activations(every=20),
        sparse, ls.LowRankQuality(every=20, ranks=(1, 2, 4, 8)), ls.LossLandscape(every=40),
        ls.FeatureEvolution(), ls.Memorization(), ls.GroupAccuracy(), ls.ExampleLedger(),
        ls.ExampleTransitions(every=4, keep_arrays=False), ls.LoopCalls(), ls.LostSteps(), ls.Objective(), ls.Inputs(),
        DemoRun(scenario="digits", training_examples=len(train)),
    ]  # fmt: skip
    with ls.watch(model, optimizer, run=run, probes=probes, holdout=held_out, train=train, test=held_out) as w:
        for _ in range(epochs):
            for images, labels, ids in loader:
                optimizer.zero_grad()
                for x, y, i in zip(images.split(32), labels.split(32), ids.split(32), strict=True):
                    w.micro_batch(len(y))  # the gradient noise scale then counts in examples
                    logits = model(x)
                    loss = cross_entropy(logits, y)
                    w.examples(i, logits, y, inputs=x)
                    (loss * len(y) / len(labels)).backward()
                    w.log(loss=loss)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                w.batch((images, labels))
                show(w.steps, steps, loss)
            w.end_epoch()


def warm_up_and_cosine(step: int, warm_up: int, steps: int) -> float:
    """The factor of the learning rate: linear up over `warm_up` steps, then a cosine down to 0."""
    if step < warm_up:
        return (step + 1) / (warm_up + 1)
    return 0.5 * (1 + math.cos(math.pi * (step - warm_up) / (steps - warm_up)))


def train_overfit(run: Path, quick: bool, show: Show) -> None:
    """200 examples, a fifth of them labelled wrong, and far too many passes over them."""
    torch.manual_seed(0)
    train, held_out = data.digits()
    train = data.few_with_wrong_labels(train, examples=200, wrong=0.2)
    model = WideNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    probes = [ls.GradientFlow(every=5), ls.ParameterChange(every=20), ls.Holdout(every=10)]
    steps = 300 if quick else 500
    _train(run, show, model, optimizer, probes, train, held_out, steps=steps, batch_size=50, accuracy=True)


def train_vanishing(run: Path, quick: bool, show: Show) -> None:
    """Eight sigmoid layers on small weights, and a head that came after the optimizer was made."""
    torch.manual_seed(0)
    train, held_out = data.digits()
    model = DeepSigmoidNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    # the mistake: the optimizer still holds the old head's weights, so the new ones are never updated
    model.head = nn.Linear(model.head.in_features, 10)
    probes = [ls.GradientFlow(every=5, per_tensor=True), ls.ParameterChange(every=20), ls.Holdout(every=20)]
    _train(run, show, model, optimizer, probes, train, held_out, steps=60 if quick else 300, batch_size=64)


def train_nan(run: Path, quick: bool, show: Show) -> None:
    """Healthy until the one blank image among 1,437 is drawn: one NaN gradient destroys the model."""
    torch.manual_seed(0)
    train, held_out = data.digits()
    train = data.with_a_blank_image(train, position=7)
    steps = 100 if quick else 140  # past one pass over the data, so that the image has been drawn
    model = UnsafeNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    # every step: the first bad tensor can be named only at the step at which it turned bad
    probes = [ls.GradientFlow(every=1), ls.ParameterChange(every=10), ls.Holdout(every=10)]
    _train(run, show, model, optimizer, probes, train, held_out, steps=steps, batch_size=16)


def _train(
    run: Path, show: Show, model: nn.Module, optimizer: torch.optim.Optimizer, probes: Sequence[ls.Probe],
    train: TensorDataset, held_out: TensorDataset, *, steps: int, batch_size: int, accuracy: bool = False,
) -> None:  # fmt: skip
    """A plain loop over `steps` batches, drawn without replacement until the data is used up, then again."""
    mark = DemoRun(scenario=run.name, training_examples=len(train))
    seen = [ls.LoopCalls(), ls.LostSteps(), ls.Objective(), ls.Inputs()]  # as by default
    probes = [*probes, ls.Loss(), ls.LearningRate(every=1), ls.BatchStats(), *seen, mark]
    batches = DataLoader(train, batch_size=batch_size, sampler=RandomSampler(train, num_samples=steps * batch_size))
    with ls.watch(model, optimizer, run=run, probes=probes, holdout=held_out) as w:
        for x, y in batches:
            logits = model(x)
            loss = cross_entropy(logits, y)
            model.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss, **({"train_accuracy": (logits.argmax(1) == y).float().mean()} if accuracy else {}))
            w.batch((x, y))
            show(w.steps, steps, loss)
