"""Batches of texts, token ids and labels for a model; what cannot be its data is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from datasets import Dataset, DatasetDict
from torch import nn

from learnscope.posttrain.data import Batches, load_data
from learnscope.posttrain.errors import PosttrainError
from learnscope.posttrain.examples import piece_sizes
from learnscope.posttrain.loading import load_model
from learnscope.sources import builtin_rows
from learnscope.task import task_for
from posttrain.trained import trained_gpt2

SIZES: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}


def words(text: str) -> dict[str, list[int]]:
    """A tokenizer: a word is its length."""
    return {"input_ids": [len(word) for word in text.split()]}


def reader(vocabulary: int = 300, positions: int = 64) -> Any:
    ends = {"bos_token_id": None, "eos_token_id": None}
    return tf.GPT2LMHeadModel(
        tf.GPT2Config(vocab_size=vocabulary, n_positions=positions, n_embd=16, n_layer=1, n_head=2, **ends)
    )


def classifier(**options: Any) -> Any:
    sizes = {"vocab_size": 300, "max_position_embeddings": 12, "pad_token_id": 7, **SIZES, **options}
    return tf.BertForSequenceClassification(tf.BertConfig(**sizes))


def jsonl(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def real(batches: Batches) -> list[list[int]]:
    """The ids that the masks leave, row by row."""
    return [
        ids[mask.bool()].tolist()
        for batch in batches
        for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)
    ]


def test_texts_are_padded_masked_and_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("a bb ccc\ndddd\n\nalone\n\n" + " ".join("x" * (n % 9 + 1) for n in range(23)))
    data = load_data(path, model=reader(), tokenizer=words, length=10, batch_size=3)
    long = [n % 9 + 1 for n in range(23)]
    assert real(data) == [[1, 2, 3, 4], long[:8], long[8:16], long[16:]]
    assert [len(batch["input_ids"]) for batch in data] == [3, 1]
    for batch in data:
        assert torch.equal(batch["labels"] == -100, batch["attention_mask"] == 0)
        assert torch.equal(
            batch["labels"][batch["attention_mask"] == 1], batch["input_ids"][batch["attention_mask"] == 1]
        )
    assert data.about == {
        "source": str(path), "split": None, "documents": 2, "examples": 4, "tokens": 27, "length": 10,
        "notes": ["1 documents of fewer than 2 tokens were left out",
                  "1 documents of more than 10 tokens were cut into pieces"],
    }  # fmt: skip
    assert json.dumps(data.about)
    assert real(load_data(path, model=reader(), tokenizer=words, length=10, examples=2)) == real(data)[:2]
    assert load_data(path, model=reader(positions=5), tokenizer=words).about["length"] == 5


def test_padding_changes_no_loss() -> None:
    """Each position's loss of a ragged batch is that of its text alone, by transformers' own loss."""
    model = reader().eval()
    texts = ["a bb ccc dddd", "ee f", "ggg hhhh i jj kk lllll"]
    data = load_data(texts, model=model, tokenizer=words, batch_size=3)
    [batch] = data
    with torch.no_grad():
        found = task_for(batch).outputs(model, batch)
        alone = [torch.tensor([words(text)["input_ids"]]) for text in texts]
        expected = [model(input_ids=ids, labels=ids).loss.item() * (ids.shape[1] - 1) for ids in alone]
    assert found.losses is not None
    summed = [found.losses[found.example == place].sum().item() for place in range(3)]
    assert summed == pytest.approx(expected, rel=1e-5)


def test_pieces_cover_every_token_and_are_never_tiny() -> None:
    for length in (3, 4, 7, 128):
        for tokens in range(2, 700):
            sizes = piece_sizes(tokens, length)
            assert sum(sizes) == tokens
            assert 2 <= min(sizes) <= max(sizes) <= length
            assert max(sizes) - min(sizes) <= 1
            assert len(sizes) == -(-tokens // length)


def test_token_ids_need_no_tokenizer(tmp_path: Path) -> None:
    rows = [
        {"input_ids": [1, 2, 3], "text": "not read"},
        {"input_ids": [4, 5, 6, 0, 0], "attention_mask": [1, 1, 1, 0, 0]},
        {"input_ids": [7]},
    ]
    data = load_data(jsonl(tmp_path / "a.jsonl", rows), model=reader())
    assert real(data) == [[1, 2, 3], [4, 5, 6]]
    own = [{"input_ids": [1, 2, 3, 4], "labels": [-100, -100, 3, 4]}, {"input_ids": [5, 6], "labels": [5, 6]}]
    [batch] = load_data(jsonl(tmp_path / "b.jsonl", own), model=reader())
    assert batch["labels"].tolist() == [[-100, -100, 3, 4], [5, 6, -100, -100]]
    Dataset.from_list(own).save_to_disk(tmp_path / "d")
    [same] = load_data(tmp_path / "d", model=reader())
    assert all(torch.equal(batch[name], same[name]) for name in batch)


def test_the_built_in_text_by_split() -> None:
    loaded = load_model(trained_gpt2())
    data = load_data(None, model=loaded.model, tokenizer=loaded.tokenizer, split="validation[:100]")
    assert data.about["documents"] == 100
    said = loaded.tokenizer.decode([one for ids in real(data) for one in ids])
    assert said == "".join(row["text"] for row in builtin_rows("validation[:100]"))
    usual = load_data(None, model=loaded.model, tokenizer=trained_gpt2(), examples=3)
    assert usual.about["split"] == "validation"
    assert real(usual) == real(data)[:3]
    with pytest.raises(
        PosttrainError, match="split='tset': the built-in text has the splits train and validation, not 'tset'"
    ):
        load_data(None, model=loaded.model, tokenizer=loaded.tokenizer, split="tset")


def test_splits_of_folders_and_files(tmp_path: Path) -> None:
    rows = [{"text": f"{'a' * n} {'b' * n}"} for n in range(1, 9)]
    sets = {"train": Dataset.from_list(rows), "test": Dataset.from_list(rows[4:])}
    DatasetDict(sets).save_to_disk(tmp_path / "d")
    model = reader()
    assert real(load_data(tmp_path / "d", model=model, tokenizer=words)) == [[n, n] for n in (5, 6, 7, 8)]
    assert real(load_data(tmp_path / "d", model=model, tokenizer=words, split="train[25%:4]")) == [[3, 3], [4, 4]]
    data = load_data(jsonl(tmp_path / "a.jsonl", rows), model=model, tokenizer=words, split="validation[:2]")
    assert real(data) == [[1, 1], [2, 2]]
    assert "is one set of rows" in data.about["notes"][0]
    with pytest.raises(PosttrainError, match=r"split=.*has no split 'validation'; it has train, test"):
        load_data(tmp_path / "d", model=model, tokenizer=words, split="validation")


def test_classifiers_are_given_labels(tmp_path: Path) -> None:
    model = classifier(id2label={0: "bad", 1: "good"}, label2id={"bad": 0, "good": 1})
    rows = [{"text": "a bb", "label": 1}, {"text": "ccc " * 40, "label": "bad"}, {"text": "d", "label": "1"}]
    data = load_data(jsonl(tmp_path / "a.jsonl", rows), model=model, tokenizer="bytes", batch_size=2)
    assert [batch["labels"].tolist() for batch in data] == [[1, 0], [1]]
    assert data[0]["input_ids"][0].tolist() == [97, 32, 98, 98] + [7] * 8, "padded with the model's own token"
    assert [len(ids) for ids in real(data)] == [4, 12, 1]
    assert data.about["notes"] == ["1 documents of more than 12 tokens were cut short"]
    named = [{"review": "a", "stars": 3.5}, {"review": "b", "stars": "2"}]
    [batch] = load_data(
        jsonl(tmp_path / "b.jsonl", named), model=classifier(num_labels=1), tokenizer="bytes", text_column="review",
        label_column="stars",
    )  # fmt: skip
    assert (batch["labels"].tolist(), batch["labels"].dtype) == ([3.5, 2.0], torch.float32)
    several = classifier(num_labels=3, problem_type="multi_label_classification")
    [batch] = load_data(
        jsonl(tmp_path / "c.jsonl", [{"text": "a", "labels": [0, 1, 1]}]), model=several, tokenizer="bytes"
    )
    assert batch["labels"].tolist() == [[0.0, 1.0, 1.0]]
    decoder = tf.GPT2ForSequenceClassification(
        tf.GPT2Config(vocab_size=300, n_positions=32, n_embd=16, n_layer=1, n_head=2, bos_token_id=1, eos_token_id=2)
    )
    data = load_data(jsonl(tmp_path / "d.jsonl", rows[:1] * 3), model=decoder, tokenizer="bytes")
    assert [len(batch["labels"]) for batch in data] == [1, 1, 1]
    assert "no padding token" in data.about["notes"][0]
    decoder.eval()(**data[0])


def test_loaders_are_passed_on() -> None:
    pairs = [(torch.ones(4, 3), torch.zeros(4).long()), (torch.ones(2, 3), torch.zeros(2).long())]
    plain = nn.Linear(3, 2)
    assert load_data(pairs, model=plain) is pairs
    loader = torch.utils.data.DataLoader([(torch.ones(3), 1)] * 5, batch_size=2)
    assert load_data(loader, model=plain) is loader
    first = load_data(pairs, model=plain, examples=5)
    assert [len(x) for x, _ in first] == [4, 1]
    with pytest.raises(PosttrainError, match="is for data that are named"):
        load_data(pairs, model=plain, split="train")


def test_what_is_refused(tmp_path: Path) -> None:
    model, kinds = reader(vocabulary=20), classifier()
    refusals: list[tuple[list[Any], dict[str, Any], str]] = [
        (
            [{"text": "a b"}],
            {"tokenizer": None},
            r"no tokenizer was found for GPT2LMHeadModel: pass tokenizer=",
        ),
        ([{"text": "a b"}], {"tokenizer": "bytes"}, "has 20 tokens: it does not read bytes"),
        (
            [{"text": "a b"}, {"text": "a " + "b" * 20}],
            {},
            "row 2 has token 20, and .* tokens 0 to 19: the",
        ),
        ([{"input_ids": [3, -1]}], {}, "row 1 has token -1"),
        ([{"input_ids": [3, 1.5]}], {}, "row 1: 'input_ids' is .*a list of whole numbers is needed"),
        ([{"input_ids": "12"}], {}, "a list of whole numbers is needed"),
        ([{"input_ids": [1, 2], "labels": [1]}], {}, "row 1 has labels of 1 entries for 2 input_ids"),
        ([{"input_ids": [1, 2], "labels": [1, 20]}], {}, "row 1: label 20 is no token of"),
        ([{"input_ids": [1, 2], "attention_mask": [1]}], {}, "row 1 has an attention_mask of 1 entries for 2"),
        ([{"text": None}], {}, "row 1: 'text' is None; text is needed"),
        ([{"text": "a b"}, {"txt": "a b"}], {}, "row 2 has no 'text', which the others have"),
        ([{"body": "a b"}], {}, r"the columns body, and neither text nor input_ids: say which .*text_column"),
        ([{"body": "a b"}], {"text_column": "bdy"}, r"no column 'bdy'\. Did you mean 'body'"),
        ([{"text": "a"}, {"text": ""}], {}, "none of 2 documents is left, for all have fewer than 2 tokens"),
        ([{"text": "a b"}], {"model": kinds}, "is judged by its answers, and the data have none"),
        ([{"text": "a b", "label": 2}], {"model": kinds}, "row 1: 'label' is 2; one of 2 classes, 0 to 1"),
        ([{"text": "a b", "label": -1}], {"model": kinds}, "row 1: 'label' is -1"),
        ([{"text": "a b", "label": 0.5}], {"model": kinds}, "row 1: 'label' is 0.5"),
        ([{"text": "a b", "label": None}], {"model": kinds}, "row 1: 'label' is None"),
        ([{"text": "a b"}], {"model": nn.Linear(2, 2)}, "Linear reads no tokens.*examine it in Python"),
        ([{"text": "a b"}], {"split": "train[5:]"}, r"has no examples in split 'train\[5:\]'"),
        ([{"text": "a b"}], {"split": "train["}, r"split='train\[': 'train\[' is not understood"),
        ([{"text": "a b"}], {"tokenizer": 3}, "a tokenizer is called with a text, which a int cannot be"),
        ([{"text": "a b"}], {"tokenizer": tmp_path / "nothing"}, "tokenizer=.*: there is no such file or folder"),
        ([{"text": "a b"}], {"tokenizer": tmp_path}, "name a folder or file that tokenizer.save_pretrained wrote"),
    ]
    for rows, options, message in refusals:
        with pytest.raises(PosttrainError, match=message):
            load_data(jsonl(tmp_path / "a.jsonl", rows), **{"model": model, "tokenizer": words, **options})
    with pytest.raises(PosttrainError, match=r"data=.*: there is no file or folder .*did you mean .*a\.jsonl"):
        load_data(tmp_path / "aa.jsonl", model=model, tokenizer=words)
    (tmp_path / "a.jsonl").write_text("")
    with pytest.raises(PosttrainError, match="has no examples"):
        load_data(tmp_path / "a.jsonl", model=model, tokenizer=words)
    for options in ({"batch_size": 0}, {"length": 2}, {"examples": 0}):
        with pytest.raises(ValueError, match=f"{next(iter(options))}=.*a whole number from"):
            load_data(["a b"], model=model, tokenizer=words, **options)


def test_a_tokenizer_beside_a_file_and_by_itself(tmp_path: Path) -> None:
    folder = trained_gpt2()
    loaded = load_model(folder)
    model: Any = loaded.model
    torch.save(model.state_dict(), tmp_path / "model.pt")
    model.config.save_pretrained(tmp_path)
    assert load_model(tmp_path / "model.pt").tokenizer is None
    (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    text = 'The "break" statement — Ünïcode'
    expected = loaded.tokenizer(text)["input_ids"]
    assert loaded.tokenizer.decode(expected) == text
    for found in (
        load_model(tmp_path / "model.pt").tokenizer,
        load_model(model, tokenizer=folder).tokenizer,
        load_model(model, tokenizer=str(tmp_path / "tokenizer.json")).tokenizer,
    ):
        assert found(text)["input_ids"] == expected
    (tmp_path / "tokenizer.json").write_text("{")
    damaged = load_model(tmp_path / "model.pt")
    assert damaged.tokenizer is None
    assert f"the tokenizer in {tmp_path} cannot be loaded" in damaged.notes[0]
