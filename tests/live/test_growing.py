"""Runs that grow: read on without reading anything again, and sent to a browser only as far as it lacks them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from findings.made_run import MadeRun
from learnscope.live.changes import LATE, Snapshot, Wanted
from learnscope.live.pages import Page
from learnscope.live.shelf import Shelf
from learnscope.quantities.outputs import Loss
from learnscope.reading.gather import one_pass, series
from learnscope.record import Column, Table
from learnscope.report.page.packing import Columns, unpack
from learnscope.report.page.training import run_payload
from learnscope.run import open_run
from learnscope.store.backend import FolderBackend, MemoryBackend
from learnscope.store.columnar import growing
from learnscope.store.reader import RunReader

LAYERS = ["0", "2"]


def add(run: MadeRun, first: int, last: int) -> None:
    for step in range(first, last + 1):
        loss = math.nan if step == 33 else 1 / step
        run.write("Loss", step, [Table("model", ["model"], [Column("loss", [loss])])])
        if step % 4 == 0:
            norms = Column("norm", [1.0 / step, 2.0 / step], {"stage": "stepped"})
            run.write("GradientFlow", step, [Table("layer", LAYERS, [norms])], phase="before_step")


def folder_run(folder: Path) -> MadeRun:
    folder.mkdir(parents=True, exist_ok=True)
    return MadeRun(FolderBackend(folder), layers=LAYERS)


def losses(reader: RunReader) -> list[float]:
    return series(one_pass(reader), Loss.loss).values.tolist()


def test_a_growing_run_reads_as_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a limit of a few lines, so that some are settled and others read again."""
    monkeypatch.setattr(growing, "WORTH_KEEPING", 4000)
    run = folder_run(tmp_path / "r")
    reader = RunReader(growing.GrowingFolder(tmp_path / "r"))
    for first in range(1, 400, 37):
        add(run, first, first + 36)
        np.testing.assert_array_equal(losses(reader), losses(open_run(tmp_path / "r")))
        assert [r.step for r in reader.columns().records()] == [r.step for r in run.reader.records()]
    assert not (tmp_path / "r" / "index").exists()
    assert len(reader.backend.segments()) < 40


def test_what_is_settled_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growing, "WORTH_KEEPING", 4000)
    run = folder_run(tmp_path / "r")
    add(run, 1, 200)
    backend = growing.GrowingFolder(tmp_path / "r")
    first = backend.segments()
    read: list[int] = []
    pieces_of = growing.pieces_of
    monkeypatch.setattr(growing, "pieces_of", lambda file, size: read.append(size) or pieces_of(file, size))
    add(run, 201, 205)
    again = backend.segments()
    assert again[: len(first)] == first
    assert 0 < sum(read) < 4000


def test_a_line_that_is_being_written_is_left_for_later(tmp_path: Path) -> None:
    run = folder_run(tmp_path / "r")
    add(run, 1, 10)
    backend = growing.GrowingFolder(tmp_path / "r")
    with (tmp_path / "r" / "records.jsonl").open("ab") as lines:
        lines.write(b'{"probe": "Loss", "st')
    reader = RunReader(backend)
    assert len(losses(reader)) == 10
    assert reader.last_problems == []


def test_a_run_in_memory_grows_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growing, "WORTH_KEEPING", 4000)
    run = MadeRun(MemoryBackend(), layers=LAYERS)
    reader = growing.growing(run.backend)
    for first in (1, 50, 120):
        add(run, first, first + 30)
        np.testing.assert_array_equal(losses(reader), losses(run.reader))


def snapshot(run: MadeRun, before: Snapshot | None = None) -> Snapshot:
    columns = Columns()
    return Snapshot(run_payload(columns, run.reader, [], name="r"), columns, before)


class Browser:
    """What live.js does with an answer: keep the steps up to `after`, and put the new ones behind them."""

    def __init__(self, page: Snapshot) -> None:
        self.version, self.page = page.version, page

    def ask(self, now: Snapshot, *ids: str) -> dict[str, Any]:
        wanted = [Wanted(name, self.version, self.last(name)) for name in ids]
        body, floats, whole = unpack(now.changes(self.version, wanted))
        self.floats, self.whole = floats, whole
        return body

    def last(self, name: str) -> int:
        body = next(e for key in ("main", "panels", "grids") for e in self.page.body[key] if e["id"] == name)
        return min(int(self.page.columns.numbers(each["steps"])[-1]) for each in body.get("curves", [body]))

    def numbers(self, reference: list[Any]) -> list[float]:
        kind, start, *rest = reference
        if kind == "s":
            return [start + rest[0] * i for i in range(rest[1])]
        return {"f": self.floats, "i": self.whole}[kind][start : start + rest[0]].tolist()


