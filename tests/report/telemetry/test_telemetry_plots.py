"""What the telemetry figures show, asked of the figures themselves and of the files."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, QuadMesh
from matplotlib.figure import Figure
from PIL import Image

from learnscope.report.layout import QUIET
from learnscope.report.telemetry.data import Telemetry, class_shares, medians, prepare_telemetry, same_names, thinned
from learnscope.report.telemetry.examples import examples
from learnscope.report.telemetry.figures import TITLES, overview, panels_of, plot_telemetry, section_figure
from learnscope.report.telemetry.panels import STYLED, holdout_panels


def table(n: int = 6, per_epoch: int = 2, every: int = 100, **columns: Any) -> pd.DataFrame:
    """A collection every 100 batches, two an epoch, with these columns (`a__b` is a.b)."""
    index = np.arange(n)
    fixed = {
        "batch_idx": (index % per_epoch + 1) * every,
        "epoch": index // per_epoch,
        "global_step": (index + 1) * every,
        "timestamp": pd.Timestamp("2026-11-16"),
    }
    named = {name.replace("__", "."): pd.Series(values) for name, values in columns.items()}
    return pd.DataFrame(fixed | named)


def full(n: int = 6) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    grouped = ("gradient_norm", "weight_delta", "learning_rates")
    values: Any = {f"{section}__{group}": rng.lognormal(size=n) for section in grouped for group in "ab"}
    logits = [rng.normal(size=(5, 2)) for _ in range(n)]
    return table(
        n, **values, holdout_logits__accuracy=rng.random(n), holdout_logits__loss=rng.random(n),
        holdout_logits__logits=logits, holdout_logits__labels=[np.array([0, 1, 0, 1, 1])] * n,
        batch_stats__winner_0_pct=rng.random(n) * 100, batch_stats__batch_size=[8.0] * n, logged__loss=rng.random(n),
    )  # fmt: skip


def drawn(frame: pd.DataFrame, name: str) -> Figure:
    t = prepare_telemetry(frame)
    figure = section_figure(t, TITLES.get(name, (name,))[0], panels_of(t)[name])
    figure.canvas.draw()
    return figure


def curves(axes: Axes) -> dict[str, np.ndarray]:
    """The numbers of every curve that has a name, by that name."""
    named = [line for line in axes.lines if not str(line.get_label()).startswith("_")]
    return {str(line.get_label()): np.asarray(line.get_ydata()) for line in named}


def filled(mesh: QuadMesh) -> np.ndarray:
    """The numbers of the cells, NaN where there is none."""
    return np.ma.filled(np.ma.asarray(mesh.get_array(), dtype=np.float64), np.nan)


def said(figure: Figure) -> str:
    return " ".join(text.get_text() for text in figure.texts).replace("\n", " ")


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_a_picture_for_every_section_and_an_overview(tmp_path: Path) -> None:
    paths = plot_telemetry(full(), tmp_path / "plots")
    names = [
        "overview",
        "gradient_norm",
        "weight_delta",
        "learning_rates",
        "holdout",
        "holdout_margin",
        "batch_stats",
        "logged",
    ]
    assert [path.name for path in paths] == [f"{name}.png" for name in names]
    assert sorted(path.name for path in (tmp_path / "plots").iterdir()) == sorted(path.name for path in paths)
    for path in paths:
        with Image.open(path) as image:
            assert image.format == "PNG"
            colours = image.convert("RGB").getcolors(1 << 24)
            assert colours is not None
            assert len(colours) > 20, f"{path.name} is blank"
    t = prepare_telemetry(full())
    titles = [axes.get_title(loc="left") for axes in overview(t, panels_of(t)).axes if axes.get_visible()]
    assert titles == [
        "Gradient norm", "Weight change between collections", "Learning rates", "Accuracy on the held-out examples",
        "Loss on the held-out examples", "Margin of the true class", "Classes in the batches", "logged: loss",
    ]  # fmt: skip


def test_sections_that_are_absent_have_no_picture_and_none_is_left_of_an_earlier_call(tmp_path: Path) -> None:
    plot_telemetry(full(), tmp_path)
    (tmp_path / "mine.png").write_bytes(b"mine")
    paths = plot_telemetry(table(3, logged__loss=[1.0, 2.0, 3.0]), tmp_path)
    assert [path.name for path in paths] == ["overview.png", "logged.png"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["logged.png", "mine.png", "overview.png"]


def test_nothing_to_draw_and_a_table_of_another_kind(tmp_path: Path) -> None:
    plot_telemetry(full(), tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert plot_telemetry(full().iloc[:0], tmp_path) == []
    with pytest.raises(ValueError, match="no column 'global_step': pass what read_telemetry gives"):
        plot_telemetry(pd.DataFrame({"step": [1]}), tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_curves_are_the_numbers_over_the_global_step_and_gaps_stay_gaps() -> None:
    overall = [1.0, 2.0, math.nan, 3.0, math.nan, 2.5]
    frame = table(6, gradient_norm__overall=overall, gradient_norm__head=[0.5] * 6)
    figure = drawn(frame, "gradient_norm")
    [axes] = figure.axes
    assert set(curves(axes)) == {"overall", "head"}
    np.testing.assert_array_equal(curves(axes)["overall"], overall)
    np.testing.assert_array_equal(axes.lines[0].get_xdata(), [100, 200, 300, 400, 500, 600])
    dots = [line for line in axes.lines if line.get_marker() == "o" and line.get_linestyle() == "None"]
    assert [np.asarray(line.get_xydata()).tolist() for line in dots] == [[[400.0, 3.0], [600.0, 2.5]]], (
        "between two gaps"
    )
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("global step", "L2 norm of the gradient")
    assert "overall without a value in 2 of 6" in said(figure)


def test_the_reason_of_a_gap_is_said() -> None:
    status = [{"weight_delta.overall": "nothing to compare with yet"}, None, None]
    frame = table(3, weight_delta__overall=[math.nan, 1.0, 2.0], weight_delta__head=[math.nan, 1.0, 2.0])
    figure = drawn(frame.assign(status=pd.Series(status, dtype=object)), "weight_delta")
    assert "overall without a value in 1 of 3 (nothing to compare with yet)" in said(figure)
    assert "head without a value in 1 of 3" in said(figure)


def test_nothing_measured_is_said_and_is_no_zero(tmp_path: Path) -> None:
    frame = table(3, weight_delta__overall=[math.nan] * 3)
    [axes] = drawn(frame, "weight_delta").axes
    assert not axes.lines
    assert [text.get_text() for text in axes.texts] == ["no value was measured"]
    assert [path.name for path in plot_telemetry(frame, tmp_path)] == ["overview.png", "weight_delta.png"]


def epoch_lines(axes: Axes) -> list[float]:
    [found] = [one for one in axes.collections if isinstance(one, LineCollection)]
    return [float(segment[0][0]) for segment in found.get_segments()]


def test_epochs_follow_each_other_and_a_line_tells_where_they_begin() -> None:
    frame = table(6, gradient_norm__overall=[1.0] * 6)
    frame["global_step"] = [100, 200, 350, 450, 600, 700]  # 250 batches an epoch
    assert epoch_lines(drawn(frame, "gradient_norm").axes[0]) == [250, 500]
    frame["batch_idx"] = frame["global_step"]  # a loop that does not begin again: halfway between collections
    assert epoch_lines(drawn(frame, "gradient_norm").axes[0]) == [275, 525]
    one = table(3, per_epoch=9, gradient_norm__overall=[1.0] * 3)
    assert epoch_lines(drawn(one, "gradient_norm").axes[0]) == []
    many = drawn(table(100, gradient_norm__overall=[1.0] * 100), "gradient_norm")
    assert len(epoch_lines(many.axes[0])) == 17
    assert "vertical lines: every 3 epochs" in said(many)


def test_what_a_resume_made_obsolete_is_left_out() -> None:
    frame = table(6, gradient_norm__overall=[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    frame["global_step"] = [100, 200, 300, 200, 300, 400]
    figure = drawn(frame, "gradient_norm")
    np.testing.assert_array_equal(figure.axes[0].lines[0].get_xdata(), [100, 200, 300, 400])
    np.testing.assert_array_equal(figure.axes[0].lines[0].get_ydata(), [1, 4, 5, 6])
    assert "2 collections before a resume left out" in said(figure)


@pytest.mark.parametrize(
    ("values", "scale"),
    [
        ([1.0, 10.0, 101.0], "log"),
        ([1.0, 10.0, 99.0], "linear"),
        ([-1.0, 0.01, 100.0], "linear"),
        ([-1.0, 0.0, 0.01, 100.0], "linear"),
        ([0.0, 0.01, 100.0], "log"),
        ([0.0, 0.0, 0.0], "linear"),
        ([math.nan, 1e-9, 1.0], "log"),
    ],
)
def test_scales_over_more_than_two_decades_are_logarithmic(values: list[float], scale: str) -> None:
    [axes] = drawn(table(len(values), gradient_norm__overall=values), "gradient_norm").axes
    assert axes.get_yscale() == scale


def test_zeros_stand_at_the_foot_of_a_logarithmic_scale_under_their_name() -> None:
    figure = drawn(
        table(3, gradient_norm__overall=[1e-3, 1.0, 9.0], gradient_norm__frozen=[0.0, 0.0, 1.0]), "gradient_norm"
    )
    [axes] = figure.axes
    foot = curves(axes)["frozen"][0]
    assert 0 < foot < 1e-3
    assert dict(zip([t.get_text() for t in axes.get_yticklabels()], axes.get_yticks(), strict=True))["0"] == foot
    assert "frozen exactly 0 in 2" in said(figure)
    [axes] = drawn(table(3, learning_rates__a=[0.0, 1e-6, 1e-3]), "learning_rates").axes
    assert curves(axes)["a"][0] == 0.0, "a schedule may begin at 0"


def test_many_groups_are_told_apart_and_all_named() -> None:
    names = [f"encoder.block.{i}.attention" for i in range(10)]
    columns: Any = {f"gradient_norm__{name}": np.arange(1.0, 7) * (i + 1) for i, name in enumerate(names)}
    figure = drawn(table(6, gradient_norm__overall=[1.0] * 6, **columns), "gradient_norm")
    assert legend(figure) == ["overall", *names]
    [axes] = figure.axes
    looks = {(line.get_color(), line.get_linestyle()) for line in axes.lines}
    assert len(looks) == 11
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    boxes = [text.get_window_extent(renderer) for text in figure.legends[0].get_texts()]
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
    assert all(box.x0 >= 0 and box.x1 <= figure.bbox.width and box.y0 >= 0 for box in boxes)
    below = axes.xaxis.label.get_window_extent(renderer)
    assert figure.legends[0].get_window_extent(renderer).y1 <= below.y0 + 1, "beside the axes, not over them"


def test_more_groups_than_looks_are_grey_and_counted() -> None:
    columns: Any = {f"gradient_norm__g{i}": np.full(6, i + 1.0) for i in range(STYLED + 3)}
    figure = drawn(table(6, **columns), "gradient_norm")
    assert len({(line.get_color(), line.get_linestyle()) for line in figure.axes[0].lines}) == STYLED + 1
    assert len(legend(figure)) == STYLED
    assert "3 more groups in grey" in said(figure)


def test_groups_with_the_same_numbers_share_a_name_and_the_same_look_in_every_section() -> None:
    frame = table(
        2, gradient_norm__overall=[1.0, 1.0], gradient_norm__group_0=[1.0, 1.0], gradient_norm__group_1=[2.0, 3.0],
        gradient_norm__head=[2.0, 3.0], learning_rates__group_0=[0.1, 0.1], learning_rates__group_1=[0.1, 0.1],
        learning_rates__head=[0.1, 0.1],
    )  # fmt: skip
    assert same_names(prepare_telemetry(frame)) == {
        "overall": "overall", "group_0": "group_0", "group_1": "group_1 = head", "head": "group_1 = head",
    }  # fmt: skip
    norms, rates = (drawn(frame, name) for name in ("gradient_norm", "learning_rates"))
    assert legend(norms) == ["overall", "group_0", "group_1 = head"]
    looks = [{line.get_label(): line.get_color() for line in figure.axes[0].lines} for figure in (norms, rates)]
    assert looks[0]["group_1 = head"] == looks[1]["group_1 = head"] != looks[1]["group_0"]
    assert "on one curve: group_0 and group_1" in said(rates)


def test_a_single_collection_is_visible(tmp_path: Path) -> None:
    frame = full(1)
    for name in ("gradient_norm", "holdout", "logged", "batch_stats"):
        for axes in drawn(frame, name).axes:
            marked = [line for line in axes.lines if line.get_marker() == "o" and np.isfinite(line.get_ydata()).any()]
            assert marked, name
            assert axes.get_xticks().tolist() == [100]
    assert len(plot_telemetry(frame, tmp_path)) == 8


def chance(axes: Axes) -> list[float]:
    return [float(np.asarray(line.get_ydata())[0]) for line in axes.lines if str(line.get_label()).startswith("chance")]


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"batch_stats__winner_0_pct": [50.0] * 3, "batch_stats__winner_1_pct": [50.0] * 3}, [0.5]),
        ({f"batch_stats__class_{c}_pct": [20.0] * 3 for c in range(5)}, [0.2]),
        ({"holdout_logits__logits": [np.zeros((2, 8))] * 3, "holdout_logits__labels": [np.array([0, 1])] * 3}, [1 / 8]),
        ({"holdout_logits__logits": [np.zeros((2, 1))] * 3, "holdout_logits__labels": [np.array([0, 1])] * 3}, [1 / 2]),
        ({"holdout_logits__logits": [np.zeros(2)] * 3, "holdout_logits__labels": [np.array([0.5, 1])] * 3}, []),
        ({"batch_stats__target_mean": [50.0] * 3}, []),
        ({"batch_stats__class_0_pct": [100.0] * 3}, []),
    ],
)
def test_the_chance_level_stands_where_the_number_of_classes_is_known(columns: Any, expected: list[float]) -> None:
    figure = drawn(
        table(3, holdout_logits__accuracy=[0.1, 0.5, 0.9], holdout_logits__loss=[1.0] * 3, **columns), "holdout"
    )
    assert chance(figure.axes[0]) == pytest.approx(expected)
    assert chance(figure.axes[1]) == [], "not on the loss"


def test_held_out_numbers_stand_beside_those_of_the_training() -> None:
    frame = table(
        3, holdout_logits__accuracy=[0.5] * 3, holdout_logits__loss=[0.7, 0.8, 0.9], holdout_logits__kappa=[0, 0, 1],
        logged__loss=[0.7, 0.4, 0.1], logged__train_accuracy=[50.0, 75.0, 100.0], logged__reward=[-1.0, 0.0, 1.0],
    )  # fmt: skip
    figure = drawn(frame, "holdout")
    accuracy, loss, other = figure.axes
    np.testing.assert_allclose(curves(accuracy)["logged: train_accuracy ÷ 100"], [0.5, 0.75, 1.0])
    np.testing.assert_array_equal(curves(accuracy)["held out"], [0.5] * 3)
    np.testing.assert_array_equal(curves(loss)["logged: loss"], [0.7, 0.4, 0.1])
    assert [axes.get_title(loc="left") for axes in figure.axes][2] == "holdout_logits: kappa"
    np.testing.assert_array_equal(other.lines[0].get_ydata(), [0, 0, 1])
    assert "held-out accuracy 0.5 to 0.5" in said(figure)
    logged = drawn(frame, "logged")
    assert [a.get_title(loc="left") for a in logged.axes] == [
        "logged: loss",
        "logged: train_accuracy",
        "logged: reward",
    ]


def margin(logits: np.ndarray, label: int) -> float:
    """Of one example, by sorting out the true class by hand."""
    if logits.size == 1:
        return float(logits.item()) if label == 1 else -float(logits.item())
    if not 0 <= label < len(logits):
        return math.nan
    others = [value for place, value in enumerate(logits.tolist()) if place != label]
    return math.nan if any(map(math.isnan, others)) else float(logits[label]) - max(others)


@pytest.mark.parametrize("shape", [(7, 3), (7, 1), (7,)])
def test_the_margin_of_every_held_out_example(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    logits = [rng.normal(size=shape) for _ in range(4)]
    logits[1].flat[0] = np.nan
    classes = shape[1] if len(shape) == 2 and shape[1] > 1 else 2
    labels = np.array([1, 0, 1, classes - 1, 0, 1, -100 if classes > 2 else 0])
    frame = table(4, holdout_logits__logits=logits, holdout_logits__labels=[labels] * 4)
    found = examples(prepare_telemetry(frame))
    assert found is not None
    expected = np.array([[margin(np.atleast_1d(z[i]), int(labels[i])) for i in range(7)] for z in logits])
    order = sorted(range(7), key=lambda i: (labels[i], -np.nan_to_num(expected[-1, i], nan=-np.inf)))
    np.testing.assert_allclose(found.values, expected[:, order])
    np.testing.assert_array_equal(found.labels, labels[order])
    figure = drawn(frame, "holdout_margin")
    [mesh] = [one for one in figure.axes[0].collections if isinstance(one, QuadMesh)]
    np.testing.assert_allclose(filled(mesh), expected[:, order].T)
    low, high = mesh.get_clim()
    assert low == -high, "white is on the edge between right and wrong"
    known = ~np.isnan(expected[-1])
    assert f"{100 * np.mean(expected[-1][known] > 0):.3g} % right at step 400" in said(figure)
    assert f"{int(sum(known & ~(expected > 0).any(axis=0)))} never right" in said(figure)


def test_other_held_out_examples_are_not_mixed_in() -> None:
    logits = [np.zeros((2, 2)), np.ones((3, 2)), None, np.ones((3, 2)), np.eye(3, 2)]
    labels = [np.array([0, 1]), np.array([0, 1, 1]), None, np.array([1, 1, 1]), np.array([0, 1, 1])]
    t = prepare_telemetry(table(5, holdout_logits__logits=logits, holdout_logits__labels=labels))
    found = examples(t)
    assert found is not None
    assert found.steps.tolist() == [200, 500]
    assert found.left_out == 2
    assert "2 collections of other examples left out" in "; ".join(found.facts)


def test_errors_where_the_labels_are_no_classes() -> None:
    targets = np.array([2.0, -1.0, 0.5])
    frame = table(2, holdout_logits__logits=[np.zeros(3), np.ones((3, 1))[:, 0]], holdout_logits__labels=[targets] * 2)
    found = examples(prepare_telemetry(frame))
    assert found is not None
    np.testing.assert_array_equal(found.values, [[1.0, -0.5, -2.0], [2.0, 0.5, -1.0]])
    assert drawn(frame, "holdout_margin").axes[0].get_ylabel() == "held-out example"


@pytest.mark.parametrize("logits", [[0.1, 0.2], np.zeros((2, 3, 4)), np.zeros((3, 2)), np.zeros((2, 0)), None])
def test_logits_of_another_shape_have_no_margin(logits: Any) -> None:
    t = prepare_telemetry(table(1, holdout_logits__logits=[logits], holdout_logits__labels=[np.array([0, 1])]))
    assert examples(t) is None


def test_classes_of_the_batches() -> None:
    frame = table(
        3, batch_stats__class_10_pct=[25.0, 50.0, math.nan], batch_stats__class_9_pct=[75.0, math.nan, math.nan],
        batch_stats__class_b_pct=[math.nan, 50.0, 30.0], batch_stats__batch_size=[8.0, 8.0, 8.0],
    )  # fmt: skip
    shares = class_shares(prepare_telemetry(frame))
    assert list(shares) == ["class 9", "class 10", "class b"]
    np.testing.assert_array_equal(shares["class 9"], [75, 0, math.nan])  # 0 where the others are the whole batch
    np.testing.assert_array_equal(shares["class 10"], [25, 50, math.nan])
    figure = drawn(frame, "batch_stats")
    [axes] = figure.axes
    [balanced] = [line for line in axes.lines if line.get_color() == QUIET]
    np.testing.assert_allclose(np.asarray(balanced.get_ydata(), float), 100 / 3)
    assert "8 examples in every batch" in said(figure)


def test_many_classes_are_cells_and_a_size_that_changes_has_axes() -> None:
    columns: Any = {f"batch_stats__class_{c}_pct": [10.0, c, math.nan] for c in range(10)}
    figure = drawn(table(3, batch_stats__batch_size=[8.0, 8.0, 3.0], **columns), "batch_stats")
    cells, _, sizes = figure.axes[:3]
    [mesh] = [one for one in cells.collections if isinstance(one, QuadMesh)]
    np.testing.assert_array_equal(filled(mesh), [[10, c, math.nan] for c in range(10)])
    np.testing.assert_array_equal(sizes.lines[0].get_ydata(), [8, 8, 3])
    assert sizes.get_ylabel() == "examples"


def test_targets_that_are_no_classes() -> None:
    columns: Any = {"batch_stats__target_mean": [0.5, -0.5], "batch_stats__target_std": [1.0, 2.0]}
    [axes] = drawn(table(2, **columns, batch_stats__batch_size=[4.0, 4.0]), "batch_stats").axes
    assert {name: values.tolist() for name, values in curves(axes).items()} == {
        "mean of the targets": [0.5, -0.5],
        "standard deviation of the targets": [1.0, 2.0],
    }


def test_sections_of_ones_own_are_drawn_under_safe_names(tmp_path: Path) -> None:
    columns: Any = {
        "weight_delta_since": [0.0, 1.0], "a/ü metric.value": [1.0, 2.0], "overview.x": [1.0, 2.0],
        "plain": [3.0, 4.0], "logged.word": ["a", "b"],
    }  # fmt: skip
    frame = table(2).assign(**columns)
    assert list(prepare_telemetry(frame).sections[""]) == ["plain"], "a place is nothing to draw"
    paths = plot_telemetry(frame, tmp_path / "in")
    assert [path.name for path in paths] == ["overview.png", "other.png", "a_ü_metric.png", "overview_2.png"]
    assert all(path.parent == tmp_path / "in" and path.exists() for path in paths)
    assert list(tmp_path.iterdir()) == [tmp_path / "in"]


@pytest.mark.parametrize("n", [1999, 2000, 2001, 5000, 123_457])
def test_thinned_curves_keep_their_extremes_and_gaps(n: int) -> None:
    values = np.random.default_rng(n).normal(size=n)
    values[n // 3 : n // 3 + n // 10] = np.nan
    values[n // 2], values[-1] = 1e6, -1e6
    steps, shown = thinned(np.arange(n), values)
    assert len(shown) <= 2000
    np.testing.assert_array_equal(shown, values[steps])
    assert (np.diff(steps) > 0).all()
    assert {1e6, -1e6} <= set(shown.tolist())
    assert np.isnan(shown).any()
    if n > 2000:
        size = math.ceil(2 * n / 2000)
        for start in range(0, n, size * 50):
            part = values[start : start + size]
            if not np.isnan(part).all():
                assert {np.nanmin(part), np.nanmax(part)} <= set(shown.tolist())


def test_medians_of_neighbours() -> None:
    values = np.array([1.0, 5.0, 3.0, math.nan, math.nan, math.nan, 7.0, math.nan, 9.0, 4.0])
    steps, middle = medians(np.arange(10, 110, 10), values, 3)
    np.testing.assert_array_equal(steps, [20, 50, 80, 100])
    np.testing.assert_array_equal(middle, [3, math.nan, 8, 4])


def test_long_curves_are_thin_with_medians_over_them() -> None:
    values = np.random.default_rng(0).lognormal(size=1000)
    figure = drawn(table(1000, gradient_norm__overall=values), "gradient_norm")
    thin, bold = figure.axes[0].lines
    np.testing.assert_array_equal(thin.get_ydata(), values)
    np.testing.assert_allclose(np.asarray(bold.get_ydata(), float), np.median(values.reshape(100, 10), axis=1))
    assert thin.get_linewidth() < bold.get_linewidth()
    assert "bold: medians of 10 collections" in said(figure)


def test_prepared_tables_name_their_steps() -> None:
    t = prepare_telemetry(table(1, logged__loss=[1.0]))
    assert isinstance(t, Telemetry)
    assert t.facts == ["1 collection, step 100"]
    assert prepare_telemetry(table(2, per_epoch=5, logged__loss=[1.0, 2.0])).facts == [
        "2 collections, steps 100 to 200"
    ]


def test_a_loss_that_may_not_be_the_trained_one_is_drawn_alone() -> None:
    known, guessed = full(), full()
    guessed["status"] = [{"holdout_logits.loss": "squared error: which loss is trained is not known"}] * 6
    for frame, labels in ((known, ["held out", "logged: loss"]), (guessed, ["held out"])):
        [panel] = [p for p in holdout_panels(prepare_telemetry(frame), 2) if p.y == "loss"]
        assert [line.label for line in panel.lines] == labels
    assert "squared error: which loss is trained is not known" in panel.facts
