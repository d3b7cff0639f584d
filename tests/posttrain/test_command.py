"""`learnscope audit`: what it writes, remembers, refuses, and leaves alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from learnscope.cli import main
from learnscope.store.memo import ResultCache
from posttrain.trained import trained_gpt2
from seeds.posttrain import put

FAST = ("--examples", "6", "--length", "24", "--no_cache", "--quiet")


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with `model.pt`, its configuration and tokenizer; the working directory."""
    put(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_second_audit_computes_nothing_and_one_that_was_broken_off_goes_on(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["audit", "--model_path", "model.pt", "--examples", "6", "--length", "24", "--parts", "bit_widths"]
    computed: list[int] = []
    once = ResultCache.once

    def broken_off(memo: ResultCache, *given: object, **more: object) -> object:
        if len(computed) >= 9:
            raise KeyboardInterrupt
        answer = once(memo, *given, **more)  # type: ignore[arg-type]
        computed.append(memo.computed)
        return answer

    with monkeypatch.context() as patched:
        patched.setattr(ResultCache, "once", broken_off)
        assert main(command) == 130
    assert "goes on from there" in capsys.readouterr().err
    assert not (tiny / "analysis_results" / "analysis_results.json").exists()
    before = set(files(tiny / "analysis_results" / "cache"))
    assert len(before) == 9

    counted: list[ResultCache] = []
    make = ResultCache.__init__

    def noted(memo: ResultCache, folder: Path | None = None) -> None:
        make(memo, folder)
        counted.append(memo)

    monkeypatch.setattr(ResultCache, "__init__", noted)
    assert main(command) == 0
    after = files(tiny / "analysis_results" / "cache")
    assert set(after) > before
    assert counted[0].computed == len(after) - len(before), "what the first one had done was not done again"
    first = json.loads((tiny / "analysis_results" / "analysis_results.json").read_text())
    assert main(command) == 0
    assert counted[1].computed == 0
    second = json.loads((tiny / "analysis_results" / "analysis_results.json").read_text())
    assert second["bit_widths"] == first["bit_widths"], "times included: they are remembered for this machine"


def test_several_models_stand_side_by_side(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(tiny / "other")
    weights = torch.load(tiny / "other" / "model.pt", weights_only=True)
    torch.save({name: value * 1.5 for name, value in weights.items()}, tiny / "other" / "model.pt")
    asked = ["audit", "--model_path", "model.pt", "other/model.pt", "--output_dir", "both", "--parts", "bit_widths"]
    assert main([*asked, *FAST]) == 0
    text = (tiny / "both" / "comparison.md").read_text()
    found = {}
    names = f"{tiny.name}/model.pt", "other/model.pt"
    for name in names:
        body = json.loads((tiny / "both" / name.replace("/", "_") / "analysis_results.json").read_text())
        assert body["name"] == name
        assert name in text
        found[name] = body["bit_widths"]["optimum"]["rows"]
    assert found[names[0]] != found[names[1]]
    assert capsys.readouterr().out.strip() == "both/comparison.md"


def pickled(folder: Path) -> list[str]:
    class Trap:
        def __reduce__(self) -> tuple[Callable[..., int], tuple[str]]:
            return os.system, (f"touch {folder / 'trapped'}",)

    torch.save({"model": Trap()}, folder / "model.pt")
    return ["holds more than weights", "safetensors"]


def truncated(folder: Path) -> list[str]:
    whole = (folder / "model.pt").read_bytes()
    (folder / "model.pt").write_bytes(whole[: len(whole) // 2])
    return ["damaged"]


def misfit(folder: Path) -> list[str]:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "n_embd": 32}))
    return ["does not fit", "(257, 16)", "(257, 32)", "config_path"]


def no_tokenizer(folder: Path) -> list[str]:
    for path in folder.glob("tokenizer*"):
        path.unlink()
    return ["no tokenizer was found", "--tokenizer", "input_ids"]


def empty(folder: Path) -> list[str]:
    (folder / "nothing.jsonl").write_text("")
    return ["nothing.jsonl", "no examples"]


@pytest.mark.parametrize("spoil", [pickled, truncated, misfit, no_tokenizer, empty])
def test_what_cannot_be_audited_is_refused_and_earlier_results_stay(
    tiny: Path, capsys: pytest.CaptureFixture[str], spoil: Callable[[Path], list[str]]
) -> None:
    results = tiny / "analysis_results"
    results.mkdir()
    (results / "analysis_results.json").write_text('{"earlier": 1}')
    said = spoil(tiny)
    spoiled = files(tiny)
    data = {empty: ["--data", "nothing.jsonl"], no_tokenizer: ["--data_split", "validation"]}.get(spoil, [])
    assert main(["audit", "--model_path", "model.pt", *data]) == 2
    error = capsys.readouterr().err
    assert error.startswith("learnscope audit: ")
    assert error.count("\n") == 1, "one line, and no traceback"
    for part in said:
        assert part in error
    assert files(tiny) == spoiled, "neither a file of the model nor an earlier result is touched, and no trap ran"


def test_another_budget_needs_neither_model_nor_torch(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "--model_path", "model.pt", "--parts", "bit_widths", *FAST]) == 0
    path = "analysis_results/sensitivity.json"
    size = json.loads((tiny / "analysis_results" / "analysis_results.json").read_text())
    [four] = [row["values"]["packed_bytes"] for row in size["bit_widths"]["configurations"]["rows"]
              if row["scope"] == "uniform_4"]  # fmt: skip
    capsys.readouterr()
    assert main(["audit", "--solve", path, "--max_mb", str(four / 1e6)]) == 0
    out = capsys.readouterr().out
    assert f"{four / 1e6:.3f} MB" in out
    assert out.count("bits\n") == 6, "two blocks, the embedding and that of positions"
    for wrong, reason in ((["--max_mb", "0.001"], "smallest"), ([], "--max_mb or --max_kl")):
        assert main(["audit", "--solve", path, *wrong]) == 2
        assert reason in capsys.readouterr().err
    program = f"""
import sys
from learnscope.cli import main
assert main(["audit", "--help"]) == 0
assert main(["audit", "--solve", {path!r}, "--max_kl", "1e-3"]) == 0
assert "torch" not in sys.modules and "transformers" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, cwd=tiny)


def test_thresholds_and_exports(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = ["audit", "--model_path", str(trained_gpt2()), "--examples", "8", "--length", "32", "--no_cache", "--quiet"]
    asked = ["--memory_mb", "0.5", "--parts", "bit_widths", "--export", "packed.safetensors", "--max_mb", "0.27"]
    assert main([*model, *asked]) == 0
    body = json.loads((tiny / "analysis_results" / "analysis_results.json").read_text())
    assert body["thresholds"]["audit_memory_bytes"] == 5e5
    assert (tiny / "packed.safetensors").stat().st_size < 300_000


def test_what_would_come_up_late_is_refused_at_once(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tiny / "a_file").write_text("")
    model = ["audit", "--model_path", "no_such_model.pt"]
    for wrong, reason in (
        (["--robustness_gap", "-1"], "robustness_gap"),
        (["--max_mb", "1", "--max_kl", "0.1"], "one budget"),
        (["--max_mb", "0"], "--max_mb"),
        (["--max_kl", "nan"], "--max_kl"),
        (["--export", "x.safetensors", "--parts", "performance"], "add bit_widths"),
        (["--output_dir", "a_file"], "is a file"),
    ):
        assert main([*model, *wrong]) == 2
        assert reason in capsys.readouterr().err
