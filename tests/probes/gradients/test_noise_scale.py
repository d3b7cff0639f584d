"""The gradient noise scale against per-example gradients whose mean and covariance are known exactly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import learnscope as ls
from learnscope.probes.gradients.flow_tables import UNKNOWN_WEIGHTS
from learnscope.tensor.gradients.noise import Weighting, noise_scale_parts
from probes.reference import rows, values

PROBE = "GradientFlow"
ERRORS = 4.0
"""Standard errors within which a mean must lie: a right estimator fails one time in 16,000."""


def close_to(samples: Sequence[float], truth: float, precision: float) -> None:
    """The mean of the samples is the truth within its standard error, which is small enough to mean something."""
    found = np.asarray(samples, dtype=float)
    error = found.std(ddof=1) / np.sqrt(len(found))
    assert error < precision * abs(truth), f"the test itself has no power: {error / truth:.3f}"
    assert abs(found.mean() - truth) < ERRORS * error, (found.mean(), truth, error)


WEIGHTS: dict[Weighting, Any] = {
    "number": lambda b, sizes: 1 / len(sizes),
    "size": lambda b, sizes: b / sum(sizes),
    "sum": lambda b, sizes: b,
}
"""What a loop multiplies the mean loss of a micro-batch by."""


@pytest.mark.parametrize(
    ("sizes", "weighting"),
    [
        ((1, 1), "size"), ((1, 2, 3, 10), "size"), ((8, 8, 8, 2), "number"), ((4, 12), "sum"),
        *(
            pytest.param(*case, marks=pytest.mark.soak)
            for case in (
                ((1, 1, 1, 1, 1), "number"), ((8, 8, 8), "size"), ((4, 12), "size"), ((1, 30), "size"),
                ((1, 2, 3, 10), "number"), ((8, 8, 8, 2), "sum"),
            )
        ),
    ],
    ids=str,
)  # fmt: skip
def test_both_parts_are_unbiased(sizes: tuple[int, ...], weighting: Weighting) -> None:
    """Per-example gradients G + A·z: S is the trace of A·Aᵀ, whatever the sizes of the micro-batches."""
    generator = np.random.default_rng(3)
    mean = np.array([1.0, -2.0, 0.5, 0.0, 1.5])
    mix = generator.normal(size=(5, 5)) * 1.2
    signal, noise = float(mean @ mean), float(np.trace(mix @ mix.T))
    signals, noises = [], []
    for _ in range(1500):
        weighted = []
        for b in sizes:
            examples = mean + generator.normal(size=(b, 5)) @ mix.T
            weighted.append(examples.mean(0) * WEIGHTS[weighting](b, sizes))
        each = torch.tensor([float(g @ g) for g in weighted], dtype=torch.float64)
        whole = np.sum(weighted, 0)
        given = None if set(sizes) == {1} else sizes
        got = noise_scale_parts(each, torch.tensor(float(whole @ whole), dtype=torch.float64), given, weighting)
        signals.append(got[0].item())
        noises.append(got[1].item())
    close_to(signals, signal, 0.15)
    close_to(noises, noise, 0.15)


def test_it_is_the_formula_of_the_paper_for_equal_micro_batches() -> None:
    """|G|² = (B|G_B|² − b|G_b|²)/(B − b), S = (|G_b|² − |G_B|²)/(1/b − 1/B), |G_b|² averaged over micro-batches."""
    b, n = 16.0, 5
    small, big = np.array([3.0, 2.5, 2.0, 4.0, 3.5]), 1.75
    signal, noise = noise_scale_parts(
        torch.tensor(small / n**2, dtype=torch.float64), torch.tensor(big, dtype=torch.float64), [b] * n
    )
    total = b * n
    assert signal.item() == pytest.approx((total * big - b * small.mean()) / (total - b), rel=1e-12)
    assert noise.item() == pytest.approx((small.mean() - big) / (1 / b - 1 / total), rel=1e-12)


class Line(nn.Module):
    def __init__(self, dimensions: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(dimensions))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


class Population:
    """Linear regression at fixed weights: the per-example gradients are −2x(y − xᵀw), the population is finite."""

    def __init__(self) -> None:
        generator = np.random.default_rng(11)
        self.x = generator.normal(size=(400, 4))
        self.y = self.x @ np.array([1.0, -0.5, 0.3, 0.0]) + 0.7 * generator.normal(size=400)
        each = -2 * self.x * self.y[:, None]  # the weights are zero
        self.mean = each.mean(0)
        self.signal = float(self.mean @ self.mean)
        self.noise = float(((each - self.mean) ** 2).sum(1).mean())
        self.draw = np.random.default_rng(12)

    def batch(self, size: int) -> tuple[Tensor, Tensor]:
        chosen = self.draw.integers(0, 400, size)
        return torch.tensor(self.x[chosen]), torch.tensor(self.y[chosen])


def watched(
    batches: Any, steps: int, *, sizes: bool = False, scale: float = 1.0, smoothing: float = 0.9, **options: Any
) -> ls.Run:
    """A loop over `batches(step)`, a list of (x, y, weight of the micro-batch's mean loss); the weights stay."""
    model = Line(4).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, enabled=scale != 1.0)
    probe = ls.GradientFlow(every=1, smoothing=smoothing, **options)
    with ls.watch(model, optimizer, probes=[probe], strict=True) as w:
        for step in range(steps):
            optimizer.zero_grad()
            for x, y, weight in batches(step):
                if sizes:
                    w.micro_batch(len(x))
                scaler.scale((model(x) - y).square().mean() * weight).backward()
            scaler.step(optimizer)
            scaler.update()
    return w.run


