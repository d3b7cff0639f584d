"""How many labels are wrong: on made numbers, and on digits with labels that were moved."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import learnscope as ls
from learnscope.findings.examples.noise_estimate import estimate_noise


def made(n: int = 2000, noisy: int = 0, hard: float = 0.2, seed: int = 0) -> np.ndarray:
    """EL2N of sound examples, which falls off with `hard`, and of wrong ones around 1.2."""
    draw = np.random.default_rng(seed)
    sound = 0.15 + draw.exponential(hard, 2 * n)
    sound = sound[sound < 1.41][: n - noisy]  # no EL2N is above √2
    return np.concatenate([sound, np.clip(draw.normal(1.2, 0.1, noisy), 0, 1.41)])


@pytest.mark.parametrize("hard", [0.05, 0.1, 0.2, 0.35])
def test_silence_without_noise(hard: float) -> None:
    assert [estimate_noise(made(hard=hard, seed=seed)) for seed in range(10)] == [None] * 10


@pytest.mark.parametrize("share", [0.05, 0.1, 0.2])
def test_the_number_is_in_the_range(share: float) -> None:
    for seed in range(10):
        noisy = int(2000 * share)
        found = estimate_noise(made(noisy=noisy, hard=0.12, seed=seed))
        assert found is not None
        assert found.low <= noisy <= found.high
        assert found.number == pytest.approx(noisy, rel=0.2)
        assert found.suspects[-noisy:].mean() > 0.9
        assert found.precision > 0.8


def test_too_little_is_known() -> None:
    assert estimate_noise(made(80, 20)) is None
    assert estimate_noise(np.full(2000, 0.95)) is None  # nothing has been learned
    assert estimate_noise(np.full(2000, np.nan)) is None


def train(share: float, seed: int, path: Path, *, to_next: bool = False) -> tuple[ls.Run, np.ndarray]:
    from sklearn.datasets import load_digits

    x, y = (torch.from_numpy(part) for part in load_digits(return_X_y=True))
    x, draw = x.float() / 16, torch.Generator().manual_seed(seed)
    moved = torch.rand(len(y), generator=draw) < share
    others = torch.ones_like(y) if to_next else torch.randint(1, 10, y.shape, generator=draw)
    labels = torch.where(moved, (y + others) % 10, y)
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    with ls.watch(model, optimizer, run=path, probes=[ls.ExampleLedger()]) as w:
        for _ in range(6):
            for ids in torch.randperm(len(x), generator=draw).split(64):
                logits = model(x[ids])
                optimizer.zero_grad()
                F.cross_entropy(logits, labels[ids]).backward()
                optimizer.step()
                w.examples(ids, logits, labels[ids])
            w.end_epoch()
    return w.run, moved.numpy()


def test_labels_of_digits(tmp_path: Path) -> None:
    run, moved = train(0.1, 0, tmp_path / "noisy")
    [finding] = [finding for finding in run.findings() if finding.kind == "label_noise"]
    assert (finding.severity, finding.cause, finding.evidence.n) == ("warning", True, len(moved))
    assert finding.evidence.interval is not None
    low, high = finding.evidence.interval
    assert low <= moved.mean() <= high
    assert "run.suspicious_labels()" in finding.advice

    suspects = run.suspicious_labels()
    assert suspects.attrs["low"] <= moved.sum() <= suspects.attrs["high"]
    assert moved[suspects["id"].to_numpy()].mean() > 0.8
    assert suspects["el2n_mean"].is_monotonic_decreasing
    hard = run.hard_examples(50)
    assert len(hard) == 50
    assert moved[hard["id"].to_numpy()].mean() > 0.8
    forgotten = run.forgotten_examples()
    assert len(forgotten)
    assert forgotten["forgetting_events"].is_monotonic_decreasing
    assert forgotten["forgetting_events"].min() > 0


def test_silence_on_sound_digits(tmp_path: Path) -> None:
    run, _ = train(0.0, 0, tmp_path / "sound")
    assert [finding for finding in run.findings() if finding.kind == "label_noise"] == []
    assert run.suspicious_labels().attrs == {}


def test_labels_that_all_went_to_the_next_class(tmp_path: Path) -> None:
    from sklearn.datasets import load_digits

    run, moved = train(0.2, 1, tmp_path / "next", to_next=True)
    [finding] = [finding for finding in run.findings() if finding.kind == "label_noise"]
    suspects = run.suspicious_labels()
    assert suspects.attrs["low"] <= moved.sum() <= suspects.attrs["high"]
    assert suspects.attrs["number"] == pytest.approx(moved.sum(), rel=0.35)
    wrong = moved[suspects["id"].to_numpy()]
    assert abs(wrong.mean() - suspects.attrs["precision"]) < 0.15
    true = load_digits().target[suspects["id"].to_numpy()]
    assert (suspects["suggested"].to_numpy(np.int64, na_value=-1) == true)[wrong].mean() > 0.9
    assert "looks like" in finding.detail
    assert "were not moved at random" in finding.detail


def test_a_model_that_is_too_small_is_no_sign_of_wrong_labels() -> None:
    """A bump below where wrong labels lie: √2 minus what sound ones have."""
    draw = np.random.default_rng(0)
    sound = np.clip(draw.normal(0.2, 0.05, 1900), 0.02, None)
    assert estimate_noise(np.concatenate([sound, draw.normal(0.96, 0.05, 100)])) is None
    assert estimate_noise(np.concatenate([sound, draw.normal(1.2, 0.05, 100)])) is not None
