"""Noise, classes and other numbers; steps that are not finite; where labels stand on a figure."""

from __future__ import annotations

import math

import numpy as np
import pytest
from matplotlib.collections import PolyCollection, QuadMesh
from matplotlib.figure import Figure

from findings.made_run import MadeRun
from learnscope.reading.gather import Grid, one_pass
from learnscope.reading.other_numbers import measured_once, other_numbers
from learnscope.record import Column, Table
from learnscope.report.broken import Breaks, breaks
from learnscope.report.by_kind import other_figure
from learnscope.report.gradients.batches import class_figure, noise_figure
from learnscope.report.heatmap import heatmap, layer_names
from learnscope.report.layout import BAR, head, new_figure
from learnscope.report.lines import change_figure, change_note, loss_figure, norm_figure, rate_figure, running_median
from learnscope.report.panels import gradient_heatmap, update_heatmap


def drawn(figure: Figure | None) -> Figure:
    assert figure is not None
    figure.canvas.draw()
    return figure


def said(figure: Figure) -> str:
    return " ".join(text.get_text() for text in figure.texts).replace("\n", " ")


def shares(run: MadeRun, step: int, by_class: dict[str, float]) -> None:
    run.write("BatchStats", step, [Table("class", list(by_class), [Column("share", list(by_class.values()))])])


def broken_run() -> MadeRun:
    """Gradients NaN in step 50 alone and from step 60 on, the loss from 61, the weights from 60."""
    run = MadeRun(layers=["a", "b"])
    for step in range(1, 101):
        bad = step == 50 or step >= 60
        run.loss(step, math.nan if step > 60 else 1.0)
        run.gradients(step, {"a": math.nan if bad else 0.1, "b": 0.1}, nan=3 if bad else 0)
        run.write("LearningRate", step, [Table("group", ["g"], [Column("learning_rate", [0.1])])])
        run.model("Mine", step, x=float(step))
    for step in range(10, 101, 10):
        run.change((step - 10, step), {"a.w": 0.0 if step > 60 else 1.0}, nan=4 if step >= 60 else 0)
        shares(run, step, {str(i): 1 / 8 for i in range(8)})
    return run


def test_the_noise_scale_with_its_unit() -> None:
    run = MadeRun()
    for step, value in ((1, 10.0), (2, None), (3, 40.0)):
        column = Column("noise_scale", [value], {"unit": "micro-batches"})
        run.write("GradientFlow", step, [Table("model", ["model"], [column])])
    figure = drawn(noise_figure(run.reader))
    np.testing.assert_array_equal(figure.axes[0].lines[0].get_ydata(), [10.0, np.nan, 40.0])
    for part in ("unit: micro-batches", "40 at step 3", "1 without a value"):
        assert part in said(figure)
    assert noise_figure(MadeRun().reader) is None


def test_few_classes_are_stacked_and_one_that_is_absent_has_no_share() -> None:
    run = MadeRun()
    shares(run, 10, {"0": 0.25, "1": 0.75})
    shares(run, 20, {"10": 1.0})
    figure = drawn(class_figure(run.reader))
    areas = [c for c in figure.axes[0].collections if isinstance(c, PolyCollection)]
    assert len(areas) == 3
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["class 0", "class 1", "class 10"]
    tops = [float(area.get_paths()[0].vertices[:, 1].max()) for area in areas]
    assert tops == pytest.approx([0.25, 1.0, 1.0])


def test_many_classes_are_a_heatmap_in_the_order_of_their_numbers() -> None:
    run = MadeRun()
    for step in (10, 20):
        shares(run, step, {str(i): (i + 1) / 78 for i in reversed(range(12))})
    figure = drawn(class_figure(run.reader))
    [mesh] = [c for c in figure.axes[0].collections if isinstance(c, QuadMesh)]
    np.testing.assert_allclose(np.asarray(mesh.get_array())[:, 0], np.arange(1, 13) / 78)
    assert [tick.get_text() for tick in figure.axes[0].get_yticklabels()] == [str(i) for i in range(12)]
    assert class_figure(MadeRun().reader) is None


def test_numbers_of_unknown_probes_and_other_logged_ones() -> None:
    run = MadeRun()
    for step in (1, 2, 3):
        run.model("Loss", step, loss=1.0, loss_std=0.1, reward=2.0 * step, train_accuracy=0.5)
        columns = [Column("x", [step * k], {"part": k}) for k in (1, 2)]
        run.write("Mine", step, [Table("model", ["model"], columns), Table("layer", ["a"], [Column("y", [1.0])])])
        run.model("Holdout", step, holdout_loss=1.0)
    run.model("Once", 1, size=1437.0)
    assert [number.title for number in other_numbers(run.reader, "model")] == ["reward", "Mine: x", "Once: size"]
    assert measured_once(run.reader) == ["Once: size 1,437"]
    figure = drawn(other_figure(run.reader))
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["reward", "Mine: x"]
    assert [line.get_label() for line in figure.axes[1].lines] == ["part 1", "part 2"]
    np.testing.assert_array_equal(figure.axes[1].lines[1].get_ydata(), [2, 4, 6])


def test_too_many_numbers_are_counted() -> None:
    run = MadeRun()
    for step in (1, 2):
        run.model("Mine", step, **{f"n{i}": float(i) for i in range(20)})
    figure = drawn(other_figure(run.reader))
    assert len(figure.axes) == 12
    assert "12 numbers; 8 more left out" in said(figure)
    assert other_figure(MadeRun().reader) is None


