"""One Chromium for all tests of pages; without one they are skipped by name, and fail under CI=true."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from browser.made_pages import make

ARGUMENTS = [
    "--no-sandbox", "--headless", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--no-first-run",
]  # fmt: skip


IN_VIEW = """() => [...learnscope.panels.values()].every(panel => {
    const box = panel.element.getBoundingClientRect();
    const seen = panel.element.checkVisibility() && box.bottom > 0 && box.top < innerHeight;
    return !seen || panel.plot || panel.map?.drawn;
})"""
ENOUGH = 60.0
"""Seconds that anything here may take on a busy machine."""


def until(true: Callable[[], Any], what: str) -> Any:
    """Wait until this is true: pages draw when they get round to it, on a busy machine much later."""
    end = time.monotonic() + ENOUGH
    while time.monotonic() < end:
        if value := true():
            return value
        time.sleep(0.05)
    raise AssertionError(f"not within {ENOUGH} s: {what}")


def missing(what: str) -> None:
    if os.environ.get("CI", "").lower() == "true":
        pytest.fail(f"CI=true and {what}")
    pytest.skip(what)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        missing("there is no Chromium: apt-get install chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing("playwright is not installed: pip install -c constraints.txt playwright")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def page_files(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Pages by their kind, each written once."""
    folder = tmp_path_factory.mktemp("pages")
    known: dict[str, Path] = {}

    def file_of(kind: str) -> Path:
        if kind not in known:
            known[kind] = make(kind, folder)
        return known[kind]

    return file_of


class Opened:
    """A page in the browser, with everything that it complained about or asked for."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.asked: list[str] = []
        page.on("console", lambda message: self.complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self.asked.append(request.url))

    def go(self, file: Path, address: str = "") -> Opened:
        self.page.goto(f"{file.as_uri()}{address}")
        self.page.wait_for_selector("html[data-ready]", timeout=ENOUGH * 1000)
        return self

    def show(self, selector: str) -> Opened:
        """Scroll a part into view, and wait until it and all else in view is drawn."""
        self.page.locator(selector).first.scroll_into_view_if_needed()
        self.drawn()
        return self

    def drawn(self) -> None:
        """Wait for what is in view: it is drawn after two frames, by the observer that is told of it then."""
        self.do("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done))))")
        until(lambda: self.do(IN_VIEW), "everything in view is drawn")

    def has(self, selector: str, number: int) -> None:
        """So many parts match, once the page has come to it."""
        places = self.page.locator(selector)
        until(lambda: places.count() == number, f"{number} of {selector}")

    def slide(self, selector: str, share: float) -> None:
        """Move a slider to a share of its way."""
        self.do("([selector, share]) => { const s = document.querySelector(selector); "
                "s.value = Number(s.min) + share * (s.max - s.min); s.dispatchEvent(new Event('input')); }",
                [selector, share])  # fmt: skip

    def unfold(self) -> None:
        """Open everything that is folded."""
        self.do("() => document.querySelectorAll('details').forEach(each => "
                "each.fill ? each.fill() : each.setAttribute('open', ''))")  # fmt: skip

    def do(self, script: str, argument: Any = None) -> Any:
        return self.page.evaluate(script, argument)

    def state(self, name: str) -> Any:
        return self.do("name => learnscope.state[name]", name)

    def check(self) -> None:
        """No error, and nothing but the file itself was asked for."""
        assert self.complaints == []
        beyond = [url for url in self.asked if not url.startswith(("file://", "data:", "blob:"))]
        assert beyond == []
        assert len([url for url in self.asked if url.startswith("file://")]) == 1


@pytest.fixture(scope="session")
def windows(chromium: Any) -> Iterator[Callable[[str, int], Any]]:
    """Browser contexts by theme and width: one for each page takes as long as the page itself. No page keeps anything
    in its browser."""
    known: dict[tuple[str, int], Any] = {}

    def window(theme: str, width: int) -> Any:
        if (theme, width) not in known:
            size = {"width": width, "height": 900}
            context = chromium.new_context(viewport=size, color_scheme=theme, reduced_motion="reduce")
            context.set_default_timeout(ENOUGH * 1000)
            context.new_page()  # stays open, and so does the process that draws the others
            known[theme, width] = context
        return known[theme, width]

    yield window
    for context in known.values():
        assert context.storage_state() == {"cookies": [], "origins": []}
        context.close()


@pytest.fixture
def opened(windows: Callable[[str, int], Any]) -> Iterator[Callable[..., Opened]]:
    pages: list[Any] = []

    def open_page(theme: str = "light", width: int = 1400) -> Opened:
        pages.append(windows(theme, width).new_page())
        return Opened(pages[-1])

    yield open_page
    for page in pages:
        page.close()
