"""An encoder without a head, from its folder to its report: distances, cosine, speed and memory, and no loss."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from learnscope.cli import main
from learnscope.model.bits.mixes import uniform
from learnscope.model.bits.quantise import quantised
from learnscope.model.bits.quantised_units import find_units
from learnscope.posttrain import ModelAnalyzer
from learnscope.posttrain.encoders import is_headless
from learnscope.posttrain.errors import PosttrainError
from probes.reference import tiny_gpt2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import BertConfig, BertModel

    home = tmp_path_factory.mktemp("encoder")
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=60, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=24,
    )  # fmt: skip
    BertModel(config).save_pretrained(home / "bert")
    generator = torch.Generator().manual_seed(2)
    rows = [torch.randint(1, 60, (4 + i % 9,), generator=generator).tolist() for i in range(16)]
    (home / "data.jsonl").write_text("".join(json.dumps({"input_ids": row}) + "\n" for row in rows))
    return home


@pytest.fixture(scope="module")
def audited(folder: Path) -> tuple[str, dict[str, Any]]:
    out = folder / "out"
    command = ["audit", "--model_path", str(folder / "bert"), "--data", str(folder / "data.jsonl"), "--quick"]
    import contextlib
    import io

    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert main([*command, "--output_dir", str(out)]) == 0
    return printed.getvalue(), json.loads((out / "analysis_results.json").read_text())


def test_it_is_audited_without_labels_and_says_what_is_left_out(audited: tuple[str, dict[str, Any]]) -> None:
    printed, body = audited
    assert "an encoder without a head" in printed
    assert "robustness is left out: without labels there is nothing that an attack could make wrong" in printed
    assert body["model"]["class"] == "BertModel"
    assert body["robustness"] is None
    assert "quality" not in body["performance"], "there is no loss"
    assert body["performance"]["memory"]["rows"]
    names = {row["labels"].get("phase") for row in body["performance"]["speed"]["rows"]}
    assert names == {"forward"}


def test_distances_are_those_of_its_mean_hidden_states(folder: Path, audited: tuple[str, dict[str, Any]]) -> None:
    """By hand, in float64, text by text and so without any padding, on the half that the search has not seen."""
    from transformers import BertModel

    model = BertModel.from_pretrained(folder / "bert").eval()
    rows = [json.loads(line)["input_ids"] for line in (folder / "data.jsonl").read_text().splitlines()][1::2]

    def embeddings() -> torch.Tensor:
        with torch.no_grad():
            return torch.stack([model(torch.tensor([row])).last_hidden_state[0].double().mean(0) for row in rows])

    own = embeddings()
    with quantised(model, uniform(find_units(model, embeddings=True), 4)):
        fewer = embeddings()
    recorded = {row["scope"]: row["values"] for row in audited[1]["bit_widths"]["configurations"]["rows"]}
    assert recorded["uniform_4"]["mse"] == pytest.approx((own - fewer).square().mean().item(), rel=1e-3)
    cosine = nn.functional.cosine_similarity(own, fewer).mean().item()
    assert 1 - recorded["uniform_4"]["cosine"] == pytest.approx(1 - cosine, rel=1e-3)
    assert recorded["uniform_4"]["kl"] is None
    assert recorded["original"]["mse"] == 0


def test_what_fewer_bits_do_to_embeddings_is_a_finding(audited: tuple[str, dict[str, Any]]) -> None:
    [found] = [one for one in audited[1]["findings"] if one["kind"] == "audit_embeddings"]
    recorded = {row["scope"]: row["values"] for row in audited[1]["bit_widths"]["configurations"]["rows"]}
    assert found["evidence"]["value"] == recorded["uniform_4"]["cosine"]
    assert "uniform_8" in found["detail"]


def test_only_bodies_that_encode_are_headless() -> None:
    from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2Model

    small = {
        "num_hidden_layers": 1,
        "hidden_size": 8,
        "num_attention_heads": 1,
        "intermediate_size": 8,
        "vocab_size": 9,
    }
    assert not is_headless(BertForSequenceClassification(BertConfig(**small)))
    assert not is_headless(GPT2Model(GPT2Config(n_layer=1, n_embd=8, n_head=1, vocab_size=9)))
    assert not is_headless(tiny_gpt2())
    assert not is_headless(nn.Linear(2, 2))


def test_what_cannot_be_asked_of_an_encoder_is_refused_with_the_cure(folder: Path) -> None:
    analyzer = ModelAnalyzer(folder / "bert", progress=False)
    with pytest.raises(PosttrainError, match=r"answers with embeddings, and there are no data .*give data="):
        analyzer.data()
    with pytest.raises(PosttrainError, match="robustness is left out"):
        analyzer.analyze_robustness(str(folder / "data.jsonl"))
    with pytest.raises(PosttrainError, match="reads dictionaries with input_ids"):
        analyzer.data([(torch.zeros(2, 3), torch.zeros(2))])
    with pytest.raises(PosttrainError, match=r"ModelAnalyzer\.data"):
        analyzer.bit_width_analyzer.analyze_layer_sensitivity([{"input_ids": torch.zeros(2, 3, dtype=torch.int64)}])


def test_the_model_s_own_pooling_ignores_padding(folder: Path) -> None:
    analyzer = ModelAnalyzer(folder / "bert", progress=False)
    [first, *_] = analyzer.data(str(folder / "data.jsonl"))
    short = first["attention_mask"].sum(1).argmin()
    length = int(first["attention_mask"][short].sum())
    assert length < first["input_ids"].shape[1]
    with torch.no_grad():
        alone = analyzer.model(first["input_ids"][short, :length][None]).last_hidden_state.mean(1)[0]
    assert torch.allclose(first["labels"][short], alone, atol=1e-6)