def test_the_steps_that_are_not_finite() -> None:
    found = breaks(broken_run().reader)
    assert found.spans == [(49.5, 50.5), (59.5, math.inf)]
    assert found.label == "not finite: loss, gradients, weights"
    assert breaks(MadeRun().reader).spans == []


@pytest.mark.parametrize("draw", [loss_figure, norm_figure, rate_figure, change_figure, other_figure, gradient_heatmap])
def test_they_are_shaded_in_every_figure(draw) -> None:
    run = one_pass(broken_run().reader)
    axes = drawn(draw(run)).axes[0]
    [cover] = [c for c in axes.collections if isinstance(c, PolyCollection) and not isinstance(c, QuadMesh)]
    boxes = [path.get_extents() for path in cover.get_paths()]
    assert [box.x0 for box in boxes] == [49.5, 59.5]
    assert boxes[0].x1 == 50.5
    assert boxes[1].x1 == axes.get_xlim()[1]  # to the end
    assert axes.get_xlim()[0] >= -10  # and what is shown is still the run


def test_a_figure_full_of_colours_has_a_band_above_it_and_a_legend() -> None:
    figure = drawn(class_figure(broken_run().reader))
    bands = [c for c in figure.axes[0].collections if isinstance(c, PolyCollection) and not isinstance(c, QuadMesh)]
    assert [path.get_extents().y0 for path in bands[0].get_paths()] == [1.0, 1.0]
    assert figure.legends[0].get_texts()[0].get_text() == "not finite: loss, gradients, weights"
    grid = Grid(np.array([10, 70]), ["a"], np.ones((2, 1)), np.zeros((2, 1), dtype=bool))
    plain = drawn(heatmap(grid, "t", "q", breaks=Breaks([(59.5, math.inf)], ["loss"])))
    assert plain.legends[0].get_texts()[0].get_text() == "not finite: loss"


def test_weights_that_are_nan_do_not_pass_for_frozen() -> None:
    run = broken_run().reader
    figure = drawn(change_figure(run))
    assert [text.get_text() for text in figure.axes[0].texts] == ["weights not finite\nfrom step 60 on"]
    assert "from step 60 on" in change_note(run)
    assert "broken rather than frozen" in change_note(run)
    fine = MadeRun()
    fine.change((0, 10), {"a": 0.5})
    assert change_note(fine.reader) == ""
    assert list(drawn(change_figure(fine.reader)).axes[0].texts) == []


@pytest.mark.parametrize("draw", [gradient_heatmap, update_heatmap])
@pytest.mark.parametrize("layers", [2, 40])
def test_a_colour_bar_is_as_wide_as_it_should_be_and_within_the_figure(draw, layers: int) -> None:
    run = MadeRun()
    names = [f"net.{i}" for i in range(layers)]
    for step in range(1, 141):
        norms = {name: math.nan if step > 60 else 10.0 ** (i % 5 - 3) * step for i, name in enumerate(names)}
        run.gradients(step, norms, nan=3 if step > 60 else 0)
        run.loss(step, 1.0 / step)
    run.change((0, 10), {"a": 0.5}, layers={name: 1e-3 * (i + 1) for i, name in enumerate(names)})
    figure = drawn(draw(run.reader))
    bar = figure.axes[-1]
    box = bar.get_window_extent()
    assert box.width / figure.dpi == pytest.approx(BAR, rel=0.05)
    assert bar.get_ylabel() == ""  # a long label beside a short bar would run past it
    whole = figure.bbox
    for artist in (bar.title, *bar.get_yticklabels(), *figure.axes[0].get_yticklabels(), *figure.texts):
        extent = artist.get_window_extent()
        assert extent.x0 >= whole.x0
        assert extent.x1 <= whole.x1


def test_long_facts_go_on_in_another_line_and_leave_the_axes_their_width() -> None:
    figure = new_figure(4)
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1])
    head(figure, "A title", "many facts " * 40)
    drawn(figure)
    assert figure.texts[1].get_window_extent().x1 <= figure.bbox.x1
    assert figure.texts[1].get_window_extent().y0 >= axes.get_window_extent().y1
    assert axes.get_window_extent().width > 0.85 * figure.bbox.width


def test_layers_with_numbers_for_names_get_their_class() -> None:
    types = {"0": "Linear", "2": "ReLU", "net.1": "Block"}
    assert layer_names(["0", "2", "4"], types) == (["0 Linear", "2 ReLU", "4"], "")
    assert layer_names(["net.0", "net.1"], types) == (["0", "1 Block"], "net")
    assert layer_names(["a.0", "b.0"], {"a.0": "Linear"}) == (["a.0", "b.0"], "")
    run = MadeRun(layers=["0", "2"], layer_types=types)
    run.gradients(1, {"0": 0.1, "2": 0.2})
    figure = drawn(gradient_heatmap(run.reader))
    assert [tick.get_text() for tick in figure.axes[0].get_yticklabels()] == ["0 Linear", "2 ReLU"]


@pytest.mark.parametrize("n", [1, 2, 5, 6, 40])
def test_the_running_median_is_that_of_the_neighbours_there_are(n: int) -> None:
    values = np.random.default_rng(n).normal(size=n)
    plain = [np.median(values[max(0, i - 2) : i + 3]) for i in range(n)]
    np.testing.assert_allclose(running_median(values, 5), plain)
