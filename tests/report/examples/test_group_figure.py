"""The figure of groups: what is drawn is what was recorded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.collections import PolyCollection, QuadMesh

import learnscope as ls
from findings.examples.spurious_digits import spurious_digits, train_digits
from findings.examples.test_spurious import measurement
from findings.made_run import MadeRun
from learnscope.record import Column, Table
from learnscope.report.by_kind import other_figure
from learnscope.report.examples.groups import group_figure
from learnscope.report.layout import save
from learnscope.report.panels import drawn
from report.test_other_figures import drawn as rendered
from report.test_other_figures import said


def made(groups: int, steps: int = 5, *, attribute: bool = False, by: str = "group", classes: int = 10) -> MadeRun:
    """Group k has accuracy (k + step)/100; the last is not measured at the second step."""
    run = MadeRun()
    for step in range(1, steps + 1):
        accuracy = [(k + step) / 100 if (k, step) != (groups - 1, 2) else None for k in range(groups)]
        examples = [40 + k for k in range(groups)]
        columns = [Column("accuracy", accuracy, {"by": by}), Column("examples", examples, {"by": by})]
        tables = [Table("group", [f"g{k}" for k in range(groups)], columns)]
        if attribute:
            values = measurement(0.9, step / 20, classes=classes)
            tables.append(Table("model", ["model"], [Column(name, [value]) for name, value in values.items()]))
        run.write("GroupAccuracy", step * 10, tables, phase="epoch")
    return run


def test_few_groups_are_lines() -> None:
    figure = rendered(group_figure(made(3, by="class").reader))
    [axes] = figure.axes
    np.testing.assert_allclose(axes.lines[0].get_ydata(), [0.01, 0.02, 0.03, 0.04, 0.05])
    np.testing.assert_allclose(axes.lines[2].get_ydata(), [0.03, np.nan, 0.05, 0.06, 0.07])
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert names == [f"class g{k} (n = {40 + k})" for k in range(3)]
    assert "3 classes, 5 measurements, steps 10 to 50; at the end 5 % (class g0) to 7 % (class g2)" in said(figure)
    assert figure.texts[0].get_text() == "Accuracy by class"


def test_many_groups_are_a_heatmap() -> None:
    figure = rendered(group_figure(made(9).reader))
    mesh = next(c for c in figure.axes[0].collections if isinstance(c, QuadMesh))
    values = np.ma.getdata(mesh.get_array()).reshape(9, 5)
    assert values[3].tolist() == pytest.approx([0.04, 0.05, 0.06, 0.07, 0.08])
    assert np.ma.getmaskarray(mesh.get_array()).reshape(9, 5)[8].tolist() == [False, True, False, False, False]
    assert mesh.get_clim() == (0, 1)
    long = rendered(group_figure(made(9, 1000).reader))
    assert "a column is the mean of 3" in said(long)


@pytest.mark.parametrize("groups", [3, 9])
def test_aligned_and_conflicting_examples_above(groups: int) -> None:
    figure = rendered(group_figure(made(groups, attribute=True).reader))
    top = figure.axes[0]
    np.testing.assert_allclose(top.lines[0].get_ydata(), [0.9] * 5)
    np.testing.assert_allclose(top.lines[1].get_ydata(), np.arange(1, 6) / 20)
    np.testing.assert_allclose(top.lines[2].get_ydata(), 1 - np.arange(1, 6) / 20)
    np.testing.assert_allclose(top.lines[3].get_ydata(), (1 - np.arange(1, 6) / 20) / 9)
    assert len([c for c in top.collections if isinstance(c, PolyCollection)]) == 2  # intervals
    assert "gap by what the group suggests 65 % (95 % interval" in said(figure)
    assert "100 and 900 examples" in said(figure)
    assert "V of group and class is 0.9" in said(figure)
    legend = top.get_legend().get_window_extent()
    assert legend.y0 >= top.get_window_extent().y1  # above the curves, not on them
    assert legend.x1 <= figure.bbox.x1
    assert figure.texts[-1].get_window_extent().y0 > legend.y1
    two = rendered(group_figure(made(groups, attribute=True, classes=2).reader))
    assert len(two.axes[0].lines) == 2


def test_one_measurement_is_in_the_heading() -> None:
    figure = rendered(group_figure(made(9, 1, attribute=True).reader))
    assert len(figure.axes) == 2  # cells and their colours
    assert "gap by what the group suggests 85 %" in said(figure)
    assert "at the end" not in said(figure)


def test_nothing_to_draw() -> None:
    assert group_figure(MadeRun().reader) is None
    null = MadeRun()
    null.write("GroupAccuracy", 10, [Table("group", ["a"], [Column("accuracy", [None])])])
    assert group_figure(null.reader) is None
    rates = MadeRun()
    rates.write("LearningRate", 10, [Table("group", ["g"], [Column("learning_rate", [0.1])])])
    assert group_figure(rates.reader) is None


def test_a_real_run_has_its_panel_and_no_other(tmp_path: Path) -> None:
    run = train_digits(spurious_digits(0), [ls.GroupAccuracy()], run=tmp_path / "run", epochs=6)
    text = run.report().read_text()
    assert "![Accuracy by group of examples](groups.png)" in text
    assert "The model follows the group" in text
    reader = made(3, attribute=True).reader
    assert [panel.file for panel, _ in drawn(reader)] == ["groups.png"]
    assert other_figure(reader) is None
    save(rendered(group_figure(reader)), tmp_path / "groups.png")
    assert (tmp_path / "groups.png").stat().st_size > 10_000
