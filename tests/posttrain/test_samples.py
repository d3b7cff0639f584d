"""A bare state dictionary is examined on sequences sampled from itself, and every place says so."""

from __future__ import annotations

import ast
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf

import learnscope as ls
from learnscope.cli import main
from learnscope.cli.flags import FLAGS, in_flags
from learnscope.posttrain import ModelAnalyzer, PosttrainError
from learnscope.probes.outputs.columns import SAMPLED
from learnscope.reading.audit_numbers import OWN_SAMPLES
from seeds.posttrain import put

SOURCE = Path(ls.__file__).parent / "posttrain"


def bare(folder: Path, **options: Any) -> Path:
    """A GPT-2's state dictionary, with nothing beside it."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 97, "n_positions": 32, "n_embd": 64, "n_layer": 2, "n_head": 1}
    ends = {"bos_token_id": None, "eos_token_id": None}
    model = tf.GPT2LMHeadModel(tf.GPT2Config(**{**sizes, **ends, **options}))
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), folder / "model.pt")
    return folder / "model.pt"


def classifier(folder: Path) -> Path:
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    tf.BertForSequenceClassification(tf.BertConfig(vocab_size=50, **sizes)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The documented command on a bare state dictionary, without timing it: its folder, and what it printed."""
    import contextlib
    import io

    home = tmp_path_factory.mktemp("bare")
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        asked = ["audit", "--model_path", str(bare(home)), "--output_dir", str(home / "out"), "--examples", "7"]
        assert main([*asked, "--length", "12", "--parts", "bit_widths", "robustness"]) == 0
    return home / "out", said.getvalue()


def test_the_documented_command_needs_neither_tokenizer_nor_data(audited: tuple[Path, str]) -> None:
    out, said = audited
    assert "no data were given, so it is examined on its own samples (--seed 0)" in said
    assert re.search(r"about \d+ s, from two timed passes: bit widths \d+ s \(\d+ forward passes", said)
    body = json.loads((out / "analysis_results.json").read_text())
    assert set(body["not_run"]) == {"quality", "tasks", "speed", "memory", "layers"}
    data = body["about"]["data"]
    assert (data["source"], data["seed"], data["examples"], data["length"]) == (OWN_SAMPLES, 0, 7, 12)
    assert (out / "summary_report.md").read_text().count(f"All of it on {OWN_SAMPLES}") == 2
    assert f"7 examples of {OWN_SAMPLES}" in (out / "insights.md").read_text()


def test_every_record_says_what_it_rests_on(audited: tuple[Path, str]) -> None:
    records = {record.probe: record for record in ls.open_run(audited[0]).records()}
    assert len(records) == 8
    for record in records.values():
        assert record.notes["data"] == OWN_SAMPLES, record.probe
    body = json.loads((audited[0] / "analysis_results.json").read_text())
    for section in ("bit_widths", "robustness"):
        for part in body[section].values():
            assert part["notes"]["data"] == OWN_SAMPLES


def test_there_is_no_perplexity_on_samples_and_the_loss_is_the_entropy(
    audited: tuple[Path, str], tmp_path: Path
) -> None:
    rows = [row for record in ls.open_run(audited[0]).records() for row in record.rows()]
    perplexities = [row for row in rows if row.name.startswith("perplexity")]
    assert len(perplexities) > 10
    assert {(row.value, row.status) for row in perplexities} == {(None, SAMPLED)}
    analyzer = ModelAnalyzer(bare(tmp_path), progress=False)
    found = analyzer.performance_analyzer.compute_basic_metrics(analyzer.data(examples=8, length=20))
    assert found["loss"] == pytest.approx(math.log(97), rel=0.05), "a model that was not trained knows nothing"
    assert found["data"] == OWN_SAMPLES
    assert math.isnan(found["perplexity"])
    assert found["reasons"]["perplexity"] == found["reasons"]["perplexity_low"] == SAMPLED
    report = analyzer.generate_comprehensive_report(tmp_path / "out")
    assert f"| loss on {OWN_SAMPLES} |" in (report / "summary_report.md").read_text()
    [finding] = [finding for finding in analyzer.findings if finding.kind == "audit_quality"]
    assert "says nothing about how good it is" in finding.advice


def test_attacks_state_how_many_examples_they_rest_on(audited: tuple[Path, str]) -> None:
    body = json.loads((audited[0] / "analysis_results.json").read_text())["robustness"]["attacks"]
    rows = body["rows"]
    assert all(row["values"]["examples"] == 7 for row in rows), "also beside the gap"
    assert [row for row in rows if "robustness_gap" in row["values"]]
    insights = (audited[0] / "insights.md").read_text()
    assert "robustness gap" not in insights, "attacks on embeddings are no verdict"
    for title in ("to another token raises the loss by", "Of what anybody could send"):
        insight = insights.split(title)[1].split("\n### ")[0]
        assert f"on 7 examples of {OWN_SAMPLES}" in insight, title


