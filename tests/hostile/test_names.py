"""Modules with names that a page, a terminal, a file or a database could trip over."""

from __future__ import annotations

import shutil
import unicodedata
from pathlib import Path

import pytest
import torch
from torch import nn

import learnscope as ls

NAMES = {
    "mathtext": "a$x^$b",
    "unbalanced mathtext": "a$\\frac{x",
    "lone surrogate": "a\udc80b",
    "right to left": "abc\u202egnp",
    "isolates": "a\u2066b\u2069",
    "terminal escapes": "a\x1b[31mred",
    "newline": "a\nb|c",
    "markup": "<script>alert(1)</script>",
    "markdown": "a|b`c`](javascript:x)",
    "rich markup": "[red]a[/red][/b]",
    "path": "~/$HOME/etc",
    "sql": "a'; drop table records; --",
    "long": "a" * 400,
    "emoji and accents": "é🙂ﷺ",
    "percent and braces": "%s{0}{x}%(y)d",
    "null": "a\0b",
}


def network(name: str) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential()
    for place in (name, f"{name}2", "plain"):
        model.add_module(place, nn.Sequential(nn.Linear(6, 6), nn.ReLU()))
    return model


def recorded(name: str, folder: Path, steps: int = 6) -> ls.Run:
    model = network(name)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    x = torch.randn(8, 6, generator=torch.Generator().manual_seed(0))
    probes = [
        ls.GradientFlow(every=1, per_tensor=True),
        ls.ParameterChange(every=2),
        ls.Loss(),
        ls.WeightKurtosis(every=2),
    ]
    probes += [ls.Activations(every=3), ls.LayerTimes(every=3, at="after_step", repeats=1, seconds=0.01)]
    data = {"holdout": [(x, torch.zeros(8, dtype=torch.long))]}
    with ls.watch(model, optimizer, run=folder, probes=probes, groups={name: "plain"}, strict=True, **data) as w:
        for _ in range(steps):
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
        w.save_state()
    return ls.open_run(folder)


QUICK = {"mathtext", "lone surrogate", "right to left", "terminal escapes", "newline"}
"""Those that broke something once; the others in soak."""
CASES = [pytest.param(name, marks=() if name in QUICK else pytest.mark.soak, id=name) for name in NAMES]


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    folder = tmp_path_factory.mktemp("named")
    recorded(NAMES[request.param], folder / "run")
    return request.param, folder


def dangerous(text: str) -> list[str]:
    """Characters that change how the text around them is shown."""
    return [
        c
        for c in text
        if (
            unicodedata.category(c) in ("Cc", "Cs")
            or c in "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f"
        )
        and c not in "\n\t"
    ]


def test_frames_and_files(case: tuple[str, Path]) -> None:
    _, folder = case
    run = ls.open_run(folder / "run")
    frame = run.frame()
    assert len(frame) > 50
    assert frame["scope"].nunique() > 6, "names that differ stay different"
    frame.to_csv(folder / "frame.csv")
    frame.to_parquet(folder / "frame.parquet")
    assert run.reader.problems == []


def test_the_report_is_written_and_shows_nothing_dangerous(case: tuple[str, Path]) -> None:
    _, folder = case
    page = ls.open_run(folder / "run").report(folder / "report").read_text(encoding="utf-8")
    assert dangerous(page) == []
    assert "<script>" not in page
    assert len(list((folder / "report").rglob("*.png"))) >= 3


def test_the_terminal_shows_nothing_dangerous(case: tuple[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    from learnscope.cli import main

    _, folder = case
    shutil.copytree(folder / "run", folder / "copy")
    for command in (
        ["report", str(folder / "run"), "--out", str(folder / "report2")],
        ["compare", str(folder / "run"), str(folder / "copy")],
    ):
        assert main(command) == 0
        printed = capsys.readouterr()
        assert dangerous(printed.out + printed.err) == []


def test_sql_and_compacting_give_the_same_names(case: tuple[str, Path]) -> None:
    _, folder = case
    run = ls.open_run(folder / "run")
    scopes = set(run.frame()["scope"])
    by_sql = set(ls.query("select distinct scope from records", folder / "run")["scope"])
    assert by_sql == scopes


def test_a_run_goes_on_from_its_state(case: tuple[str, Path]) -> None:
    kind, folder = case
    model = network(NAMES[kind])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    with ls.watch(
        model, optimizer, run=folder / "run", probes=[ls.ParameterChange(every=2)], resume=True, strict=True
    ) as w:
        for _ in range(2):
            model(torch.randn(4, 6)).sum().backward()
            optimizer.step()
    assert w.run.manifest["attempts"][-1]["state_restored"] is True
