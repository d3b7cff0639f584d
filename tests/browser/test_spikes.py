"""A spike of one step is seen at every zoom, however long the run; names cannot hurt a page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from browser.made_pages import HOSTILE, page_of, training
from findings.made_run import MadeRun
from learnscope.record import Column, Table

LONG, AT = 300_000, 123_457
COLOURED = """id => {
    // the highest pixel of the curve's colour
    const { plot } = learnscope.panels.get(id), canvas = plot.ctx.canvas;
    const hex = getComputedStyle(document.documentElement).getPropertyValue('--s0').trim();
    const [r, g, b] = [1, 3, 5].map(at => parseInt(hex.slice(at, at + 2), 16));
    const { data, width } = plot.ctx.getImageData(0, 0, canvas.width, canvas.height);
    for (let i = 0; i < data.length; i += 4) {
        if (Math.abs(data[i] - r) + Math.abs(data[i + 1] - g) + Math.abs(data[i + 2] - b) < 90 && data[i + 3] > 90) {
            return Math.floor(i / 4 / width) / canvas.height;
        }
    }
    return 1;
}"""


@pytest.fixture(scope="module")
def long_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A loss of 300,000 steps, flat but for one of them."""
    from learnscope.report.page.curves import MAIN_POINTS, curve
    from learnscope.report.page.html import write_page
    from learnscope.report.page.packing import Columns
    from learnscope.report.page.training import run_payload

    columns, reader = Columns(), MadeRun().reader
    body = run_payload(columns, reader, [], name="long")
    steps = np.arange(1, LONG + 1)
    values = 1 + 0.01 * np.sin(steps / 50)
    values[AT - 1] = 9.0
    main = {"id": "main/loss", "title": "Loss", "scale": "linear", "meaning": "", "prominent": True}
    body["main"] = [main | {"curves": [{"name": "training", **curve(columns, steps, values, MAIN_POINTS)}]}]
    return write_page(tmp_path_factory.mktemp("long") / "long.html", columns.pack(body), body)


def test_a_spike_of_one_step_is_seen_at_every_zoom(long_page: Path, opened: Callable[..., Any]) -> None:
    one = opened().go(long_page)
    one.show("#curves").page.wait_for_selector("#panel-main\\/loss canvas")
    for half in (LONG, LONG / 2, 40_000, 9_000, 2_000, 400, 60):
        span = [max(1, AT - half), min(LONG, AT + 1.3 * half)]
        one.do("span => learnscope.zoomTo('main/loss', span)", span)
        one.drawn()
        shown = one.do("() => { const { data } = learnscope.panels.get('main/loss').plot; "
                       "return [Math.max(...data[1].filter(v => v != null)), data[0].length]; }")  # fmt: skip
        assert shown[0] == 9.0, span
        assert shown[1] < 8000  # what the pixels can show, not everything
        assert one.do(COLOURED, "main/loss") < 0.15, span
    one.check()


def test_hostile_names_are_only_names(tmp_path: Path, opened: Callable[..., Any]) -> None:
    run = training(names=list(HOSTILE))
    for step in (1, 2, 3):
        run.write(HOSTILE[0], step, [Table("model", ["model"], [Column(HOSTILE[1], [step], {"why": HOSTILE[6]})])])
    file = page_of(run.reader, tmp_path, HOSTILE[0])
    assert b"<script>window.hurt" not in file.read_bytes()
    one = opened().go(file)
    one.unfold()
    one.do("() => learnscope.drawAll()")
    one.show("#layers").has("#layers .row-name", len(HOSTILE))
    names = one.page.locator("#layers .row-name")
    for place in range(len(HOSTILE)):
        names.nth(place).click()
    assert one.do("() => window.hurt ?? 'unhurt'") == "unhurt"
    assert one.do("() => document.querySelectorAll('img').length") == 0
    assert one.do("() => document.documentElement.scrollWidth") <= 1400
    one.check()
