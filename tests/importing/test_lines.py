"""Lines that are made by a form are those that each record would be written as."""

from __future__ import annotations

import numpy as np
import pytest

from learnscope.importing import lines
from learnscope.importing.lines import Maker, Values, tables
from learnscope.importing.names import GRADIENT, RATE, Target
from learnscope.quantities.outputs import Loss
from learnscope.record import Record


@pytest.mark.parametrize("odd", ["100 % %s {x}", "1.00001e+301", "\u202e\x1b", "é"])
def test_lines_are_those_of_records(odd: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "BLOCK", 17)
    generator = np.random.default_rng(0)
    second = Target(RATE.quantity, kind="group", scope="group_1")
    targets = [RATE, Target(Loss.loss), Target(Loss.logged.at(key="x")), second, GRADIENT]
    targets[2] = Target(type(Loss.logged)("", name=odd, probe="Loss"))
    columns, cells = [], dict[int, list[tuple[Target, float, float]]]()
    for target in targets:
        steps = np.sort(generator.choice(200, 120, replace=False)).astype(np.int64) - 5
        values = generator.standard_normal(120) * 10.0 ** generator.integers(-320, 300, 120)
        values[generator.integers(0, 120, 9)] = [np.nan, np.inf, -np.inf, 0.0, -0.0, 5e-324, 1e22, 1.7e308, 123456789.0]
        times = np.where(generator.random(120) < 0.5, np.nan, 1.7e9 + generator.random(120))
        columns.append(Values(target, steps, values, times))
        for step, value, time in zip(steps.tolist(), values.tolist(), times.tolist(), strict=True):
            cells.setdefault(step, []).append((target, value, time))
    epochs = {step: step // 10 for step in range(0, 100)}
    made = [line for block, _ in Maker("Loss", 3, epochs, 12.5).blocks(columns) for line in block]
    expected = []
    for step in sorted(cells):
        times = [time for _, _, time in cells[step] if time == time]
        record = Record(
            probe="Loss", step=step, epoch=epochs.get(step), phase="after_step", source="import", attempt=3,
            time=max(times, default=12.5), cost=0.0,
            tables=tables([t for t, _, _ in cells[step]], [value for _, value, _ in cells[step]]),
        )  # fmt: skip
        expected.append(record.to_json())
    assert made == expected
    assert all(Record.from_json(line).attempt == 3 for line in made)
