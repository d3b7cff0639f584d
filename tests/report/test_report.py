"""The report on disk: what it says, and that its figures are there."""

from __future__ import annotations

import io
import re
import struct
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from findings.made_run import MadeRun
from learnscope.findings import find
from learnscope.record import Column, Evidence, Finding, Severity, Table
from learnscope.report.facts import costs, not_recorded, wall_seconds, watched
from learnscope.report.markdown import escape, write_report
from learnscope.report.panels import PANELS
from learnscope.report.terminal import print_findings
from learnscope.store.backend import FolderBackend
from learnscope.store.reader import RunReader

FINDING = Finding(
    kind="k", severity="warning", title="A title with [brackets] and <tags>", detail="0.5 of 3 | 4.", advice="Do it.",
    evidence=Evidence(probe="P", name="x", n=7, first_step=1, last_step=9, value=0.5, interval=(0.25, 0.75)),
)  # fmt: skip


def small() -> MadeRun:
    run = MadeRun(layers=["a", "b"], **{"class": "Tiny"})
    for step in (1, 2, 3):
        run.loss(step, 1.0 / step)
        run.gradients(step, {"a": 0.1, "b": 0.2})
    return run


def images(text: str) -> list[str]:
    return re.findall(r"!\[[^]]*\]\(([^)]+)\)", text)


def is_drawn(path: Path) -> bool:
    """A whole PNG of some size whose pixels are not all one colour."""
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert data.endswith(b"IEND\xaeB`\x82")
    width, height = struct.unpack(">II", data[16:24])
    body = b"".join(re.findall(rb"(?s)IDAT(.*?)(?=.{4}.{4}(?:IDAT|IEND))", data))
    return width >= 800 and height >= 400 and len(set(zlib.decompressobj().decompress(body))) > 20


def test_a_report_with_what_there_is(tmp_path: Path) -> None:
    run = small()
    path = write_report(run.reader, [FINDING], tmp_path / "deep" / "report", name="mine_1")
    text = path.read_text()
    assert path == tmp_path / "deep" / "report" / "report.md"
    assert images(text) == ["gradients.png", "loss.png", "norm.png"]
    assert all(is_drawn(path.parent / name) for name in images(text))
    assert sorted(p.name for p in path.parent.iterdir()) == ["gradients.png", "loss.png", "norm.png", "report.md"]
    # the order: what was watched, the leading picture, findings, the other figures, costs
    marks = ["# Run mine_1", "## What was watched", "gradients.png", "## Findings", "## Figures", "loss.png",
             "## Not recorded", "## What the probes cost", "## Reading further"]  # fmt: skip
    assert [text.index(mark) for mark in marks] == sorted(text.index(mark) for mark in marks)
    assert "### A title with \\[brackets\\] and \\<tags\\>\n\n**Warning.** 0.5 of 3 \\| 4." in text
    assert "n = 7, steps 1 to 9, value 0.5, 95 % interval 0.25 to 0.75" in text
    assert "\n1 warning.\n" in text
    assert "Tiny, 1,000 parameters in 10 tensors, 2 layers, float32" in text
    assert "commit aaaaaaaaaaaa, with uncommitted changes" in text
    assert "| ParameterChange | how far" in text
    assert "| GradientFlow | gradient norms" not in text


def test_a_report_is_written_anew_and_loses_what_is_no_longer_true(tmp_path: Path) -> None:
    stale = tmp_path / PANELS[-1].file
    stale.write_bytes(b"old")
    (tmp_path / "mine.png").write_bytes(b"kept")
    run = MadeRun()
    run.loss(1, 1.0)
    path = write_report(run.reader, [], tmp_path, name="x")
    assert not stale.exists()
    assert (tmp_path / "mine.png").exists()
    assert images(path.read_text()) == ["loss.png"]
    assert "No problems found; not checked: " in path.read_text()


def test_an_empty_run(tmp_path: Path) -> None:
    run = MadeRun()
    run.manifest = {"schema": 1}
    path = write_report(run.reader, find(run.reader), tmp_path, name="empty")
    text = path.read_text()
    assert images(text) == []
    assert "Nothing was recorded, so there is nothing to find." in text
    assert "No probe fired." in text
    assert "| model | not recorded |" in text


def test_failed_probes_only(tmp_path: Path) -> None:
    run = MadeRun()
    run.write("GradientFlow", 3, error="ValueError: a|b\nmore")
    text = write_report(run.reader, find(run.reader), tmp_path, name="x").read_text()
    assert "GradientFlow failed in 1 of 1 firing" in text
    assert "a\\|b" in text


def test_costs_and_wall_time() -> None:
    run = MadeRun()
    run.write("A", 1, cost=1.0)
    run.write("A", 2, cost=3.0)
    run.write("B", 2, cost=0.5)
    run.write("B", 3, error="x")
    assert wall_seconds(run.reader) == 100
    assert costs(run.reader) == [
        ("A", "2", "2,000", "4", "4 %"), ("B", "1", "500", "0.5", "0.5 %"), ("all", "3", "1,500", "4.5", "4.5 %"),
    ]  # fmt: skip
    run.resume(1)  # 50 seconds more; what was superseded was paid for all the same
    assert wall_seconds(run.reader) == 150
    assert costs(run.reader)[0][1:4] == ("2", "2,000", "4")
    assert ("steps", "1 to 1 (1 record); resumed at step 1") in watched(run.reader)


