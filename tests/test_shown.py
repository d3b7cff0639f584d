"""Runs, findings, comparisons and sessions display themselves, in a terminal and in a notebook."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

import learnscope as ls
from browser.made_pages import HOSTILE, training
from learnscope.record import Evidence, Finding
from learnscope.record.display import COLOURS
from learnscope.record.findings_list import Findings
from learnscope.run import Run
from learnscope.store.folders import replace_run

VOID = {"br"}
TAGS = {
    "div", "p", "b", "br", "span", "code", "details", "summary", "table", "thead", "tbody", "tr", "th", "td", "a",
}  # fmt: skip


class Tags(HTMLParser):
    """The elements of a card, which must be closed in order, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.text = ""
        self._open: list[str] = []
        self.feed(html)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}
        self._open += [] if tag in VOID else [tag]

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def card(thing: object) -> Tags:
    tags = Tags(thing._repr_html_())  # type: ignore[attr-defined]
    assert set(tags.tags) <= TAGS
    assert tags.attributes <= {"style", "class", "href"}
    return tags


@pytest.fixture(scope="module")
def broken() -> Run:
    return Run(training().backend)


def finding(title: str, severity: str = "warning") -> Finding:
    evidence = Evidence(probe="Loss", name="loss", n=3)
    return Finding(
        kind="made", severity=severity, title=title, detail=f"detail of {title}", advice=f"advice for {title}",  # type: ignore[arg-type]
        evidence=evidence,
    )  # fmt: skip


def test_a_run_says_status_steps_and_verdict(broken: Run, tmp_path: Path) -> None:
    worst = broken.findings()[0].title
    assert repr(broken).startswith("<Run in memory | finished | 400 steps | ")
    assert worst in repr(broken)
    shown = card(broken)
    assert worst in shown.text
    assert "400 steps" in shown.text
    assert "What to do." in shown.text
    replace_run(training().backend, tmp_path / "a")  # type: ignore[arg-type]
    assert str(tmp_path / "a") in repr(ls.open_run(tmp_path / "a"))


def test_a_run_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    replace_run(training().backend, tmp_path / "a")  # type: ignore[arg-type]
    run = ls.open_run(tmp_path / "a")
    (tmp_path / "a" / "run.json").write_text("{")
    assert "run.json" in repr(run)
    assert "run.json" in card(run).text


def test_a_large_run_is_not_judged_only_to_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_run(training().backend, tmp_path / "a")  # type: ignore[arg-type]
    monkeypatch.setattr("learnscope.report.shown.TOO_LARGE", 1000)
    assert repr(ls.open_run(tmp_path / "a")).endswith("| finished | large: run.findings() judges it>")


def test_findings_are_counted_and_open(broken: Run) -> None:
    found = broken.findings()
    assert isinstance(found, list)
    assert found == list(found)
    assert repr(found).splitlines()[0] == f"{found.counts}:"
    assert len(repr(found).splitlines()) == 1 + len(found)
    assert card(found).tags.count("details") == len(found)
    assert repr(Findings()) == "no findings"
    assert "no findings" in card(Findings()).text
    one = finding("It broke", "critical")
    assert repr(one).startswith("<critical: It broke | -> advice for It broke | fingerprint ")
    assert "detail of It broke" in card(one).text
    assert Findings([one, finding("b"), finding("c")]).counts == "1 critical, 2 warnings"


def test_a_comparison_says_what_differs_and_where_runs_part(broken: Run) -> None:
    comparison = ls.compare([broken, Run(training(rate=0.02).backend)], names=["a", "b"])
    assert repr(comparison).startswith("<Comparison of a, b | ")
    parting = comparison.to_json()["partings"][0]["step"]
    assert f"step {parting}" in repr(comparison)
    shown = card(comparison)
    assert f"step {parting}" in shown.text
    assert "loss" in shown.text


def test_a_session_says_how_far_it_is(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ls.watch(model, optimizer, run=tmp_path / "r", probes=[ls.Loss()], alerts=True) as w:
        for _ in range(5):
            loss = model(torch.ones(4, 3)).square().mean()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
        before = torch.get_rng_state()
        assert repr(w) == f"<Watch {tmp_path / 'r'} | watching | 5 steps | 1 probe | alerts: none>"
        assert "5 steps" in card(w).text
        assert torch.equal(torch.get_rng_state(), before)
    assert "closed" in repr(w)


@pytest.mark.parametrize("name", HOSTILE)
def test_names_do_no_harm(name: str) -> None:
    shown = card(Findings([finding(name)]))
    assert "<script" not in Findings([finding(name)])._repr_html_()
    assert "\u202e" not in shown.text + repr(finding(name))
    assert len(repr(finding(name))) < 1500
    run = Run(training(names=[name, "b"]).backend)
    card(run)
    assert "\u202e" not in repr(run)


def test_cards_are_readable_in_light_and_dark() -> None:
    """They set no text colour but white on a badge, whose contrast is that of WCAG 2 for text, and no background."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    assert all(1.05 / (luminance(colour) + 0.05) >= 4.5 for colour in COLOURS.values())
    html = Findings([finding("a", severity) for severity in ("critical", "warning", "info")])._repr_html_()
    assert set(re.findall(r"(?<!-)\bcolor: ([^;\"]+)", html)) == {"#fff"}
    assert set(re.findall(r"background: ([^;\"]+)", html)) <= set(COLOURS.values())
