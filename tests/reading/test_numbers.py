"""Series and grids from the columns are those of the tables; a series at less detail hides nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import learnscope as ls
from learnscope.quantities import quantity_of
from learnscope.reading.gather import Series, as_grid, as_series, class_of, grid, layers, one_pass, rows, series
from learnscope.reading.pyramid import Pyramid, thinned

EARLIER = sorted(path for path in (Path(__file__).parents[1] / "earlier" / "folders").iterdir() if path.is_dir())


@pytest.mark.parametrize("folder", EARLIER, ids=lambda path: path.name)
def test_every_quantity_of_a_run(folder: Path) -> None:
    run = one_pass(ls.open_run(folder))
    found = {
        (quantity_of(class_of(label), name), kind)
        for label in run.probes
        for kind in ("model", "layer", "group", "tensor", "class")
        for name in run.columns().names(label, kind)
    }
    compared = 0
    for quantity, kind in ((quantity, kind) for quantity, kind in found if quantity is not None):
        frame = rows(run, quantity, kind)
        direct, by_table = series(run, quantity, kind), as_series(frame)
        assert direct.steps.tolist() == by_table.steps.tolist()
        np.testing.assert_array_equal(direct.values, by_table.values)
        assert (direct.status, direct.probe) == (by_table.status, by_table.probe)
        assert direct.broken.tolist() == by_table.broken.tolist()
        cells, table = grid(run, quantity, kind), as_grid(frame, layers(run))
        assert (cells.scopes, cells.steps.tolist(), cells.probe) == (table.scopes, table.steps.tolist(), table.probe)
        np.testing.assert_array_equal(cells.values, table.values)
        np.testing.assert_array_equal(cells.broken, table.broken)
        compared += len(frame)
    assert compared > 50


def made(values: np.ndarray) -> Series:
    steps = np.arange(1, len(values) + 1) * 3
    return Series(steps, values, [None] * len(values))


NUMBERS = arrays(np.float64, st.integers(0, 400), elements=st.floats(-1e6, 1e6) | st.just(float("nan")))


@settings(max_examples=40, deadline=None)
@given(values=NUMBERS, most=st.integers(1, 50))
def test_a_level_has_every_measurement_in_a_bucket(values: np.ndarray, most: int) -> None:
    level = Pyramid(made(values)).at_most(most)
    steps = np.arange(1, len(values) + 1) * 3
    assert len(level) <= most
    assert level.measured.sum() == len(values)
    for at in range(len(level)):
        inside = values[(steps >= level.first[at]) & (steps <= level.last[at])]
        finite = inside[np.isfinite(inside)]
        assert (len(inside), len(finite)) == (level.measured[at], level.finite[at])
        if len(finite):
            assert (level.low[at], level.high[at], level.end[at]) == (finite.min(), finite.max(), finite[-1])
            assert level.mean[at] == pytest.approx(finite.mean(), abs=1e-6)
        else:
            assert np.isnan([level.low[at], level.high[at], level.mean[at], level.end[at]]).all()


def test_few_are_exact_and_a_window_has_its_own_detail() -> None:
    values = np.sin(np.arange(1000.0))
    pyramid = Pyramid(made(values))
    assert len(pyramid.at_most(1000)) == 1000
    window = pyramid.at_most(20, first=300, last=330)
    assert window.first.tolist() == list(range(300, 331, 3))
    np.testing.assert_array_equal(window.low, values[99:110])
    assert len(pyramid.whole) == 1


@settings(max_examples=40, deadline=None)
@given(values=NUMBERS, buckets=st.integers(1, 30))
def test_a_thinned_line_keeps_ends_extremes_and_gaps(values: np.ndarray, buckets: int) -> None:
    steps = np.arange(len(values)) * 2
    kept, shown = thinned(steps, values, buckets)
    assert len(kept) <= max(5 * buckets, 5)
    np.testing.assert_array_equal(shown, values[kept // 2])
    assert (np.diff(kept) > 0).all()
    finite = values[np.isfinite(values)]
    if len(values):
        assert (kept[0], kept[-1]) == (steps[0], steps[-1])
        assert np.isnan(shown).any() == np.isnan(values).any()
    if len(finite):
        assert (np.nanmin(shown), np.nanmax(shown)) == (finite.min(), finite.max())
