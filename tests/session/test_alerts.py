"""Alerts while a model trains: real small trainings that break, each in one way, and one that is sound."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

import learnscope as ls
from learnscope.record import Finding, Record
from learnscope.record.finding import with_taken_in
from learnscope.session.telling import alerts as alerts_module

Change = Callable[[int, torch.Tensor, torch.Tensor, Any], tuple[torch.Tensor, torch.Tensor]]


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """These trainings take a second: what is judged once a second in a long one is judged at every writing here."""
    monkeypatch.setattr(alerts_module, "SHORTEST_PAUSE", 0.0)
    monkeypatch.setattr(alerts_module, "SHARE", 1e9)


def classes(n: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    inputs = torch.randn(n, 20, generator=torch.Generator().manual_seed(seed))
    return inputs, inputs[:, :3].argmax(1)


def train(
    steps: int, change: Change | None = None, *, lr: float = 3e-3, data: int = 512, batch: int = 32, width: int = 32,
    optimizer: type[torch.optim.Optimizer] = torch.optim.Adam, watched: bool = True, **options: Any,
) -> tuple[torch.nn.Module, list[float], Any]:  # fmt: skip
    """The model, the losses and the session of a small classifier that is trained for some steps."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(20, width), torch.nn.ReLU(), torch.nn.Linear(width, 3))
    steps_of = optimizer(model.parameters(), lr=lr)  # type: ignore[call-arg]
    inputs, targets = classes(data)
    w = ls.watch(model, steps_of, write_every=5, **options) if watched else None
    losses: list[float] = []
    try:
        for step in range(1, steps + 1):
            chosen = torch.randint(0, data, (batch,))
            x, y = inputs[chosen], targets[chosen]
            if change is not None:
                x, y = change(step, x, y, steps_of)
            steps_of.zero_grad()
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            steps_of.step()
            losses.append(float(loss.detach()))
            if w is not None:
                w.log(loss=loss)
                if w.should_stop:
                    break
    finally:  # also when an alert raises
        if w is not None:
            w.close()
    return model, losses, w


def nan_at(broken: int) -> Change:
    return lambda step, x, y, _: (torch.where(torch.tensor(step == broken), torch.nan, x), y)


def kinds(findings: list[Finding]) -> list[str]:
    return [finding.kind for finding in with_taken_in(findings)]


def test_a_nan_is_told_within_a_few_steps_once_and_to_all(capsys: pytest.CaptureFixture[str]) -> None:
    at: list[tuple[int, list[str]]] = []
    seen: list[str] = []

    class Sink:
        def write(self, record: Record) -> None: ...
        def alert(self, finding: Finding) -> None:
            seen.extend(kinds([finding]))

        def close(self) -> None: ...

    taken = [0]

    def count(step: int, x: torch.Tensor, y: torch.Tensor, _: Any) -> tuple[torch.Tensor, torch.Tensor]:
        taken[0] = step
        return nan_at(40)(step, x, y, _)

    _, _, w = train(56, count, alerts=[lambda finding: at.append((taken[0], kinds([finding])))], sinks=[Sink()])
    assert [told for _, told in at] == [["data_not_finite", "nonfinite"]], "with its cause"
    assert seen == at[0][1] == kinds(w.alerts)
    assert 40 <= at[0][0] <= 44, "when it happened, not at the end"
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("learnscope:")]
    assert len(lines) == 1
    assert "critical" in lines[0]
    assert "inputs themselves are not finite" in lines[0]


def test_a_nan_is_told_at_once_though_the_next_judgement_is_not_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alerts_module, "SHORTEST_PAUSE", 1e6)
    _, losses, w = train(80, nan_at(40), stop_on=("nonfinite",))
    assert 40 <= len(losses) <= 44
    assert w.should_stop