def test_a_watched_loop_of_equal_micro_batches() -> None:
    """Mean loss divided by the number of micro-batches; without sizes the unit is one micro-batch."""
    population = Population()
    run = watched(lambda _step: [(*population.batch(8), 1 / 4) for _ in range(4)], 150)
    noises, signals = values(run, PROBE, "noise"), values(run, PROBE, "signal")
    assert rows(run, PROBE, "noise").step.min() == 2, "the first step cannot know that the loop accumulates"
    close_to(noises, population.noise / 8, 0.12)
    close_to(signals, population.signal, 0.12)
    assert rows(run, PROBE, "noise_scale").unit.unique().tolist() == ["micro-batches"]


def test_the_ratio_of_the_smoothed_parts() -> None:
    population = Population()
    run = watched(lambda _step: [(*population.batch(8), 1 / 4) for _ in range(4)], 60, smoothing=0.8)
    noises, signals = values(run, PROBE, "noise"), values(run, PROBE, "signal")
    s, g, expected = noises[0], signals[0], []
    for i, (noise, signal) in enumerate(zip(noises, signals, strict=True)):
        s, g = (s, g) if i == 0 else (0.8 * s + 0.2 * noise, 0.8 * g + 0.2 * signal)
        expected.append(s / g if g > 0 else np.nan)
    assert values(run, PROBE, "noise_scale") == pytest.approx(expected, rel=1e-9, nan_ok=True)
    truth = population.noise / 8 / population.signal
    assert np.nanmedian(values(run, PROBE, "noise_scale")[20:]) == pytest.approx(truth, rel=0.5)


def test_micro_batches_weighted_by_their_tokens() -> None:
    """The trainer divides by all tokens of the step: micro-batch i counts b_i/B. The unit is then one token."""
    population = Population()

    def batches(step: int) -> list[tuple[Tensor, Tensor, float]]:
        sizes = [(2, 9, 21), (16, 4, 12), (30, 1, 1)][step % 3]
        return [(*population.batch(b), b / sum(sizes)) for b in sizes]

    run = watched(batches, 240, sizes=True, weighted_by="size")
    close_to(values(run, PROBE, "noise"), population.noise, 0.12)
    close_to(values(run, PROBE, "signal"), population.signal, 0.12)
    unweighted = watched(batches, 90)
    biased = np.mean(values(unweighted, PROBE, "noise"))
    assert abs(biased - population.noise) > 0.3 * population.noise, "without the sizes it would be something else"


