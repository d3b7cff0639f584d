"""The picture of dead and saturated units."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure

from findings.made_run import MadeRun
from learnscope.report.by_kind import other_figure
from learnscope.report.features.curves import activation_figure
from learnscope.report.layout import save
from learnscope.report.panels import drawn


def meshes(figure: Figure) -> list[QuadMesh]:
    return [a for axes in figure.axes[:2] for a in axes.collections if isinstance(a, QuadMesh)]


def made(steps: range = range(10, 60, 10)) -> MadeRun:
    layers = [f"net.layers.{i}" for i in range(4)]
    run = MadeRun(layers=layers)
    for step in steps:
        dead = {layer: min(1.0, i * step / 200) for i, layer in enumerate(layers)}
        run.activations(step, dead, {layer: min(1.0, share + 0.2) for layer, share in dead.items()})
    return run


def test_every_cell_holds_its_share_on_one_scale(tmp_path: Path) -> None:
    run = made()
    figure = activation_figure(run.reader)
    assert figure is not None
    dead, saturated = meshes(figure)
    expected = np.array([[min(1.0, i * step / 200) for step in range(10, 60, 10)] for i in range(4)])
    np.testing.assert_allclose(np.asarray(dead.get_array()), expected)
    np.testing.assert_allclose(np.asarray(saturated.get_array()), np.minimum(expected + 0.2, 1))
    assert [mesh.get_clim() for mesh in (dead, saturated)] == [(0, 1), (0, 1)]
    assert [axes.get_title(loc="left") for axes in figure.axes[:2]] == ["dead", "saturated"]
    assert figure.axes[0].get_ylim() == (4, 0)
    assert [label.get_text() for label in figure.axes[1].get_yticklabels()] == ["0", "1", "2", "3"]
    assert "4 layers of net.layers, 5 measurements, steps 10 to 50" in figure.texts[1].get_text().replace("\n", " ")
    save(figure, tmp_path / "figure.png")
    top, bottom, bar = figure.axes
    assert top.get_position().y0 > bottom.get_position().y1
    assert bar.get_position().x0 > top.get_position().x1


def test_missing_shares_are_blank_and_said() -> None:
    run = made(range(10, 40, 10))
    run.activations(40, {"net.layers.0": None})
    figure = activation_figure(run.reader)
    assert figure is not None
    dead = np.ma.getmaskarray(meshes(figure)[0].get_array())
    assert dead[:, 3].all()
    assert not dead[:, :3].any()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["no value"]


def test_many_measurements_share_columns_by_their_mean() -> None:
    run = MadeRun(layers=["a"])
    for step in range(1, 901):
        run.activations(step, {"a": None if step == 3 else float(step % 3 == 0)})
    figure = activation_figure(run.reader)
    assert figure is not None
    shown = np.asarray(meshes(figure)[0].get_array()).ravel()
    assert shown.shape == (300,)
    assert shown[0] == 0  # 1 was not measured, and does not count as 0
    assert math.isclose(shown[1], 1 / 3)
    assert "a column is the mean of 3" in figure.texts[1].get_text().replace("\n", " ")


def test_a_panel_of_its_own_and_nothing_without_data() -> None:
    run = made()
    assert "activations.png" in [panel.file for panel, _ in drawn(run.reader)]
    assert other_figure(run.reader) is None
    assert activation_figure(MadeRun().reader) is None
    empty = MadeRun()
    empty.activations(1, {"a": None})
    assert activation_figure(empty.reader) is None