def test_the_time_of_a_run_that_was_killed_ends_with_its_last_record() -> None:
    run = MadeRun()
    del run.manifest["attempts"][0]["ended"]
    run.loss(30, 1.0)
    assert wall_seconds(run.reader) == pytest.approx(3.0)
    run.manifest["attempts"] = []
    assert wall_seconds(run.reader) is None
    assert costs(run.reader)[0][-1] == "n/a"


def test_a_loss_logged_under_another_name_is_said() -> None:
    run = MadeRun()
    run.write("Loss", 1, [Table("model", ["model"], [Column("train_loss", [1.0])])])
    assert "other names were logged" in dict(not_recorded(run.reader))["Loss"]


def test_nothing_found_is_said_once(tmp_path: Path) -> None:
    text = write_report(small().reader, [], tmp_path, name="x").read_text()
    assert text.count("No problems found; not checked: ") == 1
    assert "## Findings" not in text


@pytest.mark.parametrize(
    ("severities", "said"),
    [
        (["critical"], "1 critical finding."),
        (["warning", "warning"], "2 warnings."),
        (["critical", "warning", "info", "info"], "1 critical finding, 1 warning and 2 findings for information."),
    ],
)
def test_the_findings_are_counted_in_words(severities: list[Severity], said: str, tmp_path: Path) -> None:
    findings = [replace(FINDING, severity=severity) for severity in severities]
    assert f"\n{said}\n" in write_report(small().reader, findings, tmp_path, name="x").read_text()


def test_reading_further_names_this_run_and_its_richest_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = MadeRun(FolderBackend.create(tmp_path / "runs" / "a b"))
    run.loss(1, 1.0)
    run.loss(2, 1.0)
    # its statistics per tensor are not kept for the figures, but they count
    names = [f"t{i}" for i in range(9)]
    run.write("ParameterChange", 2, [Table("tensor", names, [Column("l1", [1.0] * 9), Column("l2", [1.0] * 9)])])
    run.backend.close()
    monkeypatch.chdir(tmp_path)
    for path, shown in ((tmp_path / "runs" / "a b", "runs/a b"), (Path("runs/a b"), "runs/a b")):
        text = write_report(RunReader(FolderBackend.existing(path)), [], tmp_path / "r", name="x").read_text()
        assert f'run = ls.open_run("{shown}")' in text
        assert 'run.frame("ParameterChange")' in text
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    reader = RunReader(FolderBackend.existing(tmp_path / "runs" / "a b"))
    assert f'ls.open_run("{tmp_path}/runs/a b")' in write_report(reader, [], tmp_path / "r", name="x").read_text()


def test_reading_further_in_memory(tmp_path: Path) -> None:
    assert "run = w.run" in write_report(small().reader, [], tmp_path, name="x").read_text()


def test_numbers_that_were_measured_once_are_in_the_table() -> None:
    run = small()
    run.model("Mine", 1, size=1437.0)
    assert ("measured once", "Mine: size 1,437") in watched(run.reader)


def test_tiny_costs_are_not_written_with_exponents() -> None:
    run = MadeRun()
    run.write("A", 1, cost=1e-5)
    assert costs(run.reader) == [("A", "1", "0.01", "< 0.001", "< 0.01 %")]


def test_no_spaces_at_the_ends_of_lines() -> None:
    long = replace(FINDING, detail="several words " * 30, advice="do this and that " * 20)
    out = io.StringIO()
    print_findings([long, long], Console(file=out, width=60))
    lines = out.getvalue().split("\n")
    assert [line for line in lines if line != line.rstrip()] == []
    assert max(map(len, lines)) <= 60
    assert lines[0].startswith("WARNING  A title")
    assert lines[1].startswith("   several words")
    assert " ".join(out.getvalue().split()).count("several words " * 30) == 2
    terminal = io.StringIO()
    print_findings([long], Console(file=terminal, width=60, force_terminal=True, color_system=None))
    assert " WARNING " in terminal.getvalue()


@pytest.mark.parametrize("width", range(24, 40))
def test_a_percentage_stays_in_one_line(width: int) -> None:
    out = io.StringIO()
    finding = replace(FINDING, detail="It went from 79.7 % to 74.4 %, which is 5.3 % less.")
    print_findings([finding], Console(file=out, width=width))
    assert len(re.findall(r"\d %", out.getvalue())) == 3


def test_names_survive_markdown() -> None:
    assert escape("h.0.attn_norm `x|y`") == "h.0.attn_norm `x|y`"
    assert escape("a * b * c") == "a \\* b \\* c"


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("words", [1, 30, 300])
def test_a_shortened_finding_keeps_its_title_and_what_to_do(width: int, words: int) -> None:
    finding = replace(FINDING, detail="several words " * words, advice="do this and that " * words)
    out = io.StringIO()
    print_findings([finding, finding], Console(file=out, width=width), more="All of it: --full.")
    blocks = [block.splitlines() for block in out.getvalue().strip().split("\n\n")]
    assert blocks.pop() == ["All of it: --full."]
    for block in blocks:
        assert len(block) <= 5
        assert max(map(len, block)) <= width
        assert block[0].startswith("WARNING  A title")
        assert any(line.startswith("   several words") for line in block)
        assert any(line.startswith("   → do this and that") for line in block)
        assert (words > 1 and width < 200) <= any(line.endswith(" …") for line in block)


def test_findings_on_a_terminal() -> None:
    out = io.StringIO()
    print_findings([FINDING], Console(file=out, width=60))
    text = out.getvalue()
    assert "WARNING" in text
    assert "[brackets]" in text
    assert "→ Do it." in text
    out = io.StringIO()
    print_findings([], Console(file=out, width=60))
    assert "No problems found" in out.getvalue()