def test_the_loss_scale_does_not_matter() -> None:
    population = Population()
    fixed = [[(*population.batch(8), 1 / 3) for _ in range(3)] for _ in range(6)]
    plain, scaled = (watched(lambda step: fixed[step], 6, scale=scale) for scale in (1.0, 2.0**12))
    for name in ("noise_scale", "noise", "signal"):
        got = values(scaled, PROBE, name)
        assert got == pytest.approx(values(plain, PROBE, name), rel=1e-9, nan_ok=True)
        assert len(got) == 5


def test_clipping_does_not_matter() -> None:
    population = Population()
    fixed = [[(*population.batch(8), 1 / 3) for _ in range(3)] for _ in range(4)]
    model = Line(4).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with ls.watch(model, optimizer, probes=[ls.GradientFlow(every=1)], strict=True) as w:
        for micro in fixed:
            optimizer.zero_grad()
            for x, y, weight in micro:
                ((model(x) - y).square().mean() * weight).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            optimizer.step()
    plain = watched(lambda step: fixed[step], 4)
    assert values(w.run, PROBE, "noise") == pytest.approx(values(plain, PROBE, "noise"), rel=1e-9)


def test_a_step_that_the_loop_gave_up_is_no_part_of_the_next() -> None:
    """Two micro-batches, cleared without a step, then the two that count."""
    population = Population()
    kept = [(*population.batch(8), 1 / 2) for _ in range(2)]
    expected = watched(lambda _step: kept, 2, sizes=True)

    model = Line(4).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with ls.watch(model, optimizer, probes=[ls.GradientFlow(every=1)], strict=True) as w:
        for give_up in (False, True, False):
            optimizer.zero_grad()
            micro = kept if not give_up else [(*population.batch(8), 50.0) for _ in range(2)]
            for x, y, weight in micro:
                w.micro_batch(len(x))
                ((model(x) - y).square().mean() * weight).backward()
            if not give_up:
                optimizer.step()
    for name in ("noise", "signal"):
        assert values(w.run, PROBE, name) == pytest.approx(values(expected, PROBE, name), rel=1e-9)
        assert len(values(w.run, PROBE, name)) == 1


def test_a_signal_that_is_not_positive_has_no_ratio() -> None:
    """Micro-batches that nearly cancel: all is noise."""
    x = torch.eye(4, dtype=torch.float64)
    y = torch.ones(4, dtype=torch.float64)
    run = watched(lambda _step: [(x, y, 0.5), (x, -y * 0.999, 0.5)], 3)
    frame = rows(run, PROBE, "noise_scale")
    assert list(frame.step) == [2, 3]
    assert frame.value.isna().all()
    assert list(frame.status) == ["the smoothed signal is not positive"] * 2
    assert all(signal < 0 for signal in values(run, PROBE, "signal"))


@pytest.mark.parametrize("bad_step", [1, 3])
def test_one_bad_step_does_not_spoil_the_averages(bad_step: int) -> None:
    population = Population()

    def batches(step: int) -> list[tuple[Tensor, Tensor, float]]:
        weight = float("nan") if step == bad_step else 1 / 2
        return [(*population.batch(200), weight) for _ in range(2)]  # large: the signal is positive

    model = Line(4).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with ls.watch(model, optimizer, probes=[ls.GradientFlow(every=1)], strict=True) as w:
        for step in range(6):
            optimizer.zero_grad()
            for x, y, weight in batches(step):
                ((model(x) - y).square().mean() * weight).backward()
            optimizer.step()
            nn.init.zeros_(model.weight)  # as a loop would that goes back to a checkpoint
    frame = rows(w.run, PROBE, "noise").set_index("step")
    assert list(frame.index[frame.value.isna()]) == [bad_step + 1]
    signal = rows(w.run, PROBE, "signal").set_index("step").value
    scale = rows(w.run, PROBE, "noise_scale").set_index("step").value
    assert (signal.dropna() > 0).all(), "the test itself"
    assert not np.isnan(scale[6])


