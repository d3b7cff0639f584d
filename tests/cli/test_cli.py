"""The command line: what it prints, what it returns, and what it does not import."""

from __future__ import annotations

import json
import subprocess
import sys
import types
from pathlib import Path

import pytest

from findings.made_run import MadeRun
from learnscope.cli import main
from learnscope.store.backend import FolderBackend


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "a"
    run = MadeRun(FolderBackend.create(folder), frozen=["base.weight"])
    for step in (1, 2):
        run.loss(step, 1.0)
    run.backend.close()
    return folder


def test_report_writes_prints_and_says_where(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(run_folder)]) == 0
    out = capsys.readouterr().out
    assert "INFO" in out
    assert "base.weight" in out
    assert f"report: {run_folder / 'report' / 'report.html'}" in out.replace("\n", "")
    assert (run_folder / "report" / "report.html").stat().st_size > 100_000
    assert json.loads((run_folder / "findings.json").read_text())[0]["kind"] == "frozen"


def test_with_out_nothing_is_written_into_the_run_folder(run_folder: Path, tmp_path: Path) -> None:
    before = sorted(run_folder.rglob("*"))
    assert main(["report", str(run_folder), "--out", str(tmp_path / "elsewhere")]) == 0
    assert sorted(run_folder.rglob("*")) == before
    assert "<title>a · learnscope</title>" in (tmp_path / "elsewhere" / "report.html").read_text()


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    return captured.err


def test_what_is_not_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path / "nowhere")]) == 2
    assert "is not a run folder" in one_line(capsys)


def test_a_newer_schema(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = json.loads((run_folder / "run.json").read_text())
    (run_folder / "run.json").write_text(json.dumps({**manifest, "schema": 99}))
    assert main(["report", str(run_folder)]) == 2
    assert "Upgrade learnscope" in one_line(capsys)


def test_damaged_json(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run_folder / "run.json").write_text("{")
    assert main(["report", str(run_folder)]) == 2
    assert "not readable JSON" in one_line(capsys)


def test_a_place_that_cannot_be_written(run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("in the way")
    assert main(["report", str(run_folder), "--out", str(tmp_path / "file" / "x")]) == 2
    assert "learnscope report:" in one_line(capsys)


@pytest.mark.parametrize(("word", "hint"), [("reprot", "did you mean 'report'?"), ("zzz", "there are: report, view")])
def test_a_wrong_command(word: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([word]) == 2
    assert hint in capsys.readouterr().err


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "learnscope report runs/a" in capsys.readouterr().out
    assert main(["report", "--help"]) == 0
    assert "nothing into the run folder" in capsys.readouterr().out
    assert main(["demo", "--help"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "--quick" in said
    assert "five small models" in said
    assert "folders below --out, and shows what is found in each" in said


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("learnscope 0.")


def test_demo_hands_over_its_options(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls = []
    stand_in = types.ModuleType("learnscope.demo")
    stand_in.run_demo = lambda out, quick: calls.append((out, quick)) or 3  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "learnscope.demo", stand_in)
    assert main(["demo", "--out", str(tmp_path), "--quick"]) == 3
    assert calls == [(tmp_path, True)]


def test_a_report_does_not_import_torch(run_folder: Path) -> None:
    code = (
        "import sys; from learnscope.cli import main; assert main(['report', sys.argv[1]]) == 0; "
        "assert 'torch' not in sys.modules and 'matplotlib' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(run_folder)], check=True, timeout=60, capture_output=True)
