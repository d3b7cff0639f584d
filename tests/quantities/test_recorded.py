"""What runs hold is what is declared: names, what they are numbers of, and their labels."""

from __future__ import annotations

from pathlib import Path

import pytest

import learnscope as ls
from learnscope.quantities import declared
from learnscope.quantities.outputs import Loss
from learnscope.reading.gather import class_of

FOLDERS = sorted(path.parent for path in (Path(__file__).parents[1] / "earlier" / "folders").glob("*/run.json"))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_everything_that_a_run_recorded_is_declared(folder: Path) -> None:
    checked = 0
    for record in ls.open_run(folder).records():
        quantities = declared().get(class_of(record.probe))
        for table in record.tables if quantities is not None else ():
            for column in table.columns:
                assert quantities is not None
                quantity = quantities.of(column.name)
                assert quantity is not None, f"{record.probe} records {column.name}, which is not declared"
                assert table.kind in quantity.kinds, f"{record.probe}: {column.name} of a {table.kind}"
                assert set(column.labels) <= set(quantity.labels), f"{record.probe}: {column.name}, {column.labels}"
                checked += 1
    assert checked


def test_whatever_a_loop_logs_is_a_quantity_of_the_loss() -> None:
    kinds = {name: Loss.of(name) for name in ("loss", "accuracy", "loss_std", "train/accuracy", "x{y}", "reward")}
    assert kinds == {
        "loss": Loss.loss, "accuracy": Loss.accuracy, "loss_std": Loss.deviation, "train/accuracy": Loss.logged,
        "x{y}": Loss.logged, "reward": Loss.logged,
    }  # fmt: skip
    assert Loss.logged.at(key="x{y}").column([1.0]).name == "x{y}"
