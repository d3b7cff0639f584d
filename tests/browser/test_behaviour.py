"""What readers do with a page: move the cursor, zoom, search, follow a finding, share an address, try a budget."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from browser.conftest import until
from browser.made_pages import LAYERS, SPIKE, STEPS

Files, Open = Callable[[str], Path], Callable[..., Any]
CURSORS = """() => [...learnscope.panels.values()].filter(panel => panel.plot || panel.map?.drawn).map(panel => {
    const line = panel.line || panel.map.line;
    return line.hidden ? null : Number(line.style.transform.match(/[\\d.]+/)[0]);
})"""
SHOWN = """id => { const plot = learnscope.panels.get(id).plot;
    return [plot.scales.x.min, plot.scales.x.max, Math.max(...plot.data[1].filter(v => v != null))]; }"""


@pytest.fixture
def training(page_files: Files, opened: Open) -> Any:
    return opened().go(page_files("training")).show("#panel-main\\/loss")


def test_one_cursor_moves_every_panel(training: Any) -> None:
    training.slide("#step", 99 / (STEPS - 1))
    assert training.state("cursor") == 100
    training.show("#layers")
    places = training.do(CURSORS)
    assert len(places) >= 4
    assert None not in places
    # the legend tells the value of that step
    said = training.do("() => document.querySelector('#panel-main\\\\/loss .key .value').textContent")
    assert 0.7 < float(said) < 0.85
    training.page.locator("#panel-main\\/loss .plot").focus()
    training.page.keyboard.press("ArrowRight")
    assert training.state("cursor") == 101
    training.check()


def test_the_mouse_moves_it_too(training: Any) -> None:
    box = training.page.locator("#panel-main\\/loss .u-over").bounding_box()
    training.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 30)
    assert abs(training.state("cursor") - STEPS / 2) <= 3
    training.page.locator("#layers .cell-area").scroll_into_view_if_needed()
    area = training.page.locator("#layers .cell-area").bounding_box()
    training.page.mouse.move(area["x"] + area["width"] / 4, area["y"] + 10)
    assert abs(training.state("cursor") - STEPS / 4) <= 8
    tip = training.page.locator("#layers .tip").inner_text()
    assert "blocks.0" in tip


def test_zoom_by_drag_keys_and_back(training: Any) -> None:
    plot = training.page.locator("#panel-main\\/loss .u-over")
    box = plot.bounding_box()
    training.page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + 60)
    training.page.mouse.down()
    training.page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 70, steps=4)
    training.page.mouse.up()
    first, last, _ = training.do(SHOWN, "main/loss")
    assert first == pytest.approx(STEPS / 4, abs=4)
    assert last == pytest.approx(STEPS / 2, abs=4)
    assert training.do(SHOWN, "main/accuracy")[0] < 30  # its own zoom
    training.page.locator("#panel-main\\/loss .plot").focus()
    training.page.keyboard.press("+")
    closer = training.do(SHOWN, "main/loss")
    assert closer[1] - closer[0] < 0.6 * (last - first)
    training.page.click("#panel-main\\/loss [data-tool=reset]")
    assert training.do(SHOWN, "main/loss")[1] == STEPS
    training.page.get_by_text("link zooms").click()
    training.do("() => learnscope.state.zoom.all = [10, 50]")
    training.page.locator("#panel-main\\/loss .plot").focus()
    training.page.keyboard.press("-")
    assert training.do(SHOWN, "main/accuracy")[1] < 200


def test_log_and_smoothing_are_of_a_panel(training: Any) -> None:
    before = training.do("() => learnscope.panels.get('main/loss').plot.scales.y.distr")
    training.page.click("#panel-main\\/loss [data-tool=log]")
    assert training.do("() => learnscope.panels.get('main/loss').plot.scales.y.distr") != before
    assert training.do("() => learnscope.panels.get('main/accuracy').plot.scales.y.distr") == 1
    lines = training.do("() => learnscope.panels.get('main/loss').plot.series.length")
    training.slide("#panel-main\\/loss .smooth", 0.9)
    assert training.do("() => learnscope.panels.get('main/loss').plot.series.length") == lines + 2


def test_a_search_leaves_the_layers_that_match(training: Any) -> None:
    training.show("#layers").has("#layers .row-name", LAYERS)
    training.page.fill(".bar input[type=search]", "ks.3")
    training.has("#layers .row-name", 1)
    assert training.page.locator("#layers .row-name").all_inner_texts() == ["blocks.3"]
    training.page.fill(".bar input[type=search]", "no such")
    until(lambda: "matches" in training.page.locator("#layers").inner_text(), "no layer matches")


def test_a_row_opens_the_curves_of_its_layer(training: Any) -> None:
    training.page.locator("#layers").scroll_into_view_if_needed()
    training.page.click("#layers .row-name[data-row='blocks.4']")
    assert training.state("row") == {"layers": "blocks.4"}
    assert "blocks.4" in training.page.locator("#layers-row").inner_text()
    assert training.page.locator("#layers-row .panel").count() >= 2
    training.slide("#step", (SPIKE - 1) / (STEPS - 1))
    assert "row-0, row-1" in training.page.locator(".step-examples").inner_text()
    assert "and 6 more" in training.page.locator(".step-examples").inner_text()


def test_a_drag_over_the_heatmap_zooms_and_opens_no_row(training: Any) -> None:
    training.show("#layers .cell-area")
    area = training.page.locator("#layers .cell-area").bounding_box()
    training.page.mouse.move(area["x"] + area["width"] * 0.25, area["y"] + 20)
    training.page.mouse.down()
    training.page.mouse.move(area["x"] + area["width"] * 0.5, area["y"] + 40, steps=4)
    training.page.mouse.up()
    first, last = training.state("zoom")["layers"]
    assert first == pytest.approx(STEPS / 4, abs=8)
    assert last == pytest.approx(STEPS / 2, abs=8)
    assert training.state("row") == {}


def test_a_quantity_is_switched(training: Any) -> None:
    training.page.select_option("#layers-quantity", label="Update to weight · ParameterChange")
    assert training.state("grid")["layers"].startswith("ParameterChange/update_to_weight")


def test_a_finding_opens_its_panel_at_its_steps(training: Any) -> None:
    found = training.do("() => learnscope.payload.findings.find(each => each.view === 'curve' && each.steps && "
                        "learnscope.payload.panels.some(panel => panel.id === each.panel))")  # fmt: skip
    assert found is not None
    item = training.page.locator(f"#finding-{found['fingerprint']}")
    if item.get_attribute("open") is None:
        item.locator("summary").press("Enter")
    assert found["pandas"] in item.inner_text()
    item.locator("[data-show]").click()
    training.drawn()
    first, last, _ = training.do(SHOWN, found["panel"])
    assert first <= found["steps"][0]
    assert last >= found["steps"][1]
    assert training.do("id => document.getElementById(`panel-${id}`).getBoundingClientRect().top", found["panel"]) < 900
    assert training.state("cursor") == found["steps"][0]


def test_an_address_holds_everything(training: Any, page_files: Files, opened: Open) -> None:
    for script in ("learnscope.state.cursor = 120", "learnscope.state.zoom['main/loss'] = [50, 150]",
                   "learnscope.state.log['main/loss'] = true", "learnscope.state.smooth['main/loss'] = 0.5",
                   "learnscope.state.search = 'blocks'", "learnscope.state.row.layers = 'blocks.1'"):  # fmt: skip
        training.do(f"() => {{ {script} }}")
    training.page.get_by_text("copy link").click()
    link = training.do("() => learnscope.copied")
    assert "#" in link
    again = opened().go(page_files("training"), "#" + link.split("#", 1)[1])
    for name in ("cursor", "zoom", "log", "smooth", "search", "row"):
        assert again.state(name) == training.state(name)
    again.show("#panel-main\\/loss")
    assert again.do(SHOWN, "main/loss")[:2] == [50, 150]
    assert "blocks.1" in again.page.locator("#layers-row").inner_text()
    again.check()


def test_the_theme_is_switched(training: Any) -> None:
    paper = "() => getComputedStyle(document.body).backgroundColor"
    before = training.do(paper)
    training.page.click("#theme")
    assert training.do(paper) != before
    assert training.state("theme") == "dark"


def test_numbers_are_copied(training: Any) -> None:
    training.page.locator("#panel-main\\/loss .menu summary").click()
    training.page.click("#panel-main\\/loss [data-copy=CSV]")
    rows = training.do("() => learnscope.copied").splitlines()
    assert rows[0] == "series,step,value"
    assert len(rows) == 1 + STEPS + STEPS // 20
    assert rows[SPIKE].split(",")[:2] == ["training", str(SPIKE)]
    assert float(rows[SPIKE].split(",")[2]) > 40
    assert rows[STEPS].endswith(",")  # not finite: no number
    training.page.click("#panel-main\\/loss [data-copy=JSON]")
    assert len(json.loads(training.do("() => learnscope.copied"))) == STEPS + STEPS // 20


def test_what_is_flat_is_folded(training: Any) -> None:
    assert "Checked, nothing to see" in training.page.locator("#flat summary").inner_text()
    training.page.locator("#flat summary").press("Enter")  # a click may miss it while panels above are drawn
    training.page.wait_for_selector("#flat table")
    assert "GradientFlow" in training.page.locator("#flat").inner_text()
    assert not training.do("() => learnscope.payload.panels.some(panel => panel.name === 'nan')")


def test_not_measured_is_drawn_unlike_zero(training: Any) -> None:
    """A cell that was not measured is hatched; one that is 0 has a colour of its own, and both are in the key."""
    training.show("#layers")
    colours = training.do("""() => {
        const { map } = learnscope.panels.get('layers'), grid = map.grid, canvas = map.canvas;
        const pixels = (scope, at) => {
            const row = grid.scopes.indexOf(scope), each = canvas.height / grid.scopes.length;
            const x0 = Math.ceil(((grid.starts[at] - map.range[0]) / (map.range[1] - map.range[0])) * canvas.width) + 1;
            const seen = new Set(), top = Math.round(row * each) + 3;
            const { data } = canvas.getContext('2d').getImageData(x0, top, 6, 12);
            for (let i = 0; i < data.length; i += 4) seen.add([data[i], data[i + 1], data[i + 2]].join());
            return seen.size;
        };
        const cells = scope => Array.from(grid.row(scope).high);
        const missing = cells('blocks.0').findIndex(Number.isNaN), zero = cells('blocks.2').findIndex(v => v === 0);
        return [pixels('blocks.0', missing), pixels('blocks.2', zero)];
    }""")
    assert colours == [2, 1]
    key = training.page.locator("#layers .colour-bar").inner_text()
    assert "not measured" in key
    assert "exactly 0" in key


def test_the_budget_is_solved_in_the_page(page_files: Files, opened: Open) -> None:
    one = opened().go(page_files("audit"))
    one.page.locator("#panel-budget").scroll_into_view_if_needed()
    before = one.page.locator("#budget-size").inner_text()
    one.slide("#budget", 0.6)
    after = one.page.locator("#budget-size").inner_text()
    assert after != before
    assert "budget" in one.do("() => learnscope.state.pick")
    mix = json.loads(one.page.locator("#panel-budget code").inner_text())
    assert len(mix) == 24
    assert len(set(mix.values())) > 1
    # the best of all mixes of a few units, by trying them all
    units = [
        {
            "name": f"u{i}",
            "options": [{"bits": b, "bytes": 100.0 * b * (i + 1), "damage": (7 - i) / 2**b} for b in (2, 4, 8)],
        }
        for i in range(6)
    ]
    for budget in (4500.0, 8000.0, 12345.0, 16800.0):
        solved = one.do("([units, budget]) => learnscope.solveBudget(units, budget)", [units, budget])
        tried = itertools.product(*[unit["options"] for unit in units])
        best = min(sum(o["damage"] for o in mix) for mix in tried if sum(o["bytes"] for o in mix) <= budget)
        assert solved["bytes"] <= budget
        assert solved["damage"] == pytest.approx(best, rel=1e-9)
    odd = [
        unit | {"options": [o | {"bytes": o["bytes"] + 0.37 * i} for i, o in enumerate(unit["options"])]}
        for unit in units
    ]
    solved = one.do("([units, budget]) => learnscope.solveBudget(units, budget)", [odd, 9000.0])
    tried = itertools.product(*[unit["options"] for unit in odd])
    best = min(sum(o["damage"] for o in mix) for mix in tried if sum(o["bytes"] for o in mix) <= 9000)
    assert solved["bytes"] <= 9000
    assert best <= solved["damage"] * (1 + 1e-9) <= 1.05 * best
    assert one.do("([units]) => learnscope.solveBudget(units, 10)", [units]) is None


def test_a_comparison_shows_where_runs_part(page_files: Files, opened: Open) -> None:
    one = opened().go(page_files("comparison"))
    text = one.page.locator("main").inner_text()
    assert "other diverges at step 1." in text
    assert "optimizers.0.groups.0.lr" in text
    assert "0.005" in text
    one.show("#layers")
    one.page.click("#layers .row-name[data-row='blocks.1'] >> nth=0")
    one.show("#layers .row-curves").has("#layers .row-curves .key", 2)
    scales = one.do("() => ['layers-left', 'layers-right'].map(id => learnscope.panels.get(id).map.scale)"
                    ".map(scale => [scale.low, scale.high])")  # fmt: skip
    assert scales[0] == scales[1]
    one.check()


def test_newer_data_keep_what_the_reader_chose(training: Any) -> None:
    training.do("() => { Object.assign(learnscope.state, { zoom: { 'main/loss': [5, 30] }, cursor: 7 }); }")
    training.do("() => learnscope.update(learnscope.payload)")
    assert training.state("cursor") == 7
    training.show("#panel-main\\/loss")
    assert training.do(SHOWN, "main/loss")[:2] == [5, 30]
    training.check()
