"""`learnscope audit A B C`: several models on one frontier, on texts that no search has seen."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import learnscope as ls
from learnscope.cli import main
from learnscope.comparison import compare
from learnscope.comparison.ranking import PER_BYTE, PERPLEXITY, Ranking
from learnscope.model.bits.copies import QuantisedCopies
from learnscope.model.bits.quantise import quantised
from learnscope.posttrain.reader import ByteTokenizer
from learnscope.posttrain.several.spans import common_span, tokens_of
from learnscope.sources.builtin_text import builtin_rows
from learnscope.tensor.bits.quantize import Scheme
from posttrain.trained import trained_gpt2, trained_llama
from seeds.posttrain import put

SHORT = (
    "--data",
    "held_out.jsonl",
    "--length",
    "32",
    "--parts",
    "performance",
    "bit_widths",
    "--threads",
    "1",
    "--quick",
)
FEW = ("--bits", "8", "4", "2", "--granularity", "channel", "--symmetric", "--no_cache")
TEXTS = 48


def from_pretrained(kind: str, folder: Path) -> Any:
    import transformers

    return getattr(transformers, kind).from_pretrained(folder)


def rows() -> list[str]:
    texts = [row["text"] for row in builtin_rows("validation") if len(row["text"]) > 150]
    return [f"{text[:180]} – naïve {number}" for number, text in enumerate(texts[:TEXTS])]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base, the same with one block changed, a Llama that reads the same tokens, and one that reads others."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    home = tmp_path_factory.mktemp("several")
    shutil.copytree(trained_gpt2(), home / "base")
    shutil.copytree(trained_llama(), home / "llama")
    shutil.copytree(trained_gpt2(), home / "tuned")
    tuned = from_pretrained("AutoModelForCausalLM", home / "tuned")
    torch.manual_seed(3)
    with torch.no_grad():
        tuned.transformer.h[1].mlp.c_fc.weight.add_(0.2 * torch.randn(64, 256))
    tuned.save_pretrained(home / "tuned")
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        rows(), trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    )
    of_texts: Any = PreTrainedTokenizerFast  # has no types
    of_texts(tokenizer_object=made).save_pretrained(home / "other")
    config = GPT2Config(vocab_size=300, n_positions=128, n_embd=32, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    make: Any = GPT2LMHeadModel
    make(config).save_pretrained(home / "other")
    (home / "held_out.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in rows()))
    return home


@pytest.fixture(scope="module")
def audited(home: Path) -> tuple[Path, str]:
    """Base, tuned and Llama, audited together; and what was printed."""
    lines: list[str] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(home)
        patched.setenv("COLUMNS", "400")
        patched.setattr("sys.stdout.write", lines.append, raising=False)
        assert main(["audit", "base", "tuned", "llama", "--output_dir", "all", "--max_mb", "0.2", *SHORT, *FEW]) == 0
    return home / "all", "".join(lines)


def ranking_of(folder: Path, *names: str) -> Ranking:
    found = compare([folder / name for name in names], names=list(names)).ranking
    assert found is not None
    return found


def loss_of_texts(model: Any, tokenizer: Any, limit: int, numbers: list[int]) -> tuple[list[float], list[int]]:
    """By text, in float64 and one by one: the sum of the losses of all tokens after the first, and their number."""
    losses, counts = [], []
    for number in numbers:
        ids = torch.tensor(tokenizer(rows()[number])["input_ids"][:limit])[None]
        with torch.no_grad():
            logits = model.eval()(input_ids=ids).logits.double()
        losses.append(float(F.cross_entropy(logits[0, :-1], ids[0, 1:], reduction="sum")))
        counts.append(ids.shape[1] - 1)
    return losses, counts


def test_all_points_of_all_models_are_on_the_same_texts_and_are_the_losses_of_an_independent_pass(
    audited: tuple[Path, str], home: Path
) -> None:
    ranking = ranking_of(audited[0], "base", "tuned", "llama")
    assert (ranking.measure, dict(ranking.not_ranked)) == (PERPLEXITY, {})
    assert {point.model for point in ranking.points} == {"base", "tuned", "llama"}
    tokenizer = from_pretrained("AutoTokenizer", home / "base")
    unseen = [number for number in range(TEXTS) if number % 2 == 1][: len(ranking.weights)]  # searches see 0, 2, 4, …
    for name in ("base", "tuned", "llama"):
        model = from_pretrained("AutoModelForCausalLM", home / name)
        losses, counts = loss_of_texts(model, tokenizer, 32, unseen)
        assert ranking.weights.tolist() == counts
        point = next(p for p in ranking.points if (p.model, p.name) == (name, "original"))
        assert point.losses.tolist() == pytest.approx(losses, rel=1e-6)
        record = next(iter(ls.open_run(audited[0] / name).records("SharedTexts")))
        eight = record.notes["bits"]["uniform_8_symmetric"]
        with quantised(model, eight, Scheme(symmetric=True), copies=QuantisedCopies(model, Scheme(symmetric=True))):
            rounded, _ = loss_of_texts(model, tokenizer, 32, unseen)
        point = next(p for p in ranking.points if (p.model, p.name) == (name, "uniform_8_symmetric"))
        assert point.losses.tolist() == pytest.approx(rounded, rel=1e-6)
        assert rounded != pytest.approx(losses, rel=1e-6)


def test_nothing_recommended_is_dominated_by_any_point(audited: tuple[Path, str]) -> None:
    ranking = ranking_of(audited[0], "base", "tuned", "llama")
    values = {id(p): (p.bytes, float(p.losses.sum() / ranking.weights.sum())) for p in ranking.points}
    fits = ranking.at_size(200_000)
    assert ranking.max_bytes == 200_000
    assert fits is not None
    for chosen in (ranking.smallest(), fits):
        size, loss = values[id(chosen)]
        assert not [p.title for p in ranking.points if values[id(p)][0] <= size and values[id(p)][1] < loss]
        assert not [p.title for p in ranking.points if values[id(p)][0] < size and values[id(p)][1] <= loss]
    assert ranking.best.name == "original"
    assert values[id(ranking.best)][1] == min(values[id(p)][1] for p in ranking.points if p.name == "original")
    smaller = [p for p in ranking.frontier if p.bytes < ranking.smallest().bytes]
    assert not any(ranking.is_within(p) for p in smaller)
    change = ranking.change(ranking.smallest(), ranking.best)
    more = (ranking.smallest().losses - ranking.best.losses).sum() / ranking.weights.sum()
    assert change.value == pytest.approx(math.expm1(more), rel=1e-12)


def test_the_verdict_over_all_is_short_and_the_page_has_a_figure_and_the_layers(
    audited: tuple[Path, str], home: Path
) -> None:
    folder, printed = audited
    said = printed[printed.rindex("ranked") :].strip().splitlines()
    assert len(said) <= 11, said
    for label in ("best  ", "smallest within 1 %", "best in 200 kB", "fastest here", "base  "):
        assert any(line.startswith(label) for line in said), (label, said)
    assert "tuned beside base: 1 layer differs" in printed
    text = (folder / "comparison.md").read_text()
    assert "![All models on one frontier](ranking.png)" in text
    assert (folder / "ranking.png").stat().st_size > 10_000
    assert "tuned beside base, layer by layer" in text
    assert (folder / "compare.html").is_file()
    body = compare([folder / name for name in ("base", "tuned", "llama")]).to_json()["ranking"]
    assert len(body["points"]) == len(ranking_of(folder, "base", "tuned", "llama").points)
    base, tuned = (from_pretrained("AutoModelForCausalLM", home / name) for name in ("base", "tuned"))
    before, now = (m.transformer.h[1].state_dict() for m in (base, tuned))
    distance = math.sqrt(sum(float((now[n].double() - before[n].double()).square().sum()) for n in now))
    size = math.sqrt(sum(float(before[n].double().square().sum()) for n in before))
    rows_of = ls.open_run(folder / "tuned").frame("LayerRewind", name="relative_distance").set_index("scope")["value"]
    assert rows_of["transformer.h.1"] == pytest.approx(distance / size, rel=1e-5)
    assert rows_of.drop("transformer.h.1").tolist() == [0.0] * 4


def test_other_tokenizers_are_compared_by_bytes_of_the_same_characters(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    assert main(["audit", "base", "other", "--output_dir", "two", *SHORT[:4], "--parts", "performance", "--quick",
                 "--quiet", "--no_cache"]) == 0  # fmt: skip
    ranking = ranking_of(home / "two", "base", "other")
    assert ranking.measure == PER_BYTE
    unseen = [number for number in range(TEXTS) if number % 2 == 1][: len(ranking.weights)]
    read = {name: from_pretrained("AutoTokenizer", home / name) for name in ("base", "other")}
    for name in read:
        model = from_pretrained("AutoModelForCausalLM", home / name).eval()
        [point] = [p for p in ranking.points if p.model == name]
        for place, number in enumerate(unseen):
            start, stop = independent_span(rows()[number], read)
            whole, context = (read[name](rows()[number][:end])["input_ids"] for end in (stop, start))
            assert whole[: len(context)] == context, "the span begins between two tokens"
            ids = torch.tensor(whole)[None]
            with torch.no_grad():
                logits = model(input_ids=ids).logits.double()
            each = F.cross_entropy(logits[0, :-1], ids[0, 1:], reduction="none")[len(context) - 1 :]
            assert point.losses[place] == pytest.approx(float(each.sum()), rel=1e-6)
            assert ranking.weights[place] == len(rows()[number][start:stop].encode())


def independent_span(text: str, read: dict[str, Any]) -> tuple[int, int]:
    """By decoding prefixes: the ends of tokens that both have, of at most 32 tokens."""
    ends = []
    for tokenizer in read.values():
        ids = tokenizer(text)["input_ids"][:32]
        prefixes = [tokenizer.decode(ids[: n + 1], clean_up_tokenization_spaces=False) for n in range(len(ids))]
        ends.append({len(prefix) for prefix in prefixes if text.startswith(prefix)})
    both = sorted(set.intersection(*ends))
    return both[0], both[-1]


def test_a_character_of_several_bytes_ends_once() -> None:
    tokens = tokens_of(ByteTokenizer(), "aé!")
    assert (tokens.ids, tokens.ends) == ([97, 195, 169, 33], [1, 2, 2, 3])
    assert tokens.predicted(1, 3) == ([97, 195, 169, 33], [-100, 195, 169, 33])
    assert common_span([tokens], [3]) == (1, 2)


def test_models_are_not_ranked_on_their_own_samples_and_a_line_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path / "a")
    put(tmp_path / "b")
    monkeypatch.chdir(tmp_path)
    shared = ("--examples", "6", "--length", "24", "--no_cache", "--parts", "performance", "--quick")
    assert main(["audit", "a/model.pt", "b/model.pt", "--output_dir", "both", *shared]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "is not ranked: no data were given, and each model is examined on its own samples: give --data" in out
    assert "a/model.pt and b/model.pt: no data were given" in out
    assert "smallest within" not in out
    assert "perplexity" not in (tmp_path / "both" / "comparison.md").read_text().split("##")[1]


def test_token_ids_of_another_vocabulary_are_not_ranked(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [{"input_ids": [int(t) % 300 for t in range(number, number + 20)]} for number in range(24)]
    (tmp_path / "ids.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ids))
    monkeypatch.chdir(home)
    asked = ("--data", str(tmp_path / "ids.jsonl"), "--parts", "performance", "--quick", "--quiet", "--no_cache")
    assert main(["audit", "base", "other", "llama", "--output_dir", str(tmp_path / "out"), *asked]) == 0
    ranking = ranking_of(tmp_path / "out", "base", "other", "llama")
    assert list(ranking.not_ranked) == ["other"]
    assert "it has 300 tokens where base has" in ranking.not_ranked["other"]
    assert {point.model for point in ranking.points} == {"base", "llama"}


def test_python_ranks_classifiers_by_their_answers_and_refuses_other_classes(tmp_path: Path) -> None:
    from learnscope.posttrain import AuditOptions, run_audit

    torch.manual_seed(0)
    inputs = torch.randn(64, 8)
    answers = inputs[:, :3].argmax(1)
    models: dict[str, Any] = {
        "small": torch.nn.Linear(8, 3),
        "wide": torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3)),
        "four": torch.nn.Linear(8, 4),
    }
    data = [(inputs[at : at + 8], answers[at : at + 8]) for at in range(0, 64, 8)]
    options = AuditOptions(
        models=models, data=data, parts=("performance",), output_dir=tmp_path, progress=False, cache=False
    )
    run_audit(options, lambda _: None)
    ranking = ranking_of(tmp_path, "small", "wide", "four")
    assert ranking.not_ranked == {"four": "it has 4 classes, and small has 3"}
    unseen = [number for number in range(64) if number % 2 == 1]
    for name in ("small", "wide"):
        with torch.no_grad():
            logits = models[name](inputs[unseen]).double()
        [point] = [p for p in ranking.points if p.model == name]
        losses = F.cross_entropy(logits, answers[unseen], reduction="none")
        assert point.losses.tolist() == pytest.approx(losses.tolist(), rel=1e-6)
        assert ranking.accuracy(point) == pytest.approx(float((logits.argmax(1) == answers[unseen]).double().mean()))
