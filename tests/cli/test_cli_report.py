"""`learnscope report`: its formats, several runs on one page, wrong paths, and JSON that its schema describes."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from findings.made_run import MadeRun
from learnscope.cli import main
from learnscope.report.as_json import schema
from learnscope.store.backend import FolderBackend
from report.page.reading import payload_of


def made(folder: Path, *, broken: bool = False) -> Path:
    run = MadeRun(FolderBackend.create(folder), layers=["a", "b"])
    for step in range(1, 41):
        run.loss(step, math.nan if broken and step > 30 else 2.0 / step)
    run.backend.close()
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    made(tmp_path / "runs" / "good")
    made(tmp_path / "runs" / "deep" / "bad", broken=True)
    return tmp_path / "runs"


def test_every_format(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, file in (("html", "report.html"), ("markdown", "report.md"), ("png", "loss.png")):
        assert main(["report", str(runs / "good"), "--format", name, "--out", str(tmp_path / name)]) == 0
        assert (tmp_path / name / file).stat().st_size > 500
    assert [path.name for path in (tmp_path / "html").iterdir()] == ["report.html"]
    assert not (tmp_path / "png" / "report.md").exists()
    capsys.readouterr()
    assert main(["report", str(runs / "good"), "--format", "json", "--out", str(tmp_path / "json")]) == 0
    assert json.loads((tmp_path / "json" / "report.json").read_text())["name"] == "good"


def test_json_is_what_its_schema_says(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    judge = jsonschema.Draft202012Validator(schema())
    judge.check_schema(schema())
    assert main(["report", str(runs / "deep" / "bad"), "--format", "json", "--fail-on", "critical"]) == 1
    one = json.loads(capsys.readouterr().out)
    judge.validate(one)
    assert one["verdict"]["severity"] == "critical"
    assert one["findings"][0]["kind"] == "nonfinite"
    assert main(["report", str(runs), "--format", "json", "--fail-on", "critical"]) == 1
    several = json.loads(capsys.readouterr().out)
    judge.validate(several)
    assert [run["name"] for run in several["runs"]] == ["deep/bad", "good"]
    # a schema that takes everything would be none
    for wrong in ({}, one | {"status": 3}, one | {"more": 1}, one | {"findings": [{"kind": "x"}]}):
        assert not judge.is_valid(wrong)


def test_a_folder_of_runs_is_one_page(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(runs / "good")]) == 0
    capsys.readouterr()
    assert main(["report", str(runs)]) == 0
    out = capsys.readouterr().out
    assert "deep/bad  CRITICAL" in out
    assert f"report: {runs / 'report.html'}" in out.replace("\n", "")
    body = payload_of(runs / "report.html")
    assert body["kind"] == "runs"
    by_name = {row["name"]: row for row in body["runs"]}
    assert by_name["good"]["report"] == "good/report/report.html"
    assert by_name["deep/bad"]["report"] is None
    assert [len(panel["curves"]) for panel in body["panels"]] == [2]


def test_several_runs_named_one_by_one(runs: Path, tmp_path: Path) -> None:
    (runs / "torn").mkdir()
    (runs / "torn" / "run.json").write_text("{")
    paths = [str(runs / "good"), str(runs / "deep" / "bad"), "--out", str(tmp_path / "out")]
    assert main(["report", *paths]) == 0
    assert len(payload_of(tmp_path / "out" / "report.html")["runs"]) == 2
    assert main(["report", str(runs), "--out", str(tmp_path / "out")]) == 0
    body = payload_of(tmp_path / "out" / "report.html")
    assert [each["name"] for each in body["broken"]] == [str(runs / "torn")]


def test_a_wrong_path_is_answered_with_the_runs_that_are_there(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(runs / "godo")]) == 2
    assert f"did you mean {runs / 'good'}?" in capsys.readouterr().err
    assert main(["report", str(runs / "xyz")]) == 2
    assert f"the runs in {runs} are good" in capsys.readouterr().err
    assert main(["report", str(runs), "--format", "markdown"]) == 2
    assert "name one of them" in capsys.readouterr().err


def test_the_numbers_of_a_page_are_packed(runs: Path, tmp_path: Path) -> None:
    main(["report", str(runs / "good"), "--out", str(tmp_path)])
    body = payload_of(tmp_path / "report.html")
    assert body["main"][0]["curves"][0]["n"] == 40
