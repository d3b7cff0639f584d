"""Every kind of page draws with data and with none, without an error or a request; axe finds nothing serious."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from browser.made_pages import PAGES, make

AXE = Path(__file__).parent / "axe" / "axe.min.js"
PANELS = {
    "training": ["main/loss", "main/accuracy", "main/rate", "layers", "examples", "data-map"],
    "audit": ["frontier", "budget", "units", "prompts", "attacks", "noise"],
    "adapters": ["main/loss", "modules", "cuts"],
    "comparison": ["compare/Loss loss", "layers", "differs"],
    "ranking": ["ranking-verdict", "ranking", "bases", "differs"],
    "runs": ["runs/Training loss", "runs"],
}
PAINTED = """() => [...document.querySelectorAll('.plot canvas, canvas.cells')].map(canvas => {
    const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
    const seen = new Set();
    for (let i = 0; i < data.length; i += 4) seen.add(`${data[i]},${data[i + 1]},${data[i + 2]},${data[i + 3]}`);
    return seen.size;
})"""


def draw_all(one: Any, *, folded: bool = True) -> None:
    """What lies below the screen is drawn when it is scrolled to; what is folded, when it is opened."""
    one.do("() => learnscope.drawAll()")
    if folded:
        one.unfold()
        one.do("() => learnscope.drawAll()")
    one.drawn()


@pytest.mark.parametrize("kind", PAGES)
def test_every_panel_draws(kind: str, page_files: Callable[[str], Path], opened: Callable[..., Any]) -> None:
    one = opened().go(page_files(kind))
    draw_all(one)
    assert one.do("() => document.querySelector('h1').textContent.length") > 3
    assert all(colours > 2 for colours in one.do(PAINTED))
    drawn = one.do("() => [...learnscope.panels.values()].every(panel => panel.plot || panel.map)")
    assert drawn
    for panel in PANELS.get(kind, []):
        box = one.do("id => { const e = document.getElementById(`panel-${id}`) || document.getElementById(id); "
                     "return e && e.getBoundingClientRect().height }", panel)  # fmt: skip
        assert box, f"{kind} has no panel {panel}"
        assert box > 30
    if kind.endswith("without data"):
        assert one.do("() => document.querySelectorAll('.quiet, .none').length") > 0
    assert one.do("() => document.documentElement.scrollWidth") <= 1400
    assert "undefined" not in one.do("() => document.body.innerText")
    assert "NaN to" not in one.do("() => document.body.innerText")
    one.check()


@pytest.mark.parametrize("kind", [kind for kind in PAGES if "without" not in kind])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious(
    kind: str, theme: str, page_files: Callable[[str], Path], opened: Callable[..., Any]
) -> None:
    one = opened(theme).go(page_files(kind))
    draw_all(one, folded=theme == "light" and kind != "audit")
    one.do(AXE.read_text(encoding="utf-8"))
    options: dict[str, Any] = {"resultTypes": ["violations"]}
    if theme == "dark":  # the same page in other colours
        options["runOnly"] = {"type": "rule", "values": ["color-contrast"]}
    found = one.do("async options => (await axe.run(document, options)).violations"
                   ".filter(each => ['serious', 'critical'].includes(each.impact))"
                   ".map(each => [each.id, each.nodes.slice(0, 3).map(node => node.html.slice(0, 160))])",
                   options)  # fmt: skip
    assert found == []


def test_nothing_is_wider_than_a_narrow_screen(page_files: Callable[[str], Path], opened: Callable[..., Any]) -> None:
    for kind in PANELS:
        one = opened(width=700).go(page_files(kind))
        draw_all(one, folded=False)
        assert one.do("() => document.documentElement.scrollWidth") <= 700, kind


@pytest.mark.parametrize("kind", PANELS)
def test_paper_is_white_and_narrow(kind: str, page_files: Callable[[str], Path], opened: Callable[..., Any]) -> None:
    """All is drawn for it, also what was not on the screen; afterwards the screen is as it was."""
    one = opened("dark").go(page_files(kind))
    one.do("() => learnscope.drawAll()")
    widths = (
        "() => [...document.querySelectorAll('.plot canvas, canvas.cells, .plot svg')].map(each => each.clientWidth)"
    )
    paper = "() => getComputedStyle(document.documentElement).getPropertyValue('--panel').trim()"
    before = one.do(widths)
    one.do("() => dispatchEvent(new Event('beforeprint'))")
    assert 0 < max(one.do(widths)) <= 690
    assert one.do(paper) == "#ffffff"
    one.do("() => dispatchEvent(new Event('afterprint'))")
    assert one.do(widths) == before
    assert one.do(paper) != "#ffffff"
    one.check()


def test_no_page_may_reach_the_network(page_files: Callable[[str], Path], opened: Callable[..., Any]) -> None:
    """The policy of the page itself refuses scripts, images and requests that did not come with it."""
    one = opened().go(page_files("training"))
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.3)
        refused = one.do(
            """async address => {
            const tries = [() => fetch(`${address}/x`), () => import(`${address}/x.js`)];
            const results = await Promise.allSettled(tries.map(each => each()));
            document.body.insertAdjacentHTML('beforeend', `<img src="${address}/x.png">`);
            const script = document.createElement('script');
            script.textContent = 'window.hurt = 1';
            document.body.append(script);
            await new Promise(resolve => setTimeout(resolve, 100));
            return [...results.map(each => each.status), window.hurt ?? 'nothing'];
        }""",
            f"http://127.0.0.1:{server.getsockname()[1]}",
        )
        assert refused == ["rejected", "rejected", "nothing"]
        with pytest.raises(TimeoutError):
            server.accept()  # nobody has called
    assert len(one.complaints) >= 3


def test_a_page_without_scripts_says_what_was_found(tmp_path: Path, chromium: Any) -> None:
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(make("training", tmp_path).as_uri())
    text = page.inner_text("noscript") if page.query_selector("noscript") else page.inner_text("body")
    context.close()
    assert "What to do" in text or "loss" in text.lower()
