"""The recommended mix in files of other libraries, from the analyzer and from the command."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from learnscope.cli import main
from learnscope.model.bits.calibration import Calibration
from learnscope.model.bits.ledger import ledger
from learnscope.model.bits.quantised_units import find_units
from learnscope.model.bits.torchao_export import ExportError
from learnscope.posttrain import ModelAnalyzer, PosttrainError, export_model
from learnscope.posttrain.exporting import in_words, search_options
from learnscope.tensor.bits.gptq import quantize_gptq
from learnscope.tensor.bits.quantize import Scheme, dequantize
from model.bits.exports.exported_models import BATCHES, VOCABULARY, blocks_at, gpt2, llama

_IDS = torch.randint(1, VOCABULARY, (24, 14), generator=torch.Generator().manual_seed(3))
EXAMPLES = [{"input_ids": _IDS, "labels": _IDS}]


@torch.no_grad()
def mean_kl_on(ids: Tensor, model: nn.Module, other: nn.Module) -> float:
    """KL per predicted position in float64, by its definition."""
    p, q = (each(input_ids=ids).logits[:, :-1].double().log_softmax(-1) for each in (model, other))
    return float((p.exp() * (p - q)).sum(-1).mean())


def test_the_recommended_mix_is_written_as_it_was_measured(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    analyzer = ModelAnalyzer(gpt2(), progress=False)
    with pytest.raises(PosttrainError, match="nothing is recommended yet"):
        export_model(analyzer, tmp_path / "m.gguf")
    ways: dict[str, Any] = {"bits": (8, 4), "granularity": "group", "group_size": 32}
    best = analyzer.bit_width_analyzer.find_optimal_configuration(BATCHES, **ways)
    told = export_model(analyzer, tmp_path / "m.gguf", BATCHES)
    assert told.kl == pytest.approx(told.promised_kl, rel=1e-4)
    kinds = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(told.path).tensors}
    for number in (0, 1):
        expected = f"Q{best['recommended'][f'transformer.h.{number}.mlp']}_0"
        assert kinds[f"blk.{number}.ffn_up.weight"] == expected
    packed = export_model(analyzer, tmp_path / "m.safetensors", BATCHES)
    assert packed.promised_kl != told.promised_kl  # another quantiser: each has its own promise
    first, second, *_ = in_words(told)
    assert f"exported as gguf: {told.path}, {told.file_bytes:,} bytes" in first
    assert f"KL {told.kl:.3g} from the original" in second


def test_bits_that_are_given_need_no_measurement(tmp_path: Path) -> None:
    model: Any = llama()
    told = export_model(ModelAnalyzer(model, progress=False), tmp_path / "m.safetensors", bits=blocks_at(model, 8, 3))
    assert told.kl is None
    assert in_words(told) == [
        f"exported as packed: {told.path}, {told.file_bytes:,} bytes ({told.promised_bytes:,} promised)"
    ]


def test_the_command_refuses_before_it_measures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    llama().save_pretrained("llama")  # type: ignore[operator]
    (tmp_path / "taken.safetensors").write_bytes(b"a thesis")
    for flags, match in (
        (["--export", "m.onnx"], "--export 'm.onnx': name a file that ends in .safetensors or .gguf, or a folder"),
        (["--export", "taken.safetensors"], "exists and is no earlier export"),
        (["--export", "m.gguf", "--export_format", "torchao"], "torchao is a folder, not a file"),
        (["--export_format", "gguf"], "--export_format 'gguf' is that of a file: name it (--export)"),
    ):
        assert main(["audit", "--model_path", "llama", "--parts", "bit_widths", "--quiet", *flags]) != 0
        assert match in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["llama", "taken.safetensors"]


def test_the_command_writes_a_folder_that_transformers_loads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("compressed_tensors")
    monkeypatch.chdir(tmp_path)
    llama().save_pretrained("llama")  # type: ignore[operator]
    asked = ["--model_path", "llama", "--parts", "bit_widths", "--examples", "8", "--length", "12", "--export", "small"]
    assert main(["audit", *asked, "--no_cache"]) == 0
    said = capsys.readouterr().out
    assert "only what compressed-tensors can hold is searched: methods mse, gptq; bits 8, 7, 6, 5, 4, 3, 2" in said
    assert "exported as compressed-tensors: small" in said
    from transformers import AutoModelForCausalLM

    assert AutoModelForCausalLM.from_pretrained("small").num_parameters() > 0
    assert json.loads(Path("small/learnscope.json").read_text())["format"] == "compressed-tensors"


@pytest.fixture(scope="module")
def by_gptq() -> tuple[ModelAnalyzer, dict[str, Any]]:
    """A Llama whose recommended weights are rounded by GPTQ, in groups that GGUF has."""
    analyzer = ModelAnalyzer(llama(), progress=False)
    ways: dict[str, Any] = {
        "bits": (8, 4),
        "granularity": "group",
        "group_size": 32,
        "embeddings": False,
        "method": "gptq",
    }
    budget = {unit.name: 4 for unit in find_units(analyzer.model)}
    within = ledger(analyzer.model, budget, Scheme(granularity="group", group_size=32)).packed_bytes
    return analyzer, analyzer.bit_width_analyzer.find_frontier(EXAMPLES, max_bytes=within, **ways)


def codes_by_gptq(model: Any, bits: dict[str, int], scheme: Scheme) -> Any:
    """The model with its weights rounded by GPTQ on every other example, put together by hand."""
    other = copy.deepcopy(model)
    search = [{name: tensor[::2] for name, tensor in EXAMPLES[0].items()}]
    calibration = Calibration.collect(model, search)
    with torch.no_grad():
        for unit in find_units(model):
            for tensor in unit.tensors:
                weight = model.get_parameter(tensor.name).detach()
                rounded = quantize_gptq(weight, bits[unit.name], scheme, calibration.of(tensor))  # type: ignore[arg-type]
                other.get_parameter(tensor.name).copy_(dequantize(rounded))
    return other


@pytest.mark.parametrize("format", ["packed", "gguf"])
def test_codes_of_a_calibrated_method_are_written_as_they_were_measured(
    by_gptq: tuple[ModelAnalyzer, dict[str, Any]], format: str, tmp_path: Path
) -> None:
    if format == "gguf":
        pytest.importorskip("gguf")
    analyzer, best = by_gptq
    assert best["recommended_scheme"]["method"] == "gptq"
    assert set(best["recommended"].values()) <= {4, 8}
    path = tmp_path / ("m.gguf" if format == "gguf" else "m.safetensors")
    told = export_model(analyzer, path, EXAMPLES)
    assert told.format == format
    assert told.kl == pytest.approx(told.promised_kl, rel=1e-4)
    scheme = Scheme(granularity="group", group_size=32, scale_dtype=torch.float16)
    by_hand = codes_by_gptq(analyzer.model, best["recommended"], scheme)
    expected = mean_kl_on(EXAMPLES[0]["input_ids"], analyzer.model, by_hand)
    assert told.kl == pytest.approx(expected, rel=1e-4)
    held_out = mean_kl_on(EXAMPLES[0]["input_ids"][1::2], analyzer.model, by_hand)
    assert best["configurations"][best["recommended_name"]]["kl"] == pytest.approx(held_out, rel=1e-4)
    plain = export_model(analyzer, tmp_path / f"plain{path.suffix}", EXAMPLES, best["recommended"], scheme)
    assert plain.kl != pytest.approx(told.kl, rel=1e-2), "rounding to the nearest is something else"


def test_another_that_is_as_good_is_written_where_the_format_cannot_hold_what_is_recommended(tmp_path: Path) -> None:
    pytest.importorskip("compressed_tensors")
    analyzer = ModelAnalyzer(llama(), progress=False)
    best = analyzer.bit_width_analyzer.find_frontier(EXAMPLES, max_increase=0.5, methods=())
    assert best["recommended"]["model.embed_tokens"] < 8, "which compressed-tensors has no place for"
    told = export_model(analyzer, tmp_path / "m", EXAMPLES)
    line = told.notes[0]
    name, _, rest = line.partition(" instead of ")
    assert rest.startswith(f"{best['recommended_name']}, which compressed-tensors cannot hold: ")
    assert "give model.embed_tokens 8 bits, or leave it out" in rest
    written = best["configurations"][name]
    assert written["bits"].get("model.embed_tokens", 8) == 8
    assert written["change_high"] <= 0.5
    assert told.kl == pytest.approx(told.promised_kl, rel=1e-4)


def test_a_recommendation_that_no_other_can_stand_for_is_refused_with_the_cure(tmp_path: Path) -> None:
    pytest.importorskip("compressed_tensors")
    analyzer = ModelAnalyzer(llama(), progress=False)
    ways: dict[str, Any] = {"bits": (8, 4), "granularity": "group", "group_size": 32, "embeddings": False}
    analyzer.bit_width_analyzer.find_optimal_configuration(EXAMPLES, scales="float16", **ways)
    with pytest.raises(ExportError, match=r"can hold neither .*dtype of its scales.*Export it as packed.*search only"):
        export_model(analyzer, tmp_path / "m")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", ["m.gguf", "folder"])
def test_a_method_that_the_format_has_no_place_for_is_refused_at_once(
    path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    llama().save_pretrained("llama")  # type: ignore[operator]
    asked = ["audit", "--model_path", "llama", "--parts", "bit_widths", "--quiet", "--method", "awq", "--export", path]
    assert main(asked) == 2
    assert "--method 'awq' stores a factor for each input, which" in capsys.readouterr().err
    assert [each.name for each in tmp_path.iterdir()] == ["llama"]


def test_the_search_keeps_to_what_the_format_can_hold() -> None:
    methods = ("mse", "gptq")
    assert search_options(Path("m.safetensors"), None, {}) == {}
    assert search_options(Path("m"), None, {"bits": [3]}) == {"methods": methods, "bits": [3]}
    every = {"methods": methods, "bits": (8, 7, 6, 5, 4, 3, 2)}
    assert search_options(Path("m"), None, {}) == every, "16 bits would be a second dtype of floats"
    assert search_options(Path("m"), None, {}, torch.bfloat16) == {"methods": methods}
    assert search_options(Path("m"), "torchao", {}) == {"methods": methods, "bits": (8,), "embeddings": False}
    grouped = {"granularity": "group", "group_size": 32}
    assert search_options(Path("m.gguf"), None, {}) == {"methods": methods, "bits": (8, 5, 4), **grouped}
    assert search_options(Path("m.gguf"), None, {"granularity": "tensor"}) == {
        "methods": methods, "bits": (8, 5, 4), "granularity": "tensor",
    }  # fmt: skip
