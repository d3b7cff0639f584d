"""An audit is a run: what the command writes is opened, reported on, compared and queried like any other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import learnscope as ls
from learnscope.cli import main
from learnscope.posttrain import ModelAnalyzer, PosttrainError
from learnscope.record import Record
from posttrain.trained import trained_gpt2
from seeds.posttrain import TREE, put

SHORT = ("--examples", "8", "--length", "24", "--data_split", "validation")


def audit(model: Path, folder: Path, *more: str) -> Path:
    asked = ["audit", "--model_path", str(model), "--output_dir", str(folder), *SHORT, "--quiet", *more]
    assert main(asked) == 0
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An audit of all parts of a trained model."""
    return audit(trained_gpt2(), tmp_path_factory.mktemp("whole") / "results")


def numbers_of(record: Record) -> dict[Any, Any]:
    return {(r.kind, r.scope, tuple(sorted(r.labels.items())), r.name): r.value for r in record.rows()}


def test_the_documented_files_are_views_of_the_runs_records(whole: Path) -> None:
    assert all((whole / file).is_file() for file in TREE)
    run = ls.open_run(whole)
    assert run.manifest["source"] == "audit"
    assert run.manifest["status"] == "finished"
    body = json.loads((whole / "analysis_results.json").read_text())
    assert body["model"] == run.manifest["model"]
    assert (body["name"], body["about"]) == (run.manifest["audited"]["name"], run.manifest["audited"]["about"])
    records = {record.probe: record for record in run.records()}
    parts = [part for section in ("performance", "bit_widths", "robustness") for part in body[section].values()]
    assert {part["probe"] for part in parts} == set(records)
    for part in parts:
        shown = {
            (row["kind"], row["scope"], tuple(sorted(row["labels"].items())), name): value
            for row in part["rows"]
            for name, value in row["values"].items()
        }
        assert shown == numbers_of(records[part["probe"]])
    assert [finding["kind"] for finding in body["findings"]] == [finding.kind for finding in run.findings()]
    assert json.loads((whole / "findings.json").read_text()) == body["findings"]


def test_report_and_query_read_the_folder(whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(whole), "--format", "png", "--out", str(tmp_path)]) == 0
    assert {Path(name).name for name in TREE if name.startswith("plots/")} <= {p.name for p in tmp_path.iterdir()}
    capsys.readouterr()
    asked = "select value from records where probe = 'Performance' and name = 'loss'"
    assert main(["query", asked, str(whole), "--json"]) == 0
    [row] = json.loads(capsys.readouterr().out)
    [loss] = ls.open_run(whole).frame("Performance", name="loss")["value"]
    assert row["value"] == loss


def test_two_audits_are_compared_like_any_two_runs(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path / "other")
    other = audit(tmp_path / "other" / "model.pt", tmp_path / "second", "--parts", "performance")
    capsys.readouterr()
    assert main(["compare", str(whole), str(other), "--out", str(tmp_path / "compared")]) == 0
    assert "Models side by side" in capsys.readouterr().out
    page = (tmp_path / "compared" / "compare.md").read_text()
    losses = [json.loads((folder / "analysis_results.json").read_text()) for folder in (whole, other)]
    told = json.loads((tmp_path / "compared" / "compare.json").read_text())["audits"][0]
    for name, body in zip(("results", "second"), losses, strict=True):
        values = body["performance"]["quality"]["rows"][0]["values"]
        assert told["numbers"][name]["value"] == values["loss"]
    assert told["best"] == "results", "trained, and the other is not"
    assert "![audits](audits.png)" in page


def test_a_second_audit_takes_the_place_of_the_first_and_a_failed_one_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path)
    results = audit(tmp_path / "model.pt", tmp_path / "results", "--parts", "performance")
    first = ls.open_run(results)
    first.compact()
    before = first.frame()
    command = ["audit", "--model_path", str(tmp_path / "model.pt"), "--output_dir", str(results), *SHORT, "--no_cache"]

    def broken(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(ls.Performance, "measure", broken)
        assert main([*command, "--quiet"]) == 130
    assert ls.open_run(results).frame().equals(before)
    audit(tmp_path / "model.pt", results, "--parts", "bit_widths", "--no_cache")
    assert {record.probe for record in ls.open_run(results).records()} == {
        "BitSensitivity", "BitFrontier", "ExportedSpeed"
    }  # fmt: skip


def test_a_run_of_another_kind_is_never_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = torch.nn.Linear(3, 2)
    data = [(torch.randn(8, 3), torch.arange(8) % 2)]
    ls.audit(model, data, run=tmp_path / "own", probes=[ls.Performance()], progress=False)
    kept = (tmp_path / "own" / "records.jsonl").read_bytes()
    put(tmp_path)
    asked = ["audit", "--model_path", str(tmp_path / "model.pt"), "--output_dir", str(tmp_path / "own")]
    assert main(asked) == 2
    assert "already holds another run" in capsys.readouterr().err
    analyzer = ModelAnalyzer(model, progress=False)
    analyzer.performance_analyzer.compute_basic_metrics(data)
    with pytest.raises(PosttrainError, match="already holds another run"):
        analyzer.generate_comprehensive_report(tmp_path / "own")
    assert (tmp_path / "own" / "records.jsonl").read_bytes() == kept


def test_the_analyzers_and_the_front_door_measure_the_same(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    data = [(torch.randn(40, 3), torch.arange(40) % 2)]
    analyzer = ModelAnalyzer(model, progress=False)
    analyzer.performance_analyzer.compute_basic_metrics(data)
    analyzer.bit_width_analyzer.analyze_layer_sensitivity(data)
    analyzer.generate_comprehensive_report(tmp_path)
    own = ls.audit(model, data, probes=[ls.Performance(), ls.BitSensitivity()], progress=False)
    for mine, other in zip(ls.open_run(tmp_path).records(), own.records(), strict=True):
        notes = {
            name: note for name, note in mine.notes.items() if name != "examples_given"
        }  # the analyzer counts them
        assert (mine.probe, mine.source, notes) == (other.probe, other.source, other.notes)
        assert numbers_of(mine) == numbers_of(other)


@pytest.mark.soak
def test_the_built_in_model_is_audited_reported_compared_and_queried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder, size in (("first", "6"), ("second", "3")):
        asked = ["audit", "--output_dir", folder, *SHORT, "--quiet", "--parts", "performance", "bit_widths"]
        assert main([*asked, "--batch_size", size]) == 0
    assert main(["report", "first"]) == 0
    assert (tmp_path / "first" / "report" / "report.html").is_file()
    assert main(["compare", "first", "second", "--out", "compared"]) == 0
    capsys.readouterr()
    assert main(["query", "select count(*) as n from records where kind = 'configuration'", "first", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["n"] > 20
