"""Training improves and validation does not: real runs of the example, one for each cause, and one that works."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from scipy import stats
from torch import nn

import learnscope as ls
from learnscope.record import Finding
from learnscope.record.finding import with_taken_in

SEED = 1
WHY = {"shortcut", "memorised", "not_generalising", "rate_in_wrong_group", "slow_head", "frozen", "not_optimised",
       "not_moving"}  # fmt: skip


@pytest.fixture(scope="module")
def story() -> Iterator[ModuleType]:
    path = Path(__file__).parents[2] / "examples" / "telemetry_siamese.py"
    spec = importlib.util.spec_from_file_location("telemetry_siamese", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    spec.loader.exec_module(module)
    yield module
    torch.set_num_threads(threads)
    del sys.modules[spec.name]


Build = Callable[[str, Any], tuple[Any, torch.optim.Optimizer]]


def rates_exchanged(build: Build, digits: Any) -> tuple[Any, torch.optim.Optimizer]:
    """Groups that hold what their names say, at each other's rates."""
    model, optimizer = build("healthy", digits)
    first, second = optimizer.param_groups
    first["lr"], second["lr"] = second["lr"], first["lr"]
    return model, optimizer


def left_out(build: Build, digits: Any) -> tuple[Any, torch.optim.Optimizer]:
    """A backbone that could be trained, and that nobody gave to the optimizer."""
    model, optimizer = build("frozen", digits)
    model.backbone.requires_grad_(True)
    return model, torch.optim.Adam(optimizer.param_groups[1:])


def at_rate_zero(build: Build, digits: Any) -> tuple[Any, torch.optim.Optimizer]:
    model, optimizer = build("frozen", digits)
    model.backbone.requires_grad_(True)
    optimizer.param_groups[0]["lr"] = 0.0
    return model, optimizer


BUILDERS = {"exchanged": rates_exchanged, "left out": left_out, "at rate 0": at_rate_zero}
EXPECTED = {
    "healthy": set(),
    "frozen": {"frozen", "memorised"},
    "leak": {"shortcut"},
    "swapped": {"rate_in_wrong_group", "memorised"},
    "exchanged": {"slow_head", "memorised"},
    "left out": {"not_optimised", "memorised"},
    "at rate 0": {"not_moving", "memorised"},
}


LIKE_OTHERS = {"exchanged": "swapped", "at rate 0": "left out"}
"""Variants told apart from another one by the same numbers: each takes seconds, and they are left to the soak."""


@pytest.mark.parametrize(
    "variant", [pytest.param(v, marks=pytest.mark.soak) if v in LIKE_OTHERS else v for v in EXPECTED]
)
def test_every_cause_has_a_finding_of_its_own(
    variant: str, story: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if variant in BUILDERS:
        original, instead = story.build, BUILDERS[variant]
        monkeypatch.setattr(story, "build", lambda _variant, digits: instead(original, digits))
    result = story.train(variant, SEED, tmp_path / "run")
    found = {finding.kind: finding for finding in with_taken_in(result.telemetry.run.findings())}
    assert set(found) & WHY == EXPECTED[variant]
    assert result.training > 0.8
    n = story.VALIDATION_PAIRS
    by_chance = stats.binomtest(round(n * result.validation), n).proportion_ci(method="wilson")
    if variant == "healthy":
        assert by_chance.low > 0.8
    else:
        assert by_chance.low <= 0.5 <= by_chance.high
        _said(variant, found)


def _said(variant: str, found: dict[str, Finding]) -> None:
    if variant in ("frozen", "left out", "at rate 0"):
        [cause] = [finding for kind, finding in found.items() if kind in EXPECTED[variant] - {"memorised"}]
        assert "the whole of backbone (6 layers, 29,536 of 38,114 parameters, 77.5 %)" in cause.detail
        assert "no better than guessing, 50 %" in cause.detail
        assert cause.severity == "warning"
    if variant == "at rate 0":
        assert "group backbone was 0 in all 120 measurements" in found["not_moving"].advice
    if variant == "leak":
        assert found["shortcut"].evidence.n == 40  # two batches of twenty, in the later half of the first epoch
    if variant == "swapped":
        assert "the group head (learning rate" in found["rate_in_wrong_group"].detail
        assert "holds backbone.0, backbone.1" in found["rate_in_wrong_group"].detail
    if "overfitting" in found:
        assert "is no way out" in found["overfitting"].advice


@pytest.mark.parametrize("variant", ["healthy", pytest.param("frozen", marks=pytest.mark.soak), "leak"])
def test_a_watched_run_says_the_same(variant: str, story: ModuleType) -> None:
    torch.manual_seed(SEED)
    digits = story.Digits(SEED)
    model, optimizer = story.build(variant, digits)
    training = digits.pairs(digits.training, story.TRAINING_PAIRS, leak=variant == "leak")
    validation = digits.pairs(digits.validation, story.VALIDATION_PAIRS)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.94)
    probes = [ls.BatchStats(every=1), ls.Holdout(every=5), ls.ParameterChange(every=5), ls.LearningRate(every=5)]
    groups = {"backbone": "backbone", "head": "head"}
    with ls.watch(model, optimizer, probes=probes, holdout=[validation], groups=groups) as w:
        for _ in range(20):
            for batch in digits.epoch(training):
                outputs = model(batch["img1"], batch["img2"])
                loss = nn.functional.cross_entropy(outputs, batch["winner"])
                optimizer.zero_grad()
                loss.backward()
                w.batch(batch)
                optimizer.step()
                w.log(loss=loss, accuracy=(outputs.argmax(1) == batch["winner"]).double().mean())
            w.end_epoch()
            scheduler.step()
    found = {finding.kind: finding for finding in w.run.findings()}
    assert set(found) & WHY == EXPECTED[variant]
    if variant == "leak":  # all ten batches of the first epoch were logged, of which five are its later half
        assert found["shortcut"].evidence.n == 100
