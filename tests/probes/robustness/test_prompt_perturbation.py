"""Changed prompts against passes by hand, and what is not measured."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from scipy import special

import learnscope as ls
from learnscope.model.robustness.prompts import Prompter, prompts_of
from probes.outputs.asked import TEXT, model, tokenizer


def batches(count: int = 10) -> list[dict[str, torch.Tensor]]:
    generator = random.Random(3)
    rows = [tokenizer().encode(" ".join(generator.choices(TEXT.split(), k=14)))[:20] for _ in range(count)]
    rows = [row + [0] * (20 - len(row)) for row in rows]
    ids = torch.tensor(rows)
    mask = torch.ones_like(ids)
    mask[0, 16:] = 0
    return [{"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}]


def numbers(run: ls.Run, **where: Any) -> dict[tuple[str, float, str], float]:
    frame = run.frame("PromptPerturbation")
    return {(row.scope, row.level, row.name): row.value for row in frame.itertuples()}


def by_hand(net: Any, bodies: list[list[int]], tails: list[list[int]]) -> list[np.ndarray[Any, Any]]:
    """The log probabilities at the positions that predict the tails, an example at a time in float64."""
    found = []
    for body, tail in zip(bodies, tails, strict=True):
        with torch.no_grad():
            logits = net.double()(torch.tensor([body + tail])).logits[0].numpy()
        found.append(special.log_softmax(logits[len(body) - 1 : -1], 1))
    net.float()
    return found


def test_losses_accuracy_and_kl_are_those_of_passes_by_hand() -> None:
    net, data = model(), batches()
    probe = ls.PromptPerturbation(levels=(0.2,), seeds=2, kinds=("typos", "token_swaps"), examples=10)
    found = numbers(ls.audit(net, data, probes=[probe], tokenizer=tokenizer(), strict=True))
    prompts = prompts_of(net, data, tokenizer())
    assert not isinstance(prompts, str)
    tails = [prompt.tail for prompt in prompts]
    assert [len(p.body) + len(p.tail) + len(p.head) for p in prompts] == [16] + [20] * 9
    prompter = Prompter(net, prompts, tokenizer())

    def bodies(made: list[dict[str, torch.Tensor]]) -> list[list[int]]:
        rows = [row[real.bool()].tolist() for batch in made for row, real in
                zip(batch["input_ids"], batch["attention_mask"], strict=True)]  # fmt: skip
        return [row[: len(row) - len(tail)] for row, tail in zip(rows, tails, strict=True)]

    for kind in ("typos", "token_swaps"):
        clean = by_hand(net, bodies(prompter.clean(kind)), tails)
        losses, right, kl = [], [], []
        for seed in (0, 1):
            other = by_hand(net, bodies(prompter.changed(kind, 0.2, seed)[0]), tails)
            for p, q, tail in zip(clean, other, tails, strict=True):
                at = np.arange(len(tail)), np.array(tail)
                losses.append((-q[at] + p[at]).sum())
                right.append(((q.argmax(1) == tail).astype(int) - (p.argmax(1) == tail)).sum())
                kl.append((np.exp(p) * (p - q)).sum())
        positions = 2 * sum(map(len, tails))
        for name, values in {"loss_change": losses, "accuracy_change": right, "kl": kl}.items():
            assert found[kind, 0.2, name] == pytest.approx(np.sum(values) / positions, rel=1e-3, abs=1e-6)
            if name != "accuracy_change":
                assert found[kind, 0.2, f"{name}_low"] < found[kind, 0.2, name] < found[kind, 0.2, f"{name}_high"]
        assert found[kind, 0.2, "examples"] == 10
    assert found["clean", 0.0, "kl"] == 0
    assert found["typos", 0.2, "kl"] > 0
    assert 0.1 < found["typos", 0.2, "changed_share"] < 0.35


def test_the_same_by_seed_and_what_is_predicted_stays() -> None:
    net, data = model(), batches()
    prompts = prompts_of(net, data, tokenizer())
    assert not isinstance(prompts, str)
    prompter = Prompter(net, prompts, tokenizer())
    for kind in ls.PromptPerturbation.kinds:
        one, other = prompter.changed(kind, 0.3, 5)[0], prompter.changed(kind, 0.3, 5)[0]
        assert all(torch.equal(a[key], b[key]) for a, b in zip(one, other, strict=True) for key in a)
        kept = [[int(t) for t in row if t != -100] for batch in one for row in batch["labels"]]
        assert kept == [prompt.tail for prompt in prompts]


def test_what_several_levels_change_alike_is_run_once() -> None:
    """Of ten tokens both levels swap one pair, the same by each seed: as many passes as of one level, and no others."""
    net, data, passes = model(), batches(), []
    handle = net.register_forward_pre_hook(lambda *_: passes.append(1))

    def measured(*levels: float) -> dict[tuple[str, float, str], float]:
        passes.clear()
        probe = ls.PromptPerturbation(levels=levels, kinds=("token_swaps",), examples=10)
        return numbers(ls.audit(net, data, probes=[probe], strict=True))

    both, needed = measured(0.02, 0.1), len(passes)
    alone = measured(0.02)
    assert needed == len(passes)
    expected = {key: value for key, value in both.items() if key[1] != 0.1}
    assert alone == pytest.approx(expected, rel=0, abs=0, nan_ok=True)
    swapped = {(level, name): value for (kind, level, name), value in both.items() if kind == "token_swaps"}
    assert swapped
    same = {(0.02, name): value for (level, name), value in swapped.items() if level == 0.1}
    assert {key: swapped[key] for key in same} == pytest.approx(same, rel=0, abs=0, nan_ok=True)
    assert both["clean", 0.0, "kl"] == both["clean", 0.0, "loss_change"] == 0
    handle.remove()


def test_without_a_tokenizer_tokens_alone_are_changed_and_the_rest_says_why() -> None:
    run = ls.audit(model(), batches(), probes=[ls.PromptPerturbation(levels=(0.2,), seeds=1)], strict=True)
    frame = run.frame("PromptPerturbation", name="kl").set_index("scope")
    assert frame.loc[["token_swaps", "token_distractor"], "value"].gt(0).all()
    assert frame.loc["typos", "status"].startswith("no tokenizer is known")
    net = torch.nn.Linear(3, 2)
    data = [(torch.randn(9, 3), torch.randint(2, (9,)))]
    frame = ls.audit(net, data, probes=[ls.PromptPerturbation()], strict=True).frame("PromptPerturbation")
    assert frame["value"].isna().all()
    assert frame["status"].str.contains("no token ids").all()


def test_a_classifier_of_text_keeps_its_labels() -> None:
    from transformers import GPT2Config, GPT2ForSequenceClassification

    torch.manual_seed(0)
    config = GPT2Config(vocab_size=len(tokenizer()), n_positions=48, n_embd=16, n_layer=1, n_head=2, num_labels=3,
                        initializer_range=0.3, pad_token_id=0, bos_token_id=0, eos_token_id=0)  # fmt: skip
    net = GPT2ForSequenceClassification(config)
    data = [{**batches()[0], "labels": torch.arange(10) % 3}]
    probe = ls.PromptPerturbation(levels=(0.5,), seeds=1, kinds=("typos",), examples=10)
    run = ls.audit(net, data, probes=[probe], tokenizer=tokenizer(), strict=True)
    assert numbers(run)["typos", 0.5, "kl"] > 0
    assert run.frame("PromptPerturbation", name="examples")["value"].max() == 10


def test_no_generator_is_touched() -> None:
    net = model().train()
    random.seed(4), np.random.seed(4), torch.manual_seed(4)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()  # type: ignore[union-attr]
    ls.audit(net, batches(), probes=[ls.PromptPerturbation(seeds=1)], tokenizer=tokenizer(), strict=True)
    assert before[0] == random.getstate()
    assert before[1] == np.random.get_state()[1].tolist()  # type: ignore[union-attr]
    assert torch.equal(before[2], torch.get_rng_state())
    assert net.training


def test_wrong_options_are_refused() -> None:
    with pytest.raises(ValueError, match="kinds are typos"):
        ls.PromptPerturbation(kinds=("smells",))
    with pytest.raises(ValueError, match="shares, from 0 to 1"):
        ls.PromptPerturbation(levels=(2.0,))
