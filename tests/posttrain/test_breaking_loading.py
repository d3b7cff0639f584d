"""Models, data and commands as they come: files beside files, marks of other editors, numbers that are none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    RobertaConfig,
    RobertaForSequenceClassification,
)

from learnscope.cli.audit import main
from learnscope.model.bits.packed import save_packed
from learnscope.posttrain import ModelAnalyzer, PosttrainError
from learnscope.posttrain.command import AuditOptions, _folders, named, run_audit
from learnscope.posttrain.data import load_data
from learnscope.posttrain.loading import load_model
from posttrain.trained import trained_gpt2

SMALL: dict[str, Any] = {
    "vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16,
}  # fmt: skip


def gpt2() -> Any:
    torch.manual_seed(0)
    make: Any = GPT2LMHeadModel
    return make(
        GPT2Config(vocab_size=40, n_embd=16, n_layer=1, n_head=2, n_positions=16, bos_token_id=0, eos_token_id=0)
    ).eval()


def classifier(labels: int) -> Any:
    make: Any = BertForSequenceClassification
    return make(BertConfig(**{**SMALL, "num_labels": labels}))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ein Modell") / "gpt ü"
    gpt2().save_pretrained(path)
    return path


def same(loaded: Any) -> bool:
    pairs = zip(loaded.model.state_dict().values(), gpt2().state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def test_a_packed_copy_beside_the_weights_is_not_part_of_them(folder: Path) -> None:
    assert same(load_model(folder))
    save_packed(gpt2(), {"transformer.h.0.mlp": 4}, None, folder / "packed.safetensors")
    assert same(load_model(folder))
    packed = load_model(folder / "packed.safetensors")
    assert not same(packed)
    assert "is packed" in packed.notes[0]


def test_configurations_as_other_programs_write_them(folder: Path, tmp_path: Path) -> None:
    torch.save(gpt2().state_dict(), tmp_path / "weights.pt")
    fields = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    for text in (
        b"\xef\xbb\xbf" + json.dumps(fields).encode(),
        json.dumps({**fields, "architectures": "GPT2LMHeadModel"}).encode(),
    ):
        (tmp_path / "c.json").write_bytes(text)
        assert same(load_model(tmp_path / "weights.pt", tmp_path / "c.json"))
    (tmp_path / "c.json").write_text(json.dumps({**fields, "architectures": [5]}), encoding="utf-8")
    with pytest.raises(PosttrainError, match="architectures names 5"):
        load_model(tmp_path / "weights.pt", tmp_path / "c.json")


def rows(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_rows_with_a_mark_in_front_and_numbers_that_are_none(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_bytes(b"\xef\xbb\xbf" + b'{"input_ids": [1, 2, 3]}\r\n{"input_ids": [4, 5]}\r\n')
    [read] = load_data(file, model=gpt2())
    assert read["input_ids"].tolist() == [[1, 2, 3], [4, 5, 0]]
    file = tmp_path / "rows.json"
    file.write_bytes(b"\xef\xbb\xbf" + b'[{"input_ids": [1, 2, 3]}]')
    assert load_data(file, model=gpt2())[0]["labels"].tolist() == [[1, 2, 3]]
    file = tmp_path / "bad.jsonl"
    with pytest.raises(PosttrainError, match=r"row 1: 'input_ids' is '\[1, inf\]'; a list of whole numbers is needed"):
        load_data(rows(file, '{"input_ids": [1, Infinity]}'), model=gpt2())
    with pytest.raises(PosttrainError, match="row 1: 'label' is inf; one of 3 classes"):
        load_data(rows(file, '{"input_ids": [1, 2], "label": Infinity}'), model=classifier(3))
    for label in ("NaN", "-Infinity"):
        with pytest.raises(PosttrainError, match=r"row 1: 'label' is .*; a number is needed"):
            load_data(rows(file, f'{{"input_ids": [1, 2], "label": {label}}}'), model=classifier(1))


def test_positions_that_padding_takes_are_not_given_to_tokens(tmp_path: Path) -> None:
    make: Any = RobertaForSequenceClassification
    model = make(RobertaConfig(**{**SMALL, "num_labels": 3, "max_position_embeddings": 20, "pad_token_id": 1}))
    file = rows(tmp_path / "long.jsonl", json.dumps({"input_ids": [5] * 30, "label": 1}))
    data = load_data(file, model=model, length=64)
    assert data[0]["input_ids"].shape == (1, 18)
    tool = ModelAnalyzer(model, progress=False).bit_width_analyzer
    assert tool.analyze_layer_sensitivity(data, bits=[4])["positions"] == 1
    plain: Any = classifier(3)
    plain.config.max_position_embeddings = 20
    assert load_data(file, model=plain, length=64)[0]["input_ids"].shape == (1, 20)


@pytest.mark.parametrize(("wrong", "said"), [(40, 40), (-7, -7)])
def test_tokens_of_another_model_are_named(wrong: int, said: int) -> None:
    ids = torch.tensor([[1, 2, 3], [4, wrong, 6]])
    with pytest.raises(PosttrainError, match=f"batch 1 has token {said}, and GPT2LMHeadModel knows the tokens 0 to 39"):
        ModelAnalyzer(gpt2(), progress=False).analyze_bit_widths(
            [{"input_ids": ids[:1], "labels": ids[:1]}, {"input_ids": ids, "labels": ids}]
        )


def test_models_are_told_apart_by_name_and_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert list(named(["."])) == ["gpt ü"]
    assert ModelAnalyzer(".", progress=False).name == "gpt ü"
    with pytest.raises(PosttrainError, match="named twice"):
        named([".", str(folder)])
    assert list(named(["a/m.pt", "b/m.pt"])) == ["a/m.pt", "b/m.pt"]
    found = _folders(["a_b/m", "a/b_m", "..", "../x"], folder)
    assert len(set(found.values())) == 4
    assert all(one.parent == folder and not one.name.startswith(".") for one in found.values())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"export": Path("model.bin")}, "name a file that ends in .safetensors"),
        ({"max_kl": 1.0, "parts": ("performance",)}, "which parts= leaves out: add bit_widths"),
        ({"output_dir": Path("file/below/it")}, "file is a file: name a folder"),
    ],
)
def test_commands_that_cannot_end_well_do_not_begin(
    options: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(PosttrainError, match=message):
        run_audit(AuditOptions(models={"m": gpt2()}, data=[], **options), lambda _: None)
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_the_terminal_judges_by_the_same_thresholds_as_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(trained_gpt2())
    for place, (asked, limit, other, suits) in enumerate((
        (["--memory_mb", "0.05"], "50 kB", "100 MB", ("no", "Does not suit edge devices")),
        ([], "100 MB", "50 kB", ("yes", "Suits edge devices")),
    )):  # fmt: skip
        out = tmp_path / f"a folder {place}"
        command = ["--model_path", model, "--output_dir", str(out), "--examples", "2", "--length", "16", "--quick"]
        assert main([*command, "--parts", "performance", *asked]) == 0
        said = " ".join(capsys.readouterr().out.split())
        insights = " ".join((out / "insights.md").read_text(encoding="utf-8").split())
        assert f"{suits[1]}: " in insights
        assert limit in insights
        assert f"edge {suits[0]}," in said
        assert other not in insights + said
