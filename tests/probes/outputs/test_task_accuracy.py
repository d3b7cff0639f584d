"""Accuracy on questions against a computation by hand: one question at a time, in float64."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import learnscope as ls
from learnscope.model.outputs.questions import Asker, CannotAsk, Questions
from probes.outputs.asked import choices, model, prompts, tokenizer

POSITIONS = 48


def by_hand(net: Any, context: str, choice: str) -> float:
    """ln p(" " + choice | context), token by token, with the last tokens that fit."""
    encode = tokenizer().encode
    if not context:
        before, whole = [0], [0, *encode(" " + choice)]
    else:
        before, whole = encode(context.rstrip()), encode(context + " " + choice)
    kept = whole[-(POSITIONS + 1) :]
    total = 0.0
    with torch.no_grad():
        logits = net.double()(torch.tensor([kept[:-1]])).logits[0].numpy()
    net.float()
    for place in range(len(kept) - (len(whole) - len(before)), len(kept)):
        row = logits[place - 1]
        total += row[kept[place]] - row.max() - np.log(np.exp(row - row.max()).sum())
    return float(total)


def measured(net: Any, *tasks: Questions, **options: Any) -> dict[tuple[str, str], Any]:
    probe = ls.TaskAccuracy(tasks=tasks, **options)
    ids = torch.randint(1, 60, (2, 8))
    run = ls.audit(net, [{"input_ids": ids, "labels": ids}], probes=[probe], tokenizer=tokenizer(), strict=True)
    frame = run.frame("TaskAccuracy")
    return {(row.scope, row.name): row.value for row in frame.itertuples()}


def test_multiple_choice_is_what_a_loop_by_hand_says() -> None:
    net, rows = model(POSITIONS), choices()
    assert any(len(tokenizer().encode(row["context"])) > POSITIONS for row in rows)
    found = measured(net, Questions("made", rows), batch_size=5)
    scores = [[by_hand(net, row["context"], choice) for choice in row["choices"]] for row in rows]
    divisors = {"acc": lambda _: 1, "acc_norm": len, "acc_bytes": lambda choice: len(choice.encode())}
    for name, size in divisors.items():
        right = [
            int(np.argmax([s / size(c) for s, c in zip(own, row["choices"], strict=True)]) == row["answer"])
            for own, row in zip(scores, rows, strict=True)
        ]
        assert found["made", name] == pytest.approx(np.mean(right))
        ends = stats.binomtest(sum(right), len(right)).proportion_ci(method="wilson")
        assert found["made", f"{name}_low"] == pytest.approx(ends.low)
        assert found["made", f"{name}_high"] == pytest.approx(ends.high)
    assert len({found["made", name] for name in divisors}) > 1  # they are different measures here
    assert found["made", "chance"] == pytest.approx(np.mean([1 / len(row["choices"]) for row in rows]))
    assert found["made", "questions"] == len(rows)
    cut = sum(len(tokenizer().encode(r["context"] + " " + c)) > POSITIONS + 1 for r in rows for c in r["choices"])
    assert found["made", "cut"] == cut > 0
    assert np.isnan(found["made", "exact_match"])


def greedy(net: Any, prompt: str, most: int) -> str:
    """Without a cache of keys, a token at a time."""
    ids = tokenizer().encode(prompt)[-(POSITIONS - most) :]
    start = len(ids)
    with torch.no_grad():
        while len(ids) < start + most:
            token = int(net(torch.tensor([ids])).logits[0, -1].argmax())
            if token == 0:
                break
            ids.append(token)
    return str(tokenizer().decode(ids[start:]))


def test_answers_in_words_are_the_most_likely_tokens() -> None:
    net, rows = model(POSITIONS), prompts()
    texts = [greedy(net, row["prompt"], 6) for row in rows]
    assert len(set(texts)) > 3
    known = [{**row, "answer": ["no", f"  {text.strip()} "] if n % 3 else ["no"]} for n, (row, text) in
             enumerate(zip(rows, texts, strict=True))]  # fmt: skip
    found = measured(net, Questions("words", known), until=("\n\n",), max_new_tokens=6)
    assert found["words", "exact_match"] == pytest.approx(np.mean([bool(n % 3) for n in range(len(rows))]))
    assert found["words", "cut"] == 1
    stop = next(letter for letter in "".join(texts) if letter.isascii() and letter.isalpha())
    short = [{**row, "answer": [text.split(stop)[0]]} for row, text in zip(rows, texts, strict=True)]
    assert measured(net, Questions("words", short), until=(stop,), max_new_tokens=6)["words", "exact_match"] == 1


def test_a_choice_is_encoded_with_its_context() -> None:
    asker = Asker(model(), tokenizer(), None)
    before, after = asker.pair("the cat  ", " sat")
    assert tokenizer().decode(before) == "the cat"
    assert tokenizer().decode(after) == "   sat"
    assert asker.pair("", " sat")[0] == [0]
    with pytest.raises(CannotAsk, match="no token of its own"):
        asker.pair("the", "")


def test_no_generator_is_touched_and_the_model_stays() -> None:
    net = model().train()
    random.seed(4), np.random.seed(4), torch.manual_seed(4)
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()  # type: ignore[union-attr]
    weights = {name: value.clone() for name, value in net.state_dict().items()}
    ids = torch.arange(8)[None]
    probe = ls.TaskAccuracy(tasks=[Questions("a", choices(4)), Questions("b", prompts(2))], max_new_tokens=3)
    ls.audit(net, [{"input_ids": ids, "labels": ids}], probes=[probe], tokenizer=tokenizer(), strict=True)
    assert states[0] == random.getstate()
    assert states[1] == np.random.get_state()[1].tolist()  # type: ignore[union-attr]
    assert torch.equal(states[2], torch.get_rng_state())
    assert net.training
    assert all(torch.equal(value, weights[name]) for name, value in net.state_dict().items())


def test_what_cannot_be_asked_is_not_measured_and_says_why() -> None:
    ids = torch.arange(8)[None]
    tasks = [Questions("a", choices(3))]
    run = ls.audit(model(), [{"input_ids": ids, "labels": ids}], probes=[ls.TaskAccuracy(tasks=tasks)], strict=True)
    frame = run.frame("TaskAccuracy", name="acc")
    assert frame["value"].isna().all()
    assert "no tokenizer" in frame["status"].iloc[0]
    with pytest.raises(ValueError, match="nothing to ask"):
        ls.audit(model(), [{"input_ids": ids, "labels": ids}], probes=[ls.TaskAccuracy()], strict=True)
    with pytest.raises(ValueError, match="same name"):
        ls.TaskAccuracy(tasks=tasks * 2)
    assert "choices" not in repr(tasks[0])  # the manifest has no texts
