"""An ordinary small language model that was trained here: its questions, its prompts, and no alarm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from learnscope.cli import main
from learnscope.posttrain import ModelAnalyzer, read_task
from learnscope.reading.audit import read_audit
from posttrain.trained import trained_gpt2


@pytest.fixture(scope="module")
def analyzer() -> ModelAnalyzer:
    return ModelAnalyzer(trained_gpt2(), progress=False)


@pytest.fixture(scope="module")
def robust(analyzer: ModelAnalyzer) -> dict[str, Any]:
    data = analyzer.data(split="validation", examples=8, length=32)
    return analyzer.analyze_robustness(data, examples=8, epsilons=(0.5, 1.0), steps=2, transfer_steps=2)


def test_no_robustness_warning(analyzer: ModelAnalyzer, robust: dict[str, Any]) -> None:
    """Although attacks on its embeddings take most of its accuracy, as they do of every language model."""
    assert robust["robustness_gap"] > 0.1
    findings = analyzer.run.findings()
    assert [one.kind for one in findings if one.severity != "info"] == []
    assert {"audit_prompts", "audit_embedding_curvature"} <= {one.kind for one in findings}


def test_prompts_are_changed_as_text(analyzer: ModelAnalyzer, robust: dict[str, Any]) -> None:
    typos = robust["prompts"]["typos"]
    assert [entry["level"] for entry in typos] == [0.02, 0.1]
    assert typos[1]["kl"] > typos[0]["kl"] > 0
    assert robust["prompts"]["changed"].startswith("the first half of each text")
    part = read_audit(analyzer.run.reader).prompts
    assert part is not None
    assert part.reason is None  # every kind was measured


def test_changes_under_attack_are_no_wider_than_the_tokens_allow(robust: dict[str, Any]) -> None:
    """Eight texts: Newcombe's of eight answers is some 0.6 wide."""
    for entry in robust["bits"]["transfer"]:
        if "accuracy_change" in entry and entry["attack_bits"] == entry["test_bits"] != 0:
            assert entry["accuracy_change_high"] - entry["accuracy_change_low"] < 0.3


@pytest.fixture
def questions(tmp_path: Path) -> list[str]:
    rows = [
        {"context": "Return the", "choices": ["length of the list", "zzqqx"], "answer": 0},
        {"context": "If the file does not", "choices": ["exist", "qqzz"], "answer": "exist"},
    ]
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "words.jsonl").write_text(json.dumps({"prompt": "Return the", "answer": "no such thing"}) + "\n")
    return [str(tmp_path / "own.jsonl"), str(tmp_path / "words.jsonl")]


def command(tmp_path: Path, *more: str) -> list[str]:
    return ["audit", "--model_path", str(trained_gpt2()), "--data_split", "validation[:20]", "--parts", "performance",
            "--output_dir", str(tmp_path / "audit"), "--examples", "8", "--length", "16", "--quiet", *more]  # fmt: skip


def test_questions_are_answered(analyzer: ModelAnalyzer, questions: list[str]) -> None:
    data = analyzer.data(split="validation", examples=8, length=16)
    found = analyzer.performance_analyzer.answer_tasks(data, [read_task(file) for file in questions])
    assert found["own"]["acc"] in (0, 0.5, 1)
    assert (found["own"]["chance"], found["own"]["questions"]) == (0.5, 2)
    assert found["words"]["exact_match"] == 0
    assert found["words"]["reasons"]["acc"] == "the answers are in words"


def test_wrong_tasks_are_refused_before_any_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(tmp_path, "--task", str(tmp_path / "absent.jsonl"))) != 0
    assert "--task" in capsys.readouterr().err
    (tmp_path / "bad.jsonl").write_text('{"context": "a", "choices": ["b"], "answer": 0}\n')
    assert main(command(tmp_path, "--task", str(tmp_path / "bad.jsonl"))) != 0
    assert "two or more texts are needed" in capsys.readouterr().err
    assert not (tmp_path / "audit").exists()


@pytest.mark.soak
def test_the_command_asks_questions(tmp_path: Path, questions: list[str]) -> None:
    assert main(command(tmp_path, "--task", questions[0], "--task", questions[1])) == 0
    body = json.loads((tmp_path / "audit" / "analysis_results.json").read_text())
    rows = {row["scope"]: row["values"] for row in body["performance"]["tasks"]["rows"]}
    assert rows["own"]["acc"] in (0, 0.5, 1)
    assert rows["words"]["exact_match"] == 0
    assert "acc, own" in (tmp_path / "audit" / "summary_report.md").read_text()
