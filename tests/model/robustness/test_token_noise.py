"""Tokens removed, masked and replaced; distances between tokens; texts that attacks amount to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from learnscope.model.outputs.example_sums import example_sums_of_pass
from learnscope.model.robustness.attack import changed_texts, pgd
from learnscope.model.robustness.ball import Threat, token_distances, unit_ball
from learnscope.model.robustness.target import find_target
from learnscope.model.robustness.token_noise import add_noise, drop_entries, drop_tokens, mask_tokens, substitute_tokens
from learnscope.model.robustness.token_units import nearest_distances, nearest_within, real_tokens, token_table
from learnscope.task import TupleTask, task_for
from model.robustness.attacked import language_models, token_batch


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def tokenizer() -> Any:
    """A real one: words w0 to w39, four special tokens in front; the model's table of 50 rows has six to spare."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["[PAD]", "[CLS]", "[SEP]", "[MASK]"]
    words = {word: place for place, word in enumerate([*special, *(f"w{i}" for i in range(40))])}
    made = Tokenizer(models.WordLevel(words, unk_token="[PAD]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]"
    )


@pytest.fixture(scope="module")
def gpt2() -> nn.Module:
    torch.manual_seed(0)
    return language_models()["gpt2"]().float().eval()


def numbered(lengths: list[int], width: int) -> dict[str, Tensor]:
    """Token ids that tell where they stood: 10·row + place + 5."""
    tokens = torch.stack([torch.arange(width) + 10 * row + 5 for row in range(len(lengths))])
    mask = torch.stack([torch.arange(width) < length for length in lengths]).long()
    return {"input_ids": tokens * mask, "attention_mask": mask}


def test_dropped_tokens_are_gone_and_labels_go_with_them(gpt2: nn.Module) -> None:
    batch = numbered([8, 6], 8)
    batch["labels"] = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    batch["position_ids"] = torch.arange(8).expand(2, 8)
    task = task_for(batch, gpt2)
    made = drop_tokens(gpt2, task, batch, 0.5, seeded())
    assert (made.changed, made.of) == (4 + 3, 14)
    assert made.batch["input_ids"].shape == (2, 4)
    assert made.batch["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 1, 0]]
    for row, count in ((0, 4), (1, 3)):
        left = made.batch["input_ids"][row, :count].tolist()
        assert left == sorted(set(left))
        assert set(left) <= set(batch["input_ids"][row].tolist()) - {0}
        assert made.batch["labels"][row].tolist() == left + [-100] * (4 - count)
        assert made.batch["position_ids"][row].tolist() == [*range(count), *[0] * (4 - count)]
    assert batch["input_ids"].shape == (2, 8)
    # the same as the model says of the shorter text by itself
    alone = example_sums_of_pass(gpt2, task, [{"input_ids": made.batch["input_ids"][1:, :3]}])
    together = example_sums_of_pass(gpt2, task, [made.batch])
    assert together.positions == [3, 2]
    assert together.loss[1] == pytest.approx(alone.loss[0], rel=1e-5)
    left = {name: value.flip(1) for name, value in batch.items() if name != "labels"}
    left["position_ids"] = (left["attention_mask"].cumsum(1) - 1).clamp(min=0)
    turned = drop_tokens(gpt2, task, left, 0.5, seeded()).batch
    assert turned["attention_mask"].tolist() == [[1, 1, 1, 1], [0, 1, 1, 1]]
    assert turned["position_ids"].tolist() == [[0, 1, 2, 3], [0, 0, 1, 2]]
    assert (turned["input_ids"][turned["attention_mask"] == 1] >= 5).all()


def test_nothing_special_is_dropped_and_something_remains(gpt2: nn.Module) -> None:
    words = tokenizer()
    tokens = torch.tensor([[1, 10, 11, 12, 2], [1, 13, 14, 15, 2]])
    task = task_for({"input_ids": tokens}, gpt2)
    made = drop_tokens(gpt2, task, {"input_ids": tokens}, 1.0, seeded(), words)
    assert made.batch["input_ids"].tolist() == [[1, 2], [1, 2]]
    plain = torch.tensor([[10, 11, 12], [13, 14, 15]])
    assert drop_tokens(gpt2, task, {"input_ids": plain}, 1.0, seeded()).batch["input_ids"].shape == (2, 2)
    same = drop_tokens(gpt2, task, {"input_ids": plain}, 0.0, seeded())
    assert torch.equal(same.batch["input_ids"], plain)
    # targets that the data had shifted stay with their token
    tokens, following = torch.arange(5, 25).reshape(2, 10), torch.arange(6, 26).reshape(2, 10)
    x, y = drop_tokens(gpt2, TupleTask(), (tokens, following), 0.3, seeded()).batch
    assert x.shape == (2, 7)
    assert torch.equal(y, x + 1)


def test_replaced_tokens_change_inputs_only_and_are_real(gpt2: nn.Module) -> None:
    words = tokenizer()
    vocabulary = real_tokens(gpt2, 50, words)
    assert vocabulary.tolist() == list(range(4, 44))  # no special token, no row beyond the tokenizer
    batch = numbered([8, 6], 8)
    task = task_for(batch, gpt2)
    seen: set[int] = set()
    for seed in range(40):
        made = substitute_tokens(gpt2, task, batch, 0.5, seeded(seed), words, vocabulary)
        changed = made.batch["input_ids"] != batch["input_ids"]
        assert changed.sum(1).tolist() == [4, 3]
        assert (made.changed, made.of) == (7, 14)
        assert not changed[batch["attention_mask"] == 0].any()
        assert torch.equal(made.batch["labels"], batch["input_ids"])
        seen |= set(made.batch["input_ids"][changed].tolist())
    assert seen <= set(range(4, 44))
    assert len(seen) > 35
    # what is asked for is the original next token
    sums = example_sums_of_pass(gpt2, task, [made.batch])
    with torch.no_grad():
        logits = gpt2(made.batch["input_ids"][:1]).logits[0, :-1]
    expected = nn.functional.cross_entropy(logits, batch["input_ids"][0, 1:], reduction="sum")
    assert sums.loss[0] == pytest.approx(expected.item(), rel=1e-5)


def test_masking_needs_a_mask_token(gpt2: nn.Module) -> None:
    batch = numbered([8, 6], 8)
    task = task_for(batch, gpt2)
    made = mask_tokens(gpt2, task, batch, 0.25, seeded(), tokenizer())
    assert (made.batch["input_ids"] == 3).sum(1).tolist() == [2, 2]
    assert torch.equal(made.batch["labels"], batch["input_ids"])
    with pytest.raises(ValueError, match="has no mask token"):
        mask_tokens(gpt2, task, batch, 0.25, seeded())


def test_entries_are_dropped_to_the_mean_and_noise_is_relative() -> None:
    x = torch.randn(200, 50, generator=seeded(1)) * torch.arange(1, 201)[:, None]
    mean = x.double().mean(0)
    dropped, count = drop_entries(x, 0.2, mean, seeded())
    gone = dropped != x
    assert count == int(gone.sum())
    assert abs(count / x.numel() - 0.2) < 0.015
    assert torch.equal(dropped[gone], mean.float().expand_as(x)[gone])
    noise = (add_noise(x, 0.1, seeded()) - x).double().numpy()
    np.testing.assert_allclose(noise.std(1) / x.square().mean(1).sqrt().numpy(), 0.1, rtol=0.5)
    assert abs(np.mean(noise.std(1) / x.square().mean(1).sqrt().numpy()) - 0.1) < 0.003
    assert torch.equal(add_noise(x, 0.0, seeded()), x)


def test_distances_to_the_nearest_other_token_are_exact() -> None:
    rng = np.random.default_rng(0)
    table = rng.normal(size=(300, 12)) + 100  # a common offset, in which products would cancel
    table[7] = table[3]  # the same point: no distance
    table[9] = table[3] + 1e-5
    table[11] = table[5]
    apart = np.linalg.norm(table[:, None] - table[None], axis=2)
    apart[apart == 0] = np.inf
    found = nearest_distances(torch.tensor(table), torch.tensor(table)).numpy()
    np.testing.assert_allclose(found, apart.min(1), rtol=1e-9)
    assert found[3] == pytest.approx(1e-5 * np.sqrt(12), rel=1e-6)
    assert nearest_distances(torch.ones(2, 3), torch.ones(4, 3)).tolist() == [np.inf, np.inf]


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_the_nearest_token_within_epsilon(norm: Any) -> None:
    rng = np.random.default_rng(1)
    table = rng.normal(size=(200, 3))
    moved = table[:60] + rng.normal(size=(60, 3)) * 0.6
    radius = rng.uniform(0.1, 1.0, size=60)
    found = nearest_within(*map(torch.tensor, (table[:60], moved, radius, table)), norm).tolist()
    for place in range(60):
        gap = table - table[place]
        reach = np.linalg.norm(gap, axis=1) if norm == "l2" else np.abs(gap).max(1)
        allowed = [row for row in range(200) if reach[row] <= radius[place]]  # its own row is among them
        nearest = min(allowed, key=lambda row: np.linalg.norm(table[row] - moved[place]))
        assert found[place] == (-1 if nearest == place else nearest)
    assert {-1} < set(found)


def test_an_attacked_text_is_one_that_the_model_was_really_given(gpt2: nn.Module) -> None:
    words, batch = tokenizer(), numbered([8, 6], 8)
    task = task_for(batch, gpt2)
    target = find_target(gpt2, task, batch)
    (distances,) = token_distances(gpt2, [target], words)
    vocabulary = real_tokens(gpt2, 50, words)
    assert target.embedding is not None
    table = token_table(target.embedding, vocabulary)
    for epsilon, some in ((0.4, False), (2.5, True)):
        ball = unit_ball(target, Threat("l2", "token", "token"), distances).of(epsilon)
        delta = pgd(gpt2, task, target, ball, steps=5, restarts=1, generator=seeded()).delta
        texts = changed_texts(gpt2, task, target, delta, ball, words, vocabulary, table, 2)
        assert [text["before"] for text in texts][1] == words.decode(batch["input_ids"][1, :6])
        assert any(text["changed"] for text in texts) is some
        for row, text in enumerate(texts):
            new = words(text["after"])["input_ids"]
            assert text["tokens"] == len(new) == [8, 6][row]
            old = batch["input_ids"][row, : len(new)]
            assert text["changed"] == int((torch.tensor(new) != old).sum())
            rows = target.embedding.weight.detach()
            far = (rows[torch.tensor(new)] - rows[old]).norm(dim=1)
            assert (far <= ball.radius[row, : len(new), 0] * (1 + 1e-5)).all()
            with torch.no_grad():
                logits = gpt2(torch.tensor([new])).logits[0, :-1]
            expected = nn.functional.cross_entropy(logits, old[1:]).item()
            assert text["loss_after"] == pytest.approx(expected, rel=1e-4)


def test_without_a_tokenizer_texts_are_token_ids(gpt2: nn.Module) -> None:
    batch = token_batch("gpt2")
    task = task_for(batch, gpt2)
    target = find_target(gpt2, task, batch)
    vocabulary = real_tokens(gpt2, 50)
    assert vocabulary.tolist() == list(range(1, 50))  # the configuration names 0 as special
    assert target.embedding is not None
    ball = unit_ball(target, Threat("l2", "sequence", "absolute"), None)
    table = token_table(target.embedding, vocabulary)
    (text,) = changed_texts(gpt2, task, target, torch.zeros_like(target.origin), ball, None, vocabulary, table, 1)
    assert text["before"] == text["after"] == batch["input_ids"][0].tolist()
    assert text["changed"] == 0
    assert text["loss_before"] == text["loss_after"]