def test_only_what_is_new_of_what_is_seen_is_sent() -> None:
    run = MadeRun(layers=LAYERS)
    add(run, 1, 400)
    first = snapshot(run)
    browser = Browser(first)
    add(run, 401, 410)
    now = snapshot(run, first)
    assert (now.version, now.layout) == (2, first.layout)
    nothing = browser.ask(now)
    assert nothing["panels"] == []
    assert len(browser.floats) == 0
    body = browser.ask(now, "main/loss")
    (panel,) = body["panels"]
    (curve,) = panel["curves"]
    steps, values = browser.numbers(curve["steps"]), browser.numbers(curve["v"])
    assert curve["after"] == 400 - LATE
    assert steps == list(range(401 - LATE, 411))
    np.testing.assert_allclose(values, [1 / step for step in steps], rtol=1e-7)
    assert browser.numbers(curve["bad"]) == [33, 33], "spans that are not finite are few, and sent whole"


def test_of_a_long_curve_the_last_buckets_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("learnscope.report.page.training.MAIN_POINTS", 150)
    run = MadeRun(layers=LAYERS)
    add(run, 1, 400)
    first = snapshot(run)
    browser = Browser(first)
    add(run, 401, 410)
    now = snapshot(run, first)
    ((curve,),) = [panel["curves"] for panel in browser.ask(now, "main/loss")["panels"]]
    steps = browser.numbers(curve["steps"])
    assert curve["per"] == 3
    assert steps == [step for step in range(1, 411, 3) if step > curve["after"]]
    assert len(steps) < 30
    np.testing.assert_allclose(browser.numbers(curve["high"]), [1 / step for step in steps], rtol=1e-7)
    np.testing.assert_allclose(browser.numbers(curve["low"]), [1 / min(step + 2, 410) for step in steps], rtol=1e-7)


def test_new_columns_of_a_heatmap_are_sent() -> None:
    run = MadeRun(layers=LAYERS)
    add(run, 1, 400)
    first = snapshot(run)
    name = first.body["grids"][0]["id"]
    browser = Browser(first)
    add(run, 401, 408)
    (panel,) = browser.ask(snapshot(run, first), name)["panels"]
    steps = browser.numbers(panel["steps"])
    assert steps[0] > 400 - LATE
    assert steps[-2:] == [404, 408]
    cells = np.reshape(browser.numbers(panel["high"]), (2, -1))
    np.testing.assert_allclose(cells, [[1 / s for s in steps], [2 / s for s in steps]], rtol=2e-5)


def test_a_panel_that_did_not_change_is_not_sent() -> None:
    run = MadeRun(layers=LAYERS)
    add(run, 1, 40)
    first = snapshot(run)
    browser = Browser(first)
    again = snapshot(run, first)
    assert browser.ask(again, "main/loss")["panels"] == []
    assert browser.ask(again)["head"].keys() <= {"written"}


def test_a_new_panel_is_another_layout() -> None:
    run = MadeRun(layers=LAYERS)
    add(run, 1, 40)
    first = snapshot(run)
    run.write("Holdout", 20, [Table("model", ["model"], [Column("holdout_loss", [1.0])])])
    run.write("Holdout", 40, [Table("model", ["model"], [Column("holdout_loss", [0.5])])])
    assert snapshot(run, first).layout != first.layout


def test_pages_of_a_folder_follow_its_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("learnscope.live.pages.PAUSE", 0.0)
    monkeypatch.setattr("learnscope.live.pages.PAUSE_FACTOR", 0.0)
    monkeypatch.setattr("learnscope.live.shelf.LOOK_AGAIN", 0.0)
    shelf = Shelf([tmp_path])
    page = Page(shelf, [], "server")
    assert page.fresh().body["runs"] == []
    run = folder_run(tmp_path / "a")
    add(run, 1, 40)
    rows = page.fresh().body["runs"]
    assert [(row["name"], row["last_step"], row["report"]) for row in rows] == [("a", 40, "?run=a")]
    assert page.fresh() is page.fresh(), "nothing is built again while nothing changes"
    add(run, 41, 60)
    assert page.fresh().body["runs"][0]["last_step"] == 60
    add(folder_run(tmp_path / "b"), 1, 50)
    assert [row["name"] for row in page.fresh().body["runs"]] == ["a", "b"]
    both = Page(shelf, ["a", "b"], "server").fresh().body
    assert both["kind"] == "comparison"
    assert {curve["name"] for panel in both["panels"] for curve in panel["curves"]} == {"a", "b"}


def test_a_run_that_cannot_be_read_is_listed_as_such(tmp_path: Path) -> None:
    add(folder_run(tmp_path / "a"), 1, 40)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "run.json").write_text("{")
    body = Page(Shelf([tmp_path]), [], "server").fresh().body
    assert [row["name"] for row in body["runs"]] == ["a"]
    assert [broken["name"] for broken in body["broken"]] == ["b"]
