"""Examples that a page shows: images are painted pixel by pixel, texts stay texts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from browser.made_pages import HOSTILE, picture
from learnscope.ledger.thumbnails import thumbnail

Files, Open = Callable[[str], Path], Callable[..., Any]
PAINTED = """() => [...document.querySelectorAll('canvas.thumbnail')].map(canvas => ({
    label: canvas.getAttribute('aria-label'),
    size: [canvas.height, canvas.width],
    box: [canvas.getBoundingClientRect().height, canvas.getBoundingClientRect().width],
    data: [...canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data],
}))"""


def check_painted(one: Any) -> None:
    painted = one.do(PAINTED)
    assert painted
    for each in painted:
        expected = thumbnail(picture(int(each["label"].removeprefix("Example "))))[0]
        pixels = np.array(each["data"]).reshape(*each["size"], 4)
        np.testing.assert_array_equal(pixels[..., :3], expected)
        assert (pixels[..., 3] == 255).all()
        assert each["box"] == [26, 50]  # 24 × 48 and a border


def test_thumbnails_are_painted_in_every_table_and_theme(page_files: Files, opened: Open) -> None:
    for theme in ("light", "dark"):
        one = opened(theme).go(page_files("examples")).show("#examples")
        check_painted(one)
        tabs = one.page.locator("#panel-examples .tab")
        for place in range(tabs.count()):
            tabs.nth(place).click()
            one.has("#panel-examples .tab[aria-pressed='true']", 1)
            check_painted(one)
        one.check()


def test_texts_stay_texts_and_reasons_are_told(page_files: Files, opened: Open) -> None:
    one = opened().go(page_files("examples")).show("#examples")
    texts = one.page.locator("#panel-examples .look-text").all_text_contents()
    assert len(texts) >= 5
    hostile = {text.replace("\u202e", "\\u202e").replace("\u202c", "\\u202c")[:500] for text in HOSTILE}
    assert set(texts) <= hostile
    long = one.page.locator("#panel-examples .look-more").first
    assert long.locator("summary").inner_text() == "a" * 140 + "…"
    long.locator("summary").press("Enter")
    assert long.locator(".look-text").is_visible()
    assert one.do("() => window.hurt") is None
    assert "a vector of 7 numbers" in one.page.locator("#panel-examples").inner_text()
    assert one.do("() => document.querySelectorAll('img').length") == 0
    assert one.do("() => document.documentElement.scrollWidth") <= 1400
    one.check()


def test_they_are_printed(page_files: Files, opened: Open) -> None:
    one = opened().go(page_files("examples"))
    one.page.emulate_media(media="print")
    check_painted(one)
    assert one.do("() => document.querySelector('canvas.thumbnail').checkVisibility()")


def test_a_page_without_them_says_how_to_have_them(page_files: Files, opened: Open) -> None:
    one = opened().go(page_files("training")).show("#examples")
    assert "ls.ExampleLedger(show=dataset)" in one.page.locator("#panel-examples").inner_text()
    one.has("canvas.thumbnail", 0)
    one.check()
