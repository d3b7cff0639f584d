"""What is drawn, asked of the figures themselves rather than of their pixels."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from matplotlib.collections import QuadMesh
from matplotlib.colors import to_rgba

from findings.made_run import MadeRun
from learnscope.quantities.gradients import GradientFlow
from learnscope.quantities.outputs import Loss
from learnscope.reading.gather import Grid, Series, grid, one_pass, series
from learnscope.record import Column, Table
from learnscope.report.heatmap import cells, heatmap, layer_names
from learnscope.report.lines import change_figure, loss_figure, loss_note, norm_figure, rate_figure, running_median
from learnscope.report.outputs.confusion import confusion_figure, confusion_table
from learnscope.report.panels import gradient_heatmap, update_heatmap
from learnscope.report.style import BROKEN, ZERO, log_ticks, plain, step_edges


def make_grid(steps: list[int], layers: int, values: np.ndarray | None = None) -> Grid:
    shape = (len(steps), layers)
    filled = np.arange(1.0, 1 + shape[0] * shape[1]).reshape(shape) if values is None else values
    broken = np.isinf(filled)
    names = [f"net.h.{i}" for i in range(layers)]
    return Grid(np.array(steps), names, np.where(broken, np.nan, filled), broken)


def facts(figure) -> str:
    return figure.texts[1].get_text().replace("\n", " ")


def meshes(figure) -> list[QuadMesh]:
    axes = next(axes for axes in figure.axes if axes.get_xlabel() == "step")
    return [artist for artist in axes.collections if isinstance(artist, QuadMesh)]


def test_every_cell_holds_its_value_at_its_steps() -> None:
    found = make_grid([10, 20, 40], 2)
    figure = heatmap(found, "t", "q")
    [mesh] = meshes(figure)
    np.testing.assert_allclose(np.asarray(mesh.get_array()), found.values.T)
    edges = mesh.get_coordinates()[0, :, 0]
    np.testing.assert_array_equal(edges, [5, 15, 30, 50])  # halfway, in steps
    assert figure.axes[0].get_ylim() == (2, 0)  # the first layer on top


def test_special_cells_have_colours_of_their_own() -> None:
    values = np.array([[1.0, 0.0, math.inf], [1.0, 2.0, math.nan], [2.0, 2.0, 3.0]])
    figure = heatmap(make_grid([1, 2, 3], 3, values), "t", "q")
    main, zero, broken = meshes(figure)
    assert np.ma.getmaskarray(main.get_array()).sum() == 3  # zero, infinite, not measured
    assert tuple(zero.cmap(0.0)) == pytest.approx(to_rgba(ZERO))
    assert tuple(broken.cmap(0.0)) == pytest.approx(to_rgba(BROKEN))
    assert (~np.ma.getmaskarray(zero.get_array())).nonzero() == ([1], [0])
    assert (~np.ma.getmaskarray(broken.get_array())).nonzero() == ([2], [0])
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["exactly zero", "NaN or infinite", "no value"]


def test_a_healthy_heatmap_has_no_legend() -> None:
    assert heatmap(make_grid([1, 2], 2), "t", "q").legends == []


def test_many_columns_share_one_by_their_geometric_mean() -> None:
    values = np.tile(np.array([[1.0], [100.0]]), (450, 1))
    values[7, 0] = math.inf
    values[10, 0] = 0.0
    drawn = cells(make_grid(list(range(900)), 1, values), max_columns=400)
    assert drawn.per_column == 3
    assert drawn.values.shape == (300, 1)
    assert len(drawn.edges) == 301
    np.testing.assert_allclose(drawn.values[0, 0], 10 ** (2 / 3))
    assert drawn.broken[:, 0].nonzero()[0].tolist() == [2]
    assert not drawn.zero.any()  # its neighbours in the column are not zero


def test_a_burst_does_not_take_the_colours_of_the_rest() -> None:
    values = np.full((200, 3), 1.0)
    values[:, 1] = 10.0
    values[100, 2] = 1e30
    [mesh] = meshes(heatmap(make_grid(list(range(200)), 3, values), "t", "q"))
    assert mesh.norm.vmax == pytest.approx(10.0)


@pytest.mark.parametrize(("layers", "named"), [(1, 1), (3, 3), (30, 30), (120, 41), (400, None)])
def test_names_are_thinned_until_they_fit(layers: int, named: int | None) -> None:
    figure = heatmap(make_grid([1, 2], layers), "t", "q")
    axes = figure.axes[0]
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels[0].endswith("0")
    assert labels[-1].endswith(str(layers - 1)) or layers > 120
    if named is not None:
        assert len(labels) == named
    figure.canvas.draw()
    boxes = sorted((label.get_window_extent() for label in axes.get_yticklabels()), key=lambda box: box.y0)
    overlaps = [low.y1 - high.y0 for low, high in itertools.pairwise(boxes)]
    assert max(overlaps, default=0) <= 2  # pixels


def test_one_measurement_and_zero_everywhere_can_be_drawn() -> None:
    figure = heatmap(make_grid([7], 4), "t", "q")
    assert [tick.get_text() for tick in figure.axes[0].get_xticklabels()] == ["7"]
    only_zero = heatmap(make_grid([1, 2], 2, np.zeros((2, 2))), "t", "q")
    assert len(meshes(only_zero)) == 1


def test_the_loss_stands_above_on_the_same_steps() -> None:
    loss = Series(np.arange(1, 5), np.array([4.0, 3.0, 2.0, np.nan]), [None, None, None, "nan"])
    figure = heatmap(make_grid([1, 2, 4], 2), "t", "q", loss)
    top, below = figure.axes[:2]
    assert top.get_xlim() == below.get_xlim()
    np.testing.assert_array_equal(top.lines[0].get_ydata(), [4.0, 3.0, 2.0])


def full_run() -> MadeRun:
    run = MadeRun(layers=["a", "b"])
    for step in range(1, 21):
        run.loss(step, 10.0 / step)
        run.gradients(step, {"a": 3.0 / step, "b": 4.0 / step}, clip=1.0)
        rates = Column("learning_rate", [1e-3, 1e-4 * step])
        run.write("LearningRate", step, [Table("group", ["g0", "g1"], [rates])], phase="before_step")
    for step in (5, 10, 15, 20):
        run.change((step - 5, step), {"a.w": 0.5, "b.w": 0.25}, layers={"a": 1e-3, "b": 1e-4})
        labels, predictions = [0, 0, 1, 1, -100], [0, 1, 1, 1, 3]
        columns = [Column("holdout_loss", [3.0 / step]), Column("holdout_accuracy", [0.75])]
        arrays = {"labels": labels, "predictions": predictions, "losses": [1.0] * 5, "example": range(5)}
        run.write("Holdout", step, [Table("model", ["model"], columns)], arrays=arrays)
    return run


def test_the_loss_figure() -> None:
    figure = loss_figure(full_run().reader)
    assert figure is not None
    loss, accuracy = figure.axes
    training, holdout, best = loss.lines
    np.testing.assert_allclose(training.get_ydata(), 10.0 / np.arange(1, 21))
    np.testing.assert_array_equal(holdout.get_xdata(), [5, 10, 15, 20])
    assert (best.get_xdata(), best.get_ydata()) == ([20], [0.15])
    np.testing.assert_allclose(accuracy.lines[0].get_ydata(), [0.75] * 4)


def test_another_loss_than_the_training_s_has_axes_of_its_own() -> None:
    run = MadeRun()
    for step in range(1, 21):
        run.loss(step, 2.0 / step)
    for step in (5, 10, 15):
        run.holdout(step, None, mean=30.0 / step, accuracy=0.5, stand_in="squared error")
    figure = loss_figure(run.reader)
    assert figure is not None
    training, holdout, _ = figure.axes
    assert [axes.get_ylabel() for axes in figure.axes] == ["loss", "squared error", "accuracy"]
    assert [line.get_label() for line in training.lines] == ["training"]
    np.testing.assert_allclose(holdout.lines[0].get_ydata(), [6, 3, 2])
    assert [axes.get_xlabel() for axes in figure.axes] == ["", "", "step"]
    assert "holdout, squared error, 6 to 2" in facts(figure)
    assert "not to be compared" in loss_note(run.reader)
    run.loss(21, 0.1)
    run.holdout(21, None, mean=0.2)
    assert loss_note(run.reader) == ""
    assert len(loss_figure(run.reader).axes) == 2  # type: ignore[union-attr]  # known by now: beside the training's


def test_a_stand_in_alone_is_named_on_its_axis() -> None:
    run = MadeRun()
    for step in (5, 10, 15):
        run.holdout(step, None, mean=30.0 / step, stand_in="squared error")
    figure = loss_figure(run.reader)
    assert figure is not None
    assert [axes.get_ylabel() for axes in figure.axes] == ["squared error"]
    assert loss_note(run.reader) == ""


def test_logged_accuracies_stand_beside_the_holdouts() -> None:
    run = full_run()
    for step in range(1, 21):
        run.write("Loss", step, [Table("model", ["model"], [
            Column("train_accuracy", [step / 20]), Column("train_accuracy_std", [9]),
            Column("top5_accuracy", [5.0 * step]),
        ])])  # fmt: skip
    figure = loss_figure(run.reader)
    assert figure is not None
    lines = {str(line.get_label()): line for line in figure.axes[1].lines}
    assert list(lines) == ["train_accuracy", "top5_accuracy ÷ 100", "holdout"]
    np.testing.assert_allclose(lines["train_accuracy"].get_ydata(), np.arange(1, 21) / 20)
    np.testing.assert_allclose(lines["top5_accuracy ÷ 100"].get_ydata(), np.arange(1, 21) / 20)
    assert figure.axes[1].get_xscale() == "linear"


def test_the_norm_figure_marks_the_clipped_steps() -> None:
    figure = norm_figure(full_run().reader)
    assert figure is not None
    before, stepped, clipped = figure.axes[0].lines
    np.testing.assert_allclose(before.get_ydata(), 5.0 / np.arange(1, 21))
    np.testing.assert_allclose(stepped.get_ydata(), np.minimum(1.0, 5.0 / np.arange(1, 21)))
    np.testing.assert_array_equal(clipped.get_xdata(), [1, 2, 3, 4])
    assert "clipped in 4 of 20 (20 %)" in facts(figure)


def test_rates_changes_and_updates() -> None:
    run = one_pass(full_run().reader)
    rates, change, updates = rate_figure(run), change_figure(run), update_heatmap(run)
    assert rates is not None
    assert change is not None
    assert updates is not None
    assert [line.get_label() for line in rates.axes[0].lines] == ["g0", "g1"]
    np.testing.assert_allclose(rates.axes[0].lines[1].get_ydata(), 1e-4 * np.arange(1, 21))
    visible, tight, loose = change.axes[0].lines
    np.testing.assert_allclose(visible.get_ydata(), 0.375)
    assert "10⁻⁸" in str(tight.get_label())
    np.testing.assert_allclose(loose.get_ydata(), 0.3)
    np.testing.assert_allclose(np.asarray(meshes(updates)[0].get_array())[:, 0], [1e-3, 1e-4])


def test_an_infinite_ratio_over_zero_weights_is_no_breakage() -> None:
    run = MadeRun()
    ratio = Column("update_to_weight", [math.inf, 0.1])
    for step, nan in ((1, 0), (2, 5)):
        counts = [Column("nan", [0, nan]), Column("inf", [0, 0])]
        run.write("ParameterChange", step, [Table("layer", ["a", "b"], [ratio, *counts])])
    figure = update_heatmap(run.reader)
    assert figure is not None
    _, broken = meshes(figure)
    assert np.argwhere(~np.ma.getmaskarray(broken.get_array())).tolist() == [[1, 1]]


def test_the_confusion_table_leaves_padding_out() -> None:
    run = full_run().reader
    found = confusion_table(run)
    assert found is not None
    step, classes, table, none = found
    assert (step, classes, table.tolist(), none.tolist()) == (20, [0, 1], [[1, 1], [0, 2]], [0, 0])
    figure = confusion_figure(run)
    assert figure is not None
    assert [text.get_text() for text in figure.axes[0].texts] == ["1", "1", "2"]  # cells without examples stay empty
    assert [tick.get_text() for tick in figure.axes[0].get_xticklabels()] == ["0", "1"]


def test_examples_without_a_prediction_are_no_class() -> None:
    run = MadeRun()
    run.write("Holdout", 5, arrays={"labels": np.array([0, 1, 1, 2]), "predictions": np.array([0, -1, 1, -1])})
    found = confusion_table(run.reader)
    assert found is not None
    assert found.classes == [0, 1, 2]
    assert found.none.tolist() == [0, 1, 1]
    figure = confusion_figure(run.reader)
    assert figure is not None
    assert [tick.get_text() for tick in figure.axes[0].get_xticklabels()] == ["0", "1", "2", "none"]
    assert "2 of 4 right" in facts(figure)
    assert "2 without a prediction" in facts(figure)


def test_a_model_that_predicts_nothing_at_all() -> None:
    run = MadeRun()
    run.write("Holdout", 5, arrays={"labels": np.array([0, 1, 1]), "predictions": np.array([-1, -1, -1])})
    found = confusion_table(run.reader)
    assert found is not None
    assert (found.counts.sum(), found.none.tolist()) == (0, [1, 2])


@pytest.mark.parametrize("labels", [[0.5, 1.5], [-100, -100], [3, 3], list(range(30))])
def test_no_confusion_where_there_are_no_few_classes(labels: list[float]) -> None:
    run = MadeRun()
    run.write("Holdout", 1, arrays={"labels": np.array(labels), "predictions": np.array(labels)})
    assert confusion_figure(run.reader) is None


def test_nothing_recorded_nothing_drawn() -> None:
    run = MadeRun().reader
    draw = (gradient_heatmap, update_heatmap, loss_figure, norm_figure, rate_figure, change_figure, confusion_figure)
    assert [function(run) for function in draw] == [None] * len(draw)


def test_grids_keep_the_models_order_and_tell_null_from_nan() -> None:
    run = MadeRun(layers=["first", "second", "third"])
    run.gradients(1, {"third": 3.0, "first": 1.0})
    run.gradients(2, {"second": None, "third": math.nan, "first": 1.0})
    found = grid(run.reader, GradientFlow.norm, stage="stepped")
    assert found.scopes == ["first", "second", "third"]
    np.testing.assert_array_equal(found.values, [[1, np.nan, 3], [1, np.nan, np.nan]])
    assert found.broken.tolist() == [[False, False, False], [False, False, True]]


def test_small_helpers() -> None:
    assert step_edges(np.array([7])).tolist() == [6.5, 7.5]
    assert step_edges(np.array([1, 2, 4, 8])).tolist() == [0.5, 1.5, 3, 6, 10]
    assert layer_names(["a.b.0", "a.b.1"], {}) == (["0", "1"], "a.b")
    assert layer_names(["a.b", "a.b.c"], {}) == (["b", "b.c"], "a")
    assert layer_names(["only"], {}) == (["only"], "")
    assert log_ticks(1e-4, 1e2) == pytest.approx([1e-4, 1e-3, 1e-2, 0.1, 1, 10, 100])
    assert len(log_ticks(1e-30, 1e30)) <= 9
    assert log_ticks(0.04, 0.6) == pytest.approx([0.05, 0.1, 0.2, 0.5])
    assert plain(5e-4) == "5·10⁻⁴"
    np.testing.assert_allclose(running_median(np.array([1.0, 9.0, 2.0, 3.0]), 3), [5, 2, 3, 2.5])
    assert len(series(MadeRun().reader, Loss.loss)) == 0
