"""What the console sink prints, and when."""

from __future__ import annotations

import io
from typing import Any

import torch
from rich.console import Console
from torch import nn

import learnscope as ls


class Screen:
    """A sink with a clock and a screen of our own."""

    def __init__(self, **options: Any) -> None:
        self.now = 0.0
        self.text = io.StringIO()
        console = Console(file=self.text, width=200, highlight=False)
        self.sink = ls.ConsoleSink(console=console, clock=lambda: self.now, **options)

    @property
    def lines(self) -> list[str]:
        return self.text.getvalue().splitlines()


def record(step: int, error: str | None = None, kind: str = "model", **numbers: float | None) -> ls.Record:
    columns = [ls.Column(name, [value]) for name, value in numbers.items()]
    return ls.Record(
        probe="P", step=step, phase="after_step", source="watch", time=0.0, cost=0.0, error=error,
        tables=[ls.Table(kind, ["model"], columns)],
    )  # fmt: skip


def test_one_line_in_two_seconds_with_the_newest_values() -> None:
    screen = Screen()
    for step in range(1, 10):
        screen.now = 0.5 * step
        screen.sink.write(record(step, loss=1 / step, norm=float(step)))
    assert screen.lines == ["step      4  loss 0.25  norm 4", "step      8  loss 0.125  norm 8"]
    screen.sink.close()
    assert screen.lines[-1] == "step      9  loss 0.1111  norm 9", "the last values are not lost"
    screen.sink.close()
    assert len(screen.lines) == 3


def test_values_of_several_records_stand_in_one_line_in_the_order_of_the_names() -> None:
    screen = Screen(names=("holdout_loss", "loss"))
    screen.sink.write(record(3, loss=2.0, unknown=7.0))
    screen.sink.write(record(2, holdout_loss=0.123456789))
    screen.sink.write(record(3, kind="layer", loss=99.0))
    screen.sink.close()
    assert screen.lines == ["step      3  holdout_loss 0.1235  loss 2"]


def test_a_missing_value_is_not_a_number() -> None:
    screen = Screen()
    screen.sink.write(record(1, loss=None, norm=1e-12))
    screen.sink.close()
    assert screen.lines == ["step      1  loss n/a  norm 1e-12"]


def test_nothing_to_say_is_nothing_said() -> None:
    screen = Screen()
    screen.now = 10.0
    screen.sink.write(record(1, other=1.0))
    screen.sink.close()
    assert screen.lines == []


def test_errors_are_shown_at_once_and_are_no_markup() -> None:
    screen = Screen()
    screen.sink.write(record(5, error="ValueError: [red]odd[/] name"))
    assert screen.lines == ["step 5: P failed: ValueError: [red]odd[/] name"]


def test_in_a_real_run() -> None:
    screen = Screen(seconds=0.0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    probes = [ls.GradientFlow(every=1), ls.LearningRate(every=1), ls.Loss()]
    with ls.watch(model, optimizer, probes=probes, sinks=[screen.sink], strict=True) as w:
        for _ in range(2):
            loss = model(torch.ones(1, 3)).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=2.5)
    norm = (2 * 3 + 2) ** 0.5  # the gradient of the sum is 1 everywhere
    assert f"norm {norm:.4g}" in screen.lines[0]
    assert any("loss 2.5" in line for line in screen.lines)
