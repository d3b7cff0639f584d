"""Bad inputs: refused before any work, with the cause and the cure, and without a file left behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from learnscope.cli import main
from learnscope.posttrain import ModelAnalyzer
from learnscope.posttrain.errors import PosttrainError
from learnscope.sources.errors import MOST, whole_reason
from probes.reference import tiny_gpt2, tokens


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("refused") / "gpt2"
    model = tiny_gpt2(vocab_size=256, n_positions=32)
    model.config.architectures = ["GPT2LMHeadModel"]
    model.save_pretrained(folder)
    return folder


@pytest.fixture
def refused(saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def run(*arguments: Any, model: Path = saved) -> str:
        out = tmp_path / "out"
        before = sorted(tmp_path.rglob("*"))
        assert main(["audit", "--model_path", str(model), "--output_dir", str(out), *map(str, arguments)]) == 2
        assert sorted(tmp_path.rglob("*")) == before, "nothing is written"
        return capsys.readouterr().err

    return run


def test_a_text_of_one_word(refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_text(json.dumps({"input_ids": [5]}) + "\n")
    said = refused("--data", tmp_path / "data.jsonl")
    assert "none of 1 documents is left, for all have fewer than 2 tokens" in said
    assert "give longer texts, or join short ones into one row" in said


def test_an_error_of_a_configuration_keeps_its_reason(refused: Callable[..., str], saved: Path, tmp_path: Path) -> None:
    fields = json.loads((saved / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**fields, "n_head": 3}))
    said = refused("--config_path", tmp_path / "config.json")
    assert str(tmp_path / "config.json") in said
    assert "16" in said
    assert "3" in said
    (tmp_path / "config.json").write_text(json.dumps({**fields, "n_embd": "wide"}))
    said = refused("--config_path", tmp_path / "config.json")
    assert "n_embd" in said
    assert "wide" in said or "str" in said, "the reason comes after the field"


def test_a_reason_of_several_lines_is_told_whole_and_only_its_middle_is_cut() -> None:
    error = ValueError("Validation error for field 'hidden_size':\n\n    TypeError: expected int, got str")
    assert whole_reason(error) == "Validation error for field 'hidden_size': TypeError: expected int, got str"
    long = whole_reason(ValueError("begins " + "x" * 5000 + " ends"))
    assert long.startswith("begins")
    assert long.endswith("ends")
    assert len(long) <= MOST + 3
    assert whole_reason(KeyError()) == "KeyError"


@pytest.mark.parametrize(
    "flags", [("--device_memory_gb", "0"), ("--device_bandwidth_gbs", "-1"), ("--device_tflops", "x")]
)
def test_numbers_of_a_device_are_above_0(saved: Path, flags: tuple[str, str], tmp_path: Path) -> None:
    assert main(["audit", "--model_path", str(saved), "--output_dir", str(tmp_path / "out"), *flags]) == 2
    assert not (tmp_path / "out").exists()


def test_quick_and_thorough_exclude_each_other(refused: Callable[..., str]) -> None:
    assert "--thorough and --quick exclude each other" in refused("--quick", "--thorough")


def images(channels: int = 3) -> list[Any]:
    return [(torch.randn(4, channels, 8, 8), torch.zeros(4, dtype=torch.int64))]


def counted(model: nn.Module) -> list[int]:
    calls: list[int] = []
    model.register_forward_hook(lambda *_: calls.append(1))
    return calls


def test_batches_of_another_shape_are_named_before_anything_is_measured() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 36, 2))
    calls = counted(model)
    analyzer = ModelAnalyzer(model, progress=False)
    with pytest.raises(
        PosttrainError, match=r"Sequential cannot run batch 0, .*\[4, 1, 8, 8\].*give batches of the shape"
    ):
        analyzer.analyze(images(1))
    with pytest.raises(PosttrainError, match="cannot run batch 1"):
        analyzer.analyze([*images(), *images(1)])
    assert len(calls) == 1, "one example of the first batch of each shape, and no more"
    assert not analyzer.results
    assert not list(analyzer.run.records())


def test_token_ids_need_two_dimensions() -> None:
    analyzer = ModelAnalyzer(tiny_gpt2(), progress=False)
    with pytest.raises(
        PosttrainError, match=r"have the shape \[6\], and \[examples, tokens\] is needed.*input_ids\[None\]"
    ):
        analyzer.analyze_performance([{"input_ids": tokens(1, 6)[0]}])
    with pytest.raises(PosttrainError, match=r"have the shape \[1, 2, 6\]"):
        analyzer.analyze_bit_widths([{"input_ids": tokens(2, 6)[None]}])


def test_labels_of_another_length_are_refused() -> None:
    analyzer = ModelAnalyzer(tiny_gpt2(), progress=False)
    with pytest.raises(
        PosttrainError, match=r"labels of batch 0 have the shape \[2, 5\], and input_ids \[2, 6\]: one label"
    ):
        analyzer.analyze_performance([{"input_ids": tokens(2, 6), "labels": tokens(2, 5)}])