def test_a_seed_gives_the_same_samples_and_another_gives_others(tmp_path: Path) -> None:
    path = bare(tmp_path)
    state = torch.get_rng_state()
    found = [
        ModelAnalyzer(path, progress=False, seed=seed).data(examples=4, length=10, batch_size=3) for seed in (3, 3, 4)
    ]
    assert torch.equal(torch.get_rng_state(), state)
    assert [len(batch["input_ids"]) for batch in found[0]] == [3, 1]
    ids = [torch.cat([batch["input_ids"] for batch in batches]) for batches in found]
    assert ids[0].shape == (4, 10)
    assert torch.equal(ids[0], ids[1])
    assert not torch.equal(ids[0], ids[2])
    assert torch.equal(found[0][0]["labels"], found[0][0]["input_ids"])


def test_a_tokenizer_alone_changes_nothing_about_that(tmp_path: Path) -> None:
    put(tmp_path)
    analyzer = ModelAnalyzer(tmp_path / "model.pt", progress=False)
    assert analyzer.tokenizer is not None
    assert analyzer.data(examples=3, length=8).about["source"] == OWN_SAMPLES
    assert analyzer.data(split="validation", examples=3, length=8).about["source"] == "the built-in text"


def test_messages_name_flags_on_the_command_line_and_keywords_in_python(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, other = bare(tmp_path), classifier(tmp_path / "classifier")
    (tmp_path / "a.jsonl").write_text('{"text": "one two"}\n{"text": "three"}\n')
    (tmp_path / "b.jsonl").write_text('{"body": "one two"}\n')
    text, body = str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")
    odd = bare(tmp_path / "odd", n_embd=40, n_head=4)
    cases: list[tuple[Path, list[str], str, dict[str, Any]]] = [
        (model, ["--data", text], "--tokenizer", {"source": text}),
        (model, ["--data_split", "validation"], "--data_split 'validation' .* --tokenizer", {"split": "validation"}),
        (model, ["--data", body, "--tokenizer", "bytes"], "does not read bytes", {}),
        (other, [], "--data", {"source": None}),
        (other, ["--data", text, "--tokenizer", "bytes"], "does not read bytes", {}),
        (model, ["--tokenizer", "./none"], r"--tokenizer '\./none'", {}),
        (model, ["--data", "./none.jsonl"], r"--data '\./none.jsonl'", {"source": "./none.jsonl"}),
        (model, ["--config_path", str(tmp_path / "none.json")], "config.json", {}),
        (odd, [], "--config_path", {}),
        (model, ["--length", "2"], "--length 2", {}),
        (model, ["--max_mb", "0.001", "--parts", "bit_widths"], r"--max_mb 0\.001 cannot be kept", {}),
        (model, ["--max_mb", "1", "--max_kl", "1"], r"--max_mb\) or damage \(--max_kl", {}),
        (model, ["--export", "a.bin"], r"--export 'a\.bin'", {}),
        (model, ["--device", "nowhere"], "--device 'nowhere'", {}),
    ]
    for path, flags, said, asked in cases:
        command = ["audit", "--model_path", str(path), "--output_dir", str(tmp_path / "out"), "--no_cache", "--quiet"]
        assert main([*command, "--examples", "2", *flags]) == 2, flags
        error = capsys.readouterr().err
        assert re.search(said, error), error
        assert not re.search(rf"\b({'|'.join(FLAGS)})=", error), error
        if asked:
            analyzer = ModelAnalyzer(path, progress=False)
            with pytest.raises(PosttrainError) as raised:
                analyzer.check_data(asked.get("source"), asked.get("split"))
                analyzer.data(asked.get("source"), split=asked.get("split"))
            assert "--" not in str(raised.value)
            assert in_flags(str(raised.value)) in error


def test_every_option_that_a_message_names_has_a_flag() -> None:
    """Of all text in the modules of the front door, `name=` is an option that the command line can be given."""
    unknown = {}
    for path in sorted(SOURCE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        raised = [node for node in ast.walk(tree) if isinstance(node, ast.Raise) or _is_message(node)]
        texts = [part.value for node in raised for part in ast.walk(node) if isinstance(part, ast.Constant)]
        for text in (text for text in texts if isinstance(text, str)):
            for name in re.findall(r"\b([a-z_]+)=", text):
                if name not in FLAGS:
                    unknown[path.name, name] = text
            assert not re.search(r"(?<![-\w])--[a-z]", text), f"{path.name} names a flag in Python: {text}"
    assert {name for _, name in unknown} <= {"n_head"}, unknown


def _is_message(node: ast.AST) -> bool:
    """A text that is put together outside of the raise."""
    return isinstance(node, ast.Assign) and all(
        isinstance(target, ast.Name) and target.id.isupper() for target in node.targets
    )


def test_a_classifier_without_data_is_refused_before_anything_is_computed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = [str(bare(tmp_path)), str(classifier(tmp_path / "classifier"))]
    assert main(["audit", "--model_path", *models, "--output_dir", str(tmp_path / "out")]) == 2
    printed = capsys.readouterr()
    assert "BertForSequenceClassification answers with classes, and there are no data to ask it about" in printed.err
    assert "give --data (a .jsonl file with text and label" in printed.err
    assert not (tmp_path / "out").exists(), "the first model was not examined for minutes before"
    with pytest.raises(PosttrainError, match=r"give data= \(a .jsonl file with text and label"):
        ModelAnalyzer(models[1], progress=False).analyze_performance()