def test_a_spike_is_told() -> None:
    def one_bad_batch(step: int, x: torch.Tensor, y: torch.Tensor, _: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return (60 * x if step == 80 else x), ((y + 1) % 3 if step == 80 else y)

    _, _, w = train(140, one_bad_batch, alerts=True)
    assert set(kinds(w.alerts)) & {"bad_batch", "loss_spike"}
    assert all(80 <= (finding.begins or 0) <= 82 for finding in w.alerts), w.alerts


def test_a_divergence_is_told_and_stops_the_loop() -> None:
    def rate_rises(step: int, x: torch.Tensor, y: torch.Tensor, optimizer: Any) -> tuple[torch.Tensor, torch.Tensor]:
        if step > 120:
            optimizer.param_groups[0]["lr"] = 1.0
        return x, y

    _, losses, w = train(400, rate_rises, optimizer=torch.optim.Adam, stop_on=("diverging",))
    assert "diverging" in kinds(w.alerts)
    assert w.should_stop
    assert 120 < len(losses) < 300


def test_a_model_that_does_not_learn_is_told() -> None:
    def shuffled(step: int, x: torch.Tensor, y: torch.Tensor, _: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return x, torch.randint(0, 3, y.shape, generator=torch.Generator().manual_seed(step))

    _, _, w = train(300, shuffled, lr=1e-4, alerts=True)
    assert "not_learning" in kinds(w.alerts)


def noisy_holdout() -> list[Any]:
    inputs, targets = classes(256, seed=1)
    return [(inputs, torch.where(torch.rand(256, generator=torch.Generator().manual_seed(2)) < 0.3, 0, targets))]


def test_overfitting_is_told_where_there_is_a_holdout() -> None:
    probes = [ls.Loss(), ls.Holdout(every=10)]
    _, _, w = train(260, data=96, width=256, lr=2e-3, alerts=True, holdout=noisy_holdout(), probes=probes)
    assert "overfitting" in kinds(w.alerts)
    assert "overfitting" in kinds(list(w.run.findings()))


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in (1, 2))])
def test_a_healthy_run_stays_quiet(seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    holdout = [classes(256, seed=seed + 1)]
    _, losses, w = train(300, alerts=True, stop_on=alerts_module.NAMES, holdout=holdout)
    assert losses[-1] < 0.5 * losses[0]
    assert w.alerts == []
    assert not w.should_stop
    assert "learnscope:" not in capsys.readouterr().err


def test_a_run_with_alerts_is_bit_identical(tmp_path: Path) -> None:
    plain_model, plain, _ = train(80, watched=False)
    model, losses, _ = train(80, alerts=True, run=tmp_path / "r")
    assert losses == plain
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), plain_model.parameters(), strict=True))


def test_stopping_by_an_exception_only_if_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ls.TrainingStopped, match="not finite") as stopped:
        train(40, nan_at(30), stop_on=["nonfinite"], raise_on_stop=True, run=tmp_path / "r")
    assert "nonfinite" in kinds([stopped.value.finding])
    assert ls.open_run(tmp_path / "r").last_step in range(30, 35)
    _, losses, w = train(40, nan_at(30), alerts=True)
    assert len(losses) == 40
    assert not w.should_stop


def test_the_same_is_told_as_the_run_says_afterwards(tmp_path: Path) -> None:
    _, _, w = train(50, nan_at(40), alerts=True, run=tmp_path / "r")
    assert w.alerts[0].fingerprint in {finding.fingerprint for finding in ls.open_run(tmp_path / "r").findings()}


def test_what_an_earlier_attempt_told_is_not_told_again(tmp_path: Path) -> None:
    train(50, nan_at(40), alerts=True, run=tmp_path / "r")
    with pytest.warns(ls.ProbeWarning, match="no state was saved"):
        _, _, w = train(20, alerts=True, run=tmp_path / "r", resume=True)
    assert "nonfinite" not in kinds(w.alerts)
    assert "nonfinite" in kinds(list(w.run.findings()))


def test_a_callback_that_fails_is_a_warning() -> None:
    def fails(finding: Finding) -> None:
        raise KeyError("mine")

    with pytest.warns(ls.ProbeWarning, match="mine"):
        _, losses, w = train(40, nan_at(30), alerts=fails)
    assert len(losses) == 40
    assert "nonfinite" in kinds(w.alerts)


def test_judging_keeps_to_its_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the time after the first judgement, whose pause is a hundred times as long as it took."""
    monkeypatch.setattr(alerts_module, "SHARE", 0.01)
    _, _, w = train(30, alerts=True)
    judged = w._alerts
    cost, now = judged.cost, time.perf_counter()
    assert judged._next - now > 50 * (cost / 100), "the last judgement alone sets the pause"
    judged.look()
    assert judged.cost == cost, "it is not due"


@pytest.mark.parametrize(
    ("options", "said"),
    [({"stop_on": ["nan"]}, "stop_on='nan'"), ({"stop_on": ["divering"]}, "did you mean 'diverging'"),
     ({"raise_on_stop": True}, "needs the alerts to stop on")],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        train(1, **options)
