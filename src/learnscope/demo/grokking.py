"""Grokking: a model that memorises its training data, and generalises much later."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import learnscope as ls
from learnscope.demo import data
from learnscope.demo.models import ModularAdder
from learnscope.demo.scenario import DemoRun, Show
from learnscope.quantities.outputs import Holdout

P = 47


@ls.probe(every=10)
def circle(moment: ls.Moment) -> dict[str, float | Tensor]:
    """A custom probe: how much of the embedding lies on circles, and the norm of the weights.

    Addition modulo p is a rotation of a circle, so a model that generalises needs few frequencies:
    `top_frequencies` is the share of the embedding's power in its five strongest.
    """
    assert isinstance(moment.model, ModularAdder)
    waves = torch.fft.rfft(moment.model.embed.weight, dim=0)[1:]  # the first is the mean, not a wave
    power = waves.abs().square().sum(1)
    squares = [p.square().sum() for p in moment.model.parameters()]
    return {
        "top_frequencies": power.topk(5).values.sum() / power.sum(),
        "weight_norm": torch.stack(squares).sum().sqrt(),
    }


def train_grokking(run: Path, quick: bool, show: Show, *, seed: int = 0) -> None:
    """Full batches, and weight decay, which makes it grok."""
    torch.manual_seed(seed)
    train, held_out = data.sums_modulo(P, share=0.4, seed=seed)
    pairs, sums = train.tensors
    steps = 300 if quick else 1800
    model = ModularAdder(P)
    # eps: late gradients are so small that Adam, with its usual 1e-8, would turn them into large steps
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, betas=(0.9, 0.98), eps=1e-6, weight_decay=1.0)
    probes = [
        ls.GradientFlow(every=10), ls.ParameterChange(every=50), ls.Holdout(every=10, keep_arrays=False),
        ls.Loss(), ls.LearningRate(every=10), ls.BatchStats(every=50), circle,
        DemoRun(scenario="grokking", training_examples=len(train)),
    ]  # fmt: skip
    with ls.watch(model, optimizer, run=run, probes=probes, holdout=held_out) as w:
        for _ in range(steps):
            logits = model(pairs)
            loss = cross_entropy(logits, sums)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss, train_accuracy=(logits.argmax(1) == sums).float().mean())
            w.batch((pairs, sums))
            show(w.steps, steps, loss)


def when_it_grokked(run: ls.Run) -> str:
    """The step from which the training pairs are memorised, and the one from which held-out pairs are right."""
    memorised = lasting_from(run, "train_accuracy", 0.99)
    generalised = lasting_from(run, Holdout.holdout_accuracy.name, 0.95)
    if memorised is None:
        return f"in {run.last_step} steps not even the training pairs were learned"
    if generalised is None:
        return f"memorised from step {memorised}, not generalised by step {run.last_step}: that takes about 1,000"
    return f"memorised from step {memorised}, generalised from step {generalised}"


def lasting_from(run: ls.Run, name: str, level: float) -> int | None:
    """The first step from which `name` stays at `level` or above; None if it ends below."""
    values = run.frame(name=name).sort_values("step")
    below = values["step"][~(values["value"] >= level)]
    after = values["step"] if below.empty else values["step"][values["step"] > below.iloc[-1]]
    return None if after.empty else int(after.iloc[0])
