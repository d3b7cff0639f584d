"""Progress where there is no terminal: a line now and then, with the time left."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from learnscope import progress
from learnscope.progress import LINES, progress_bar


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_lines_take_the_place_of_the_bar(clock: list[float]) -> None:
    written = io.StringIO()
    with progress_bar("bit widths", console=Console(file=written)) as update:
        for done in range(1, 101):
            clock[0] += 1.0
            update(done, 100)
    lines = written.getvalue().splitlines()
    assert lines[0] == f"bit widths: {LINES:.0f} of 100, about {100 - LINES:.0f} s left"
    assert len(lines) == 99 // LINES, "one in so many seconds, and none of what is done"


def test_short_work_and_hidden_bars_write_nothing(clock: list[float]) -> None:
    for show, seconds in ((True, 0.1), (False, 60.0)):
        written = io.StringIO()
        with progress_bar("quick", show=show, console=Console(file=written)) as update:
            for done in range(10):
                clock[0] += seconds
                update(done, 10)
        assert written.getvalue() == ""
