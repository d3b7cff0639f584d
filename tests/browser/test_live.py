"""The live page in a browser, while a real training runs in another process."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from browser.conftest import ENOUGH, Opened, until
from browser.made_pages import training
from live.test_growing import add, folder_run

PROGRAM = Path(__file__).parent / "train_slowly.py"


def started(*command: str, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True, **options)


def address_in(line: str) -> str:
    found = re.search(r"http://\S+", line)
    assert found is not None, line
    return found.group()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    """The address of a server of `tmp_path`, which must end with one line on Ctrl-C."""
    server = started("-m", "learnscope.cli", "view", str(tmp_path), "--port", "0", stderr=subprocess.PIPE)
    assert server.stdout is not None
    yield address_in(server.stdout.readline())
    server.send_signal(signal.SIGINT)
    out, err = server.communicate(timeout=ENOUGH)
    assert (server.returncode, out, err) == (0, "learnscope view: ended\n", "")


@pytest.fixture
def training_process(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    running: list[subprocess.Popen[str]] = []

    def train(name: str, steps: int, pause: float, *more: str) -> subprocess.Popen[str]:
        running.append(
            started(str(PROGRAM), str(tmp_path / name), str(steps), str(pause), *more, stdin=subprocess.PIPE)
        )
        return running[-1]

    yield train
    for process in running:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            pipe.close()  # type: ignore[union-attr]


def go(page: Opened, address: str) -> None:
    page.page.goto(address)
    page.page.wait_for_selector("html[data-ready]", timeout=ENOUGH * 1000)


def clean(page: Opened, address: str) -> None:
    """No error, and nothing but the server was asked."""
    assert page.complaints == []
    assert [url for url in page.asked if not url.startswith((address, "data:", "blob:"))] == []


def drawn_steps(page: Opened, panel: str = "main/loss") -> int:
    return int(page.do("id => { const c = learnscope.panels.get(id)?.curves[0]; return c ? c.last : 0 }", panel))


def test_the_page_grows_while_a_training_runs(served: str, opened: Any, training_process: Any, tmp_path: Path) -> None:
    page = opened()
    go(page, served)
    process = training_process("a", 100_000, 0.05)
    until(lambda: page.do("() => learnscope.payload.runs.some(run => run.last_step > 10)"), "a row for the run")
    page.page.locator("#runs tbody a").click()
    page.page.wait_for_url("**/?run=a")
    page.page.wait_for_selector("html[data-ready]", timeout=ENOUGH * 1000)
    assert page.do("() => learnscope.payload.kind") == "training"

    page.page.evaluate("() => scrollTo(0, 0)")
    page.show("[data-panel='main/loss']")
    first = until(lambda: drawn_steps(page), "a drawn loss")
    until(lambda: drawn_steps(page) > first + 40, "more steps in the panel that is seen")
    until(lambda: page.do("() => document.querySelector('.tiles').innerText.includes('running')"), "its status")
    steps = page.do("() => Array.from(learnscope.panels.get('main/loss').curves[0].steps)")
    assert steps == list(range(1, len(steps) + 1)), "no step twice, none left out"

    answers = page.do("() => learnscope.live.answers")
    until(lambda: page.do("() => learnscope.live.answers") > answers, "another answer")
    assert page.do("() => learnscope.live.bytes") < 4 * 2 * (64 + 400), "new steps alone, not the whole run again"

    seen = page.do("() => learnscope.payload.grids.map(grid => grid.id)")
    page.show("#layers")
    shown = page.do("() => document.querySelector('[data-grid]').dataset.grid")
    times = "id => learnscope.payload.grids.find(grid => grid.id === id).changed || 0"
    until(lambda: page.do(times, shown) >= 2, "columns of the heatmap")
    assert page.do("() => learnscope.payload.grids.map(grid => grid.id)") == seen

    process.send_signal(signal.SIGINT)  # the last records, and a status
    page.do("() => scrollTo(0, 0)")
    until(lambda: not page.do("() => learnscope.payload.verdict.status === 'running'"), "its end")
    clean(page, served)


def test_what_the_reader_chose_stays_while_the_page_grows(served: str, opened: Any, training_process: Any) -> None:
    page = opened()
    training_process("a", 100_000, 0.05)
    until(lambda: "running" in _text(served), "a run")
    go(page, f"{served}?run=a#step=5&zoom:main/loss=2,9&smooth:main/loss=0.5")
    page.show("[data-panel='main/loss']")
    first = until(lambda: drawn_steps(page), "a drawn loss")
    until(lambda: drawn_steps(page) > first + 20, "more steps")
    assert page.do("() => learnscope.panels.get('main/loss').range") == [2, 9]
    assert page.state("cursor") == 5
    assert page.state("smooth") == {"main/loss": 0.5}
    clean(page, served)


def _text(address: str) -> str:
    from learnscope.report.page.packing import unpack

    with urllib.request.urlopen(f"{address}data", timeout=ENOUGH) as answer:
        return str(unpack(answer.read())[0]["runs"])


def test_runs_are_searched_and_laid_over_each_other(served: str, opened: Any, tmp_path: Path) -> None:
    from learnscope.store.folders import replace_run

    for place, name in enumerate(["first", "second", "<b>third</b>"]):
        replace_run(training(rate=0.01 + 0.01 * place).backend, tmp_path / name)  # type: ignore[arg-type]
    page = opened()
    until(lambda: _text(served).count("'name'") >= 3, "three runs")
    go(page, served)
    until(lambda: page.do("() => document.querySelectorAll('#runs tbody tr').length") == 3, "three rows")
    page.page.get_by_label("Search runs").fill("second")
    until(lambda: page.do("() => document.querySelectorAll('#runs tbody tr').length") == 1, "the search")
    page.page.get_by_label("Choose second").check()
    page.page.get_by_label("Search runs").fill("third")
    page.page.get_by_label("Choose <b>third</b>").check()
    page.page.get_by_text("Lay 2 runs over each other").click()
    page.page.wait_for_selector("#differs", timeout=ENOUGH * 1000)
    assert page.do("() => learnscope.payload.labels") == ["second", "<b>third</b>"]
    page.page.get_by_text("all runs").click()
    page.page.wait_for_selector("#runs", timeout=ENOUGH * 1000)
    clean(page, served)


def test_long_curves_grow_by_their_last_buckets(served: str, opened: Any, tmp_path: Path) -> None:
    """Of more than 3,000 measurements, buckets are sent: two measurements in each, then three."""
    run = folder_run(tmp_path / "long")
    add(run, 1, 3100)
    until(lambda: "long" in _text(served), "the run")
    page = opened()
    go(page, f"{served}?run=long#at=panel-Loss/loss/model")
    of_it = "const c = learnscope.panels.get('Loss/loss/model').curves[0]"
    curve = f"() => {{ {of_it}; return [c.per, c.last, [...c.steps], [...c.high]] }}"
    until(lambda: page.do("() => !!learnscope.panels.get('Loss/loss/model')?.plot"), "the panel")
    assert page.do(curve)[:2] == [2, 3100]
    for first, last, per in ((3101, 3150, 2), (3151, 6050, 3)):
        add(run, first, last)
        until(lambda last=last: page.do(curve)[1] == last, "the new steps")
        found, _, steps, high = page.do(curve)
        assert (found, steps) == (per, list(range(1, last + 1, per)))
        expected = [1 / step for step in steps]
        assert all(
            abs(a - b) < 1e-6 * b for a, b, step in zip(high, expected, steps, strict=True) if step not in (31, 33)
        )
    assert page.do("() => learnscope.live.bytes") < 400_000
    clean(page, served)


def test_watch_shows_itself_and_the_training_is_the_same(opened: Any, training_process: Any) -> None:
    watched = training_process("shown", 60, 0.02, "view")
    address = address_in(watched.stdout.readline())
    page = opened()
    until(lambda: _answers(address), "a server")
    go(page, address)
    assert page.do("() => learnscope.payload.name") == "shown"
    last = watched.stdout.readline()
    plain = training_process("plain", 60, 0.0)
    assert last.startswith("losses")
    assert plain.stdout.readline() == last
    clean(page, address)
    watched.stdin.close()
    watched.wait(ENOUGH)
    assert watched.returncode == 0
    until(lambda: not _answers(address), "an end with its process")


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