def test_there_is_none_without_accumulation_or_when_not_wanted() -> None:
    population = Population()
    one = watched(lambda _step: [(*population.batch(8), 1.0)], 4)
    off = watched(lambda _step: [(*population.batch(8), 0.5)] * 2, 4, noise_scale=False)
    for run in (one, off):
        assert values(run, PROBE, "noise_scale") == []
        assert values(run, PROBE, "noise") == []


def test_sizes_that_do_not_match_the_micro_batches_are_not_used() -> None:
    """One size too few: the unit says that they were left out."""
    population = Population()
    model = Line(4).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with ls.watch(model, optimizer, probes=[ls.GradientFlow(every=1)], strict=True) as w:
        for _ in range(3):
            optimizer.zero_grad()
            w.micro_batch(8)
            for _ in range(2):
                x, y = population.batch(8)
                ((model(x) - y).square().mean() / 2).backward()
            optimizer.step()
    assert rows(w.run, PROBE, "noise_scale").unit.unique().tolist() == ["micro-batches"]


@pytest.mark.parametrize("weighting", ["number", "sum"])
def test_unequal_micro_batches_however_they_are_weighted(weighting: Weighting) -> None:
    """The last micro-batch is smaller, as at the end of an epoch; those weighted by size are above."""
    population, sizes = Population(), (8, 8, 8, 2)

    def batches(_step: int) -> list[tuple[Tensor, Tensor, float]]:
        return [(*population.batch(b), WEIGHTS[weighting](b, sizes)) for b in sizes]

    run = watched(batches, 160, sizes=True, weighted_by=weighting)
    close_to(values(run, PROBE, "noise"), population.noise, 0.15)
    close_to(values(run, PROBE, "signal"), population.signal, 0.15)
    median = np.nanmedian(values(run, PROBE, "noise_scale")[50:])
    assert median == pytest.approx(population.noise / population.signal, rel=0.5)


@pytest.mark.parametrize("weighting", WEIGHTS)
def test_unequal_micro_batches_of_unknown_weights_have_no_noise_scale(weighting: Weighting) -> None:
    """Gradients do not tell by what the loop multiplied them; steps of equal micro-batches are as they were."""
    population = Population()
    equal, unequal = (8, 8, 8, 8), (8, 8, 8, 2)
    fixed = [
        [(*population.batch(b), 1 / 4 if sizes == equal else WEIGHTS[weighting](b, sizes)) for b in sizes]
        for sizes in (unequal, unequal, equal, equal, unequal, equal)
    ]
    run = watched(lambda step: fixed[step], 6, sizes=True)
    parts = {name: rows(run, PROBE, name).set_index("step") for name in ("noise", "signal", "noise_scale")}
    for name in ("noise", "signal"):
        assert list(parts[name].index[parts[name].value.isna()]) == [2, 5]
        assert set(parts[name].status[[2, 5]]) == {UNKNOWN_WEIGHTS}
    assert parts["noise_scale"].status[2] == UNKNOWN_WEIGHTS, "there is no average yet"
    alone = watched(lambda step: [*fixed[:1], *fixed[2:4], fixed[5]][step], 4, sizes=True)
    for name in ("noise", "signal"):
        assert list(parts[name].value.dropna()) == values(alone, PROBE, name), "equal micro-batches need no option"


def test_how_micro_batches_are_weighted_is_one_of_three() -> None:
    with pytest.raises((ValueError, TypeError), match="weighted_by"):
        ls.GradientFlow(weighted_by="tokens")  # type: ignore[arg-type]
