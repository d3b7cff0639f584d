"""The pictures of sparse and low-rank updates, of the optimizer's moments and of the loss's sharpness."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from findings.made_run import MadeRun, Number
from learnscope.reading.other_numbers import measured_once
from learnscope.record import Column, Label, Table
from learnscope.report.by_kind import other_figure
from learnscope.report.layout import save
from learnscope.report.panels import drawn
from learnscope.report.updates.optimizer import landscape_figure, momentum_figure
from learnscope.report.updates.reduced import low_rank_figure, sparse_figure

Cell = tuple[str, Mapping[str, Label], Number]
MASKS = ("magnitude", "random", "random_changed")


def write(run: MadeRun, probe: str, step: int, cells: list[Cell]) -> None:
    columns = [Column(name, [value], labels) for name, labels, value in cells]
    run.write(probe, step, [Table("model", ["model"], columns)], notes={"span": [step - 100, step]})


def sparse(run: MadeRun, step: int, kl: Mapping[float, Number], kept: Mapping[float, float],
           probe: str = "SparseQuality", name: str = "kl") -> None:  # fmt: skip
    """The baselines are ten times worse."""
    cells: list[Cell] = []
    for threshold, far in kl.items():
        for mask in MASKS:
            labels = {"threshold": threshold, "mask": mask}
            value = far if far is None or mask == "magnitude" else 10 * far
            cells += [(name, labels, value), ("kept_share", labels, kept[threshold])]
    write(run, probe, step, cells)


def low_rank(run: MadeRun, step: int, kl: Mapping[int, Number], best: Number, probe: str = "LowRankQuality") -> None:
    cells: list[Cell] = [("kl", {"rank": rank}, far) for rank, far in kl.items()]
    cells += [("energy_captured", {"rank": rank}, rank / 10) for rank in kl if rank]
    write(run, probe, step, [*cells, ("recommended_rank", {"kl_bound": 1e-3}, best)])


def shown(figure: Figure | None, path: Path) -> Figure:
    """Drawn to a file, so that what matplotlib refuses to draw is seen."""
    assert figure is not None
    save(figure, path / "figure.png")
    return figure


def line(axes: Axes, label: str) -> Line2D:
    [found] = [one for one in axes.lines if one.get_label() == label]
    return found


def said(figure: Figure) -> str:
    return figure.texts[1].get_text().replace("\n", " ")


def hollow(axes: Axes) -> list[tuple[float, float]]:
    return [
        (float(x), float(y))
        for one in axes.lines
        if one.get_markerfacecolor() == "white"
        for x, y in zip(one.get_xdata(), one.get_ydata(), strict=True)
    ]


def test_sparse_by_what_is_kept_and_over_the_steps(tmp_path: Path) -> None:
    run = MadeRun()
    kept = {1e-8: 0.5, 1e-6: 0.02, 1e-4: 1e-4}
    sparse(run, 100, {1e-8: 1e-7, 1e-6: 1e-5, 1e-4: 1e-3}, kept)
    sparse(run, 200, {1e-8: 0.0, 1e-6: 2e-5, 1e-4: 2e-3}, kept)
    figure = shown(sparse_figure(run.reader), tmp_path)
    left, right = figure.axes
    assert (left.get_xscale(), left.get_yscale(), right.get_yscale()) == ("log", "log", "log")
    largest = line(left, "the largest changes")
    np.testing.assert_array_equal(largest.get_xdata(), [0.5, 0.02, 1e-4])
    np.testing.assert_allclose(np.asarray(largest.get_ydata())[1:], [2e-5, 2e-3])
    for name in ("as many of all, at random", "as many of the changed, at random"):
        np.testing.assert_allclose(np.asarray(line(left, name).get_ydata())[1:], [2e-4, 2e-2])
    foot = float(np.asarray(largest.get_ydata())[0])
    assert 0 < foot < 2e-5
    assert (0.5, foot) in hollow(left)
    assert foot in [float(tick) for tick in left.get_yticks()]
    assert "0" in [label.get_text() for label in left.get_yticklabels()]
    assert {text.get_text() for text in left.texts} == {"t = 10⁻⁸", "t = 10⁻⁶", "t = 10⁻⁴"}
    np.testing.assert_allclose(line(right, "t = 10⁻⁴").get_ydata(), [1e-3, 2e-3])
    assert [x for x, _ in hollow(right)] == [200]
    assert "last of 2 measurements: steps 100 to 200" in said(figure)
    assert said(figure).count("open marks: 0") == 1


def test_shares_alike_are_on_a_linear_scale_and_labels_together(tmp_path: Path) -> None:
    run = MadeRun()
    sparse(run, 100, {1e-8: 1e-9, 1e-6: 1.1e-9, 1e-4: 1e-3}, {1e-8: 1.0, 1e-6: 0.999, 1e-4: 0.7})
    left, right = shown(sparse_figure(run.reader), tmp_path).axes
    assert left.get_xscale() == "linear"
    assert max(left.get_xticks()) <= 1
    assert {text.get_text() for text in left.texts} == {"t = 10⁻⁸, 10⁻⁶", "t = 10⁻⁴"}
    assert [label.get_text() for label in right.get_xticklabels()] == ["100"]
    assert line(right, "t = 10⁻⁴").get_marker() == "o"


def test_outputs_all_equal_and_nothing_kept(tmp_path: Path) -> None:
    run = MadeRun()
    sparse(run, 100, {1e-8: 0.0, 1e-6: 0.0}, {1e-8: 0.0, 1e-6: 0.0})
    figure = shown(sparse_figure(run.reader), tmp_path)
    assert [axes.get_yscale() for axes in figure.axes] == ["linear", "linear"]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["0"]
    assert "open marks" not in said(figure)


def test_nulls_leave_gaps_and_the_last_measurement_with_values_is_shown(tmp_path: Path) -> None:
    run = MadeRun()
    kept = {1e-6: 0.1, 1e-4: 0.01}
    sparse(run, 100, {1e-6: 1e-5, 1e-4: math.inf}, kept)
    sparse(run, 200, {1e-6: None, 1e-4: math.nan}, kept)
    figure = shown(sparse_figure(run.reader), tmp_path)
    np.testing.assert_allclose(line(figure.axes[0], "the largest changes").get_ydata(), [1e-5])
    np.testing.assert_array_equal(line(figure.axes[1], "t = 10⁻⁶").get_ydata(), [1e-5, np.nan])
    assert "steps 0 to 100" in said(figure)
    assert "9 of 12 KLs without a value" in said(figure)


def test_regression_has_a_difference_instead_of_a_kl(tmp_path: Path) -> None:
    run = MadeRun()
    sparse(run, 100, {1e-6: None}, {1e-6: 0.1})
    assert sparse_figure(run.reader) is None
    sparse(run, 100, {1e-6: 0.5}, {1e-6: 0.1}, name="mse")
    figure = shown(sparse_figure(run.reader), tmp_path)
    assert "squared" in figure.axes[0].get_ylabel()


def test_low_rank_with_its_bound_and_recommended_rank(tmp_path: Path) -> None:
    run = MadeRun()
    low_rank(run, 100, {0: 0.5, 1: 0.3, 4: 0.2}, None)
    low_rank(run, 200, {0: 0.4, 1: 0.1, 4: 5e-4}, 4)
    figure = shown(low_rank_figure(run.reader), tmp_path)
    left, right = figure.axes
    assert [label.get_text() for label in left.get_xticklabels()] == ["no\nupdate", "1", "4"]
    np.testing.assert_allclose(left.lines[0].get_ydata(), [0.4, 0.1, 5e-4])
    np.testing.assert_allclose(line(left, "near enough: 0.001").get_ydata(), [1e-3, 1e-3])
    ring = line(left, "recommended rank: 4")
    np.testing.assert_allclose([ring.get_xdata()[0], ring.get_ydata()[0]], [2, 5e-4])
    np.testing.assert_allclose(right.lines[0].get_ydata(), [0.1, 0.4])
    assert [label.get_text() for label in right.get_xticklabels()] == ["1", "4"]
    assert "last of 2 measurements: steps 100 to 200" in said(figure)


def test_no_rank_near_enough_and_a_rank_without_a_value(tmp_path: Path) -> None:
    run = MadeRun()
    low_rank(run, 100, {0: 0.5, **dict.fromkeys(range(1, 30), 0.1), 30: math.nan}, None)
    figure = shown(low_rank_figure(run.reader), tmp_path)
    names = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert names == ["near enough: 0.001", "no rank is near enough"]
    assert len(figure.axes[0].get_xticks()) <= 9
    assert "1 rank without a value" in said(figure)


def test_moments_of_adam_and_of_sgd(tmp_path: Path) -> None:
    run = MadeRun()
    adam = {"rule": "adam"}
    for step, value in ((10, 0.5), (20, -0.25)):
        cells: list[Cell] = [("staleness", adam, value), ("step_to_weight", adam, 1e-3 * step)]
        cells += [("snr", {**adam, "summary": "median"}, math.inf if step == 10 else 0.2)]
        cells += [("snr", {**adam, "summary": "norm_ratio"}, 0.4), ("without_state", {}, 0)]
        write(run, "Momentum", step, cells)
    figure = shown(momentum_figure(run.reader), tmp_path)
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["cosine of moment and gradient", "signal to noise", "‖step‖/‖W‖"]
    np.testing.assert_array_equal(figure.axes[0].lines[0].get_ydata(), [0.5, -0.25])
    np.testing.assert_array_equal(line(figure.axes[1], "median").get_ydata(), [np.nan, 0.2])
    np.testing.assert_array_equal(line(figure.axes[1], "norm ratio").get_ydata(), [0.4, 0.4])
    assert figure.axes[0].get_ylim()[0] < -0.25

    run = MadeRun()
    write(run, "Momentum", 10, [("staleness", {"rule": "momentum"}, 0.5), ("step_to_weight", adam, None)])
    assert len(shown(momentum_figure(run.reader), tmp_path).axes) == 1


def landscape(run: MadeRun, step: int, sharp: Number, **more: Number) -> None:
    cells: list[Cell] = [("sharpness", {}, sharp), ("sharpness_threshold", {}, 200.0), ("loss", {}, 1.0)]
    write(run, "LossLandscape", step, [*cells, *[(name, {}, value) for name, value in more.items()]])


def test_sharpness_with_thresholds_and_the_loss_along_a_line(tmp_path: Path) -> None:
    run = MadeRun()
    run.manifest["probes"] = {"LossLandscape": {"radius": 0.02}}
    landscape(run, 100, -1.0, preconditioned_sharpness=5.0, preconditioned_threshold=900.0)
    cells: list[Cell] = [("sharpness", {}, 20.0), ("sharpness_threshold", {}, 200.0), ("loss", {}, 1.0)]
    cells += [("loss", {"direction": "gradient", "at": at}, 1 + at * at) for at in (-1.0, 0.0)]
    write(run, "LossLandscape", 200, [*cells, ("loss", {"direction": "gradient", "at": 1.0}, math.nan)])
    figure = shown(landscape_figure(run.reader), tmp_path)
    left, right = figure.axes
    assert left.get_yscale() == "log"
    np.testing.assert_array_equal(line(left, "sharpness").get_ydata(), [np.nan, 20])
    np.testing.assert_array_equal(line(left, "its threshold 2/η").get_ydata(), [200, 200])
    assert line(left, "its threshold 2/η").get_linestyle() == "--"
    np.testing.assert_array_equal(line(left, "its threshold").get_ydata(), [900, 900])  # one alone: a line across
    np.testing.assert_array_equal(right.lines[0].get_ydata(), [2, 1, np.nan])
    assert right.get_xlabel() == "in shares of 0.02·‖W‖"
    for part in ("sharpness: 1 value of 0 or below, not shown", "1 of 3 points without a value"):
        assert part in said(figure)


def test_one_measurement_without_a_direction_or_without_anything(tmp_path: Path) -> None:
    run = MadeRun()
    landscape(run, 100, 20.0)
    assert len(shown(landscape_figure(run.reader), tmp_path).axes) == 1
    run = MadeRun()
    write(run, "LossLandscape", 100, [("sharpness", {}, None), ("loss", {}, 1.0)])
    assert landscape_figure(run.reader) is None


def test_every_instance_has_a_row_and_too_many_are_counted(tmp_path: Path) -> None:
    run = MadeRun()
    for number in range(1, 7):
        label = "SparseQuality" if number == 1 else f"SparseQuality_{number}"
        sparse(run, 100 * number, {1e-6: number * 1e-5}, {1e-6: 0.1}, label)
    figure = shown(sparse_figure(run.reader), tmp_path)
    assert len(figure.axes) == 8
    for row in range(4):
        np.testing.assert_allclose(line(figure.axes[2 * row], "the largest changes").get_ydata(), [(row + 1) * 1e-5])
    assert figure.axes[2].get_title(loc="left").startswith("SparseQuality_2: ")
    assert "2 more instances left out" in said(figure)


@pytest.mark.parametrize("draw", [sparse_figure, low_rank_figure, momentum_figure, landscape_figure])
def test_nothing_without_data(draw) -> None:
    assert draw(MadeRun().reader) is None


def test_panels_of_their_own() -> None:
    run = MadeRun()
    sparse(run, 100, {1e-6: 1e-5}, {1e-6: 0.1})
    low_rank(run, 100, {0: 0.5, 1: 0.3}, None)
    write(run, "Momentum", 100, [("staleness", {"rule": "adam"}, 0.5)])
    landscape(run, 100, 20.0)
    files = [panel.file for panel, _ in drawn(run.reader)]
    assert files == ["sparse_quality.png", "low_rank_quality.png", "momentum.png", "landscape.png"]
    assert other_figure(run.reader) is None
    assert measured_once(run.reader) == []


def test_legends_stand_clear_of_the_data(tmp_path: Path) -> None:
    run = MadeRun()
    for step in range(100, 600, 100):
        sparse(run, step, {1e-8: 1e-9 * step, 1e-6: 1e-5, 1e-4: 1e-3 * step}, {1e-8: 0.9, 1e-6: 0.5, 1e-4: 0.01})
    figure = shown(sparse_figure(run.reader), tmp_path)
    for axes in figure.axes:
        box = axes.get_legend().get_window_extent()
        for one in axes.lines:
            inside = axes.transData.transform(np.column_stack([one.get_xdata(), one.get_ydata()]))
            assert not any(box.contains(x, y) for x, y in inside)
            assert (inside[:, 1] < box.y0).all()
