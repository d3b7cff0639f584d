"""The built-in model: better than counting tokens, the same every time, made once."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from learnscope.posttrain.builtin import MARK, STEPS, Recipe, make_builtin
from learnscope.posttrain.data import load_data
from learnscope.posttrain.errors import PosttrainError
from learnscope.posttrain.loading import load_model
from learnscope.sources import builtin_rows
from posttrain.trained import trained_gpt2

TINY = Recipe(vocabulary=300, layers=1, width=16, heads=2, positions=16, length=16, batch=2, steps=3)


def test_it_predicts_far_better_than_the_frequencies_of_its_tokens() -> None:
    loaded = load_model(trained_gpt2())
    model, tokenizer = loaded.model, loaded.tokenizer
    counts = Counter(one for row in builtin_rows("train") for one in tokenizer(row["text"])["input_ids"])
    of = sum(counts.values()) + len(tokenizer)  # every token once more, as not all of them are in the text
    loss, unigram, tokens = 0.0, 0.0, 0
    for batch in load_data(None, model=model, tokenizer=tokenizer, length=64, examples=150):
        with torch.no_grad():
            logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, :-1]
        targets = batch["labels"][:, 1:]
        counted = targets != -100
        loss += torch.nn.functional.cross_entropy(logits[counted], targets[counted], reduction="sum").item()
        unigram -= sum(math.log((counts[one] + 1) / of) for one in targets[counted].tolist())
        tokens += int(counted.sum())
    assert tokens > 5000
    assert loss / tokens < unigram / tokens - 0.6


def test_it_is_made_once_and_the_same_every_time(tmp_path: Path) -> None:
    shown: list[tuple[int, int]] = []
    before = torch.random.get_rng_state()
    folder = make_builtin(tmp_path / "a", recipe=TINY, show=lambda *step: shown.append(step))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert (folder, shown) == (tmp_path / "a", [(1, 3), (2, 3), (3, 3)])
    torch.manual_seed(123)
    make_builtin(tmp_path / "b", recipe=TINY)
    for name in ("model.safetensors", "tokenizer.json", "config.json", MARK):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name
    assert not any(value.isnan().any() for value in load_file(folder / "model.safetensors").values())
    assert load_model(folder).notes == ()
    # it is used again, and made anew where another one is asked for or its mark is damaged
    make_builtin(folder, recipe=TINY, show=lambda *_: pytest.fail("it is there"))
    for change in (lambda: replace(TINY, steps=2), lambda: ((folder / MARK).write_text("{"), TINY)[1]):
        shown.clear()
        recipe: Any = change()
        make_builtin(folder, recipe=recipe, show=lambda *step: shown.append(step))
        assert shown[-1] == (recipe.steps, recipe.steps)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]
    assert json.loads((folder / MARK).read_text())["steps"] == 3


def test_what_was_not_made_here_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    (tmp_path / "file").write_text("x")
    for name in ("mine", "file"):
        with pytest.raises(PosttrainError, match="was not made here: name another folder"):
            make_builtin(tmp_path / name, recipe=TINY)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"
    (tmp_path / "empty").mkdir()
    assert load_model(make_builtin(tmp_path / "empty", recipe=TINY)).model.config is not None


def test_an_interrupted_training_leaves_no_half_model(tmp_path: Path) -> None:
    make_builtin(tmp_path / "a", recipe=TINY)
    whole = (tmp_path / "a" / "model.safetensors").read_bytes()

    def stop(step: int, _of: int) -> None:
        if step == 2:
            raise KeyboardInterrupt

    for folder in ("a", "b"):
        with pytest.raises(KeyboardInterrupt):
            make_builtin(tmp_path / folder, recipe=replace(TINY, rate=1e-4), show=stop)
    assert (tmp_path / "a" / "model.safetensors").read_bytes() == whole
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert Recipe().steps == STEPS
