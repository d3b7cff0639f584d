"""Faults of language models: shifts, padding, masks."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import AdamW
from torch.utils.data import TensorDataset

from zoo.loops import fit, last, tokens
from zoo.material import PAD, language, pairs, passages, words
from zoo.models import GPT, LSTM, hf_bert, hf_gpt2
from zoo.registry import Check, Watch, above, below, fault

COPIES = {"copies_input"}
SHIFTED = {"labels_shifted"}
PADDED = {"padding_in_loss"}


@fault("labels not shifted, GPT", COPIES)
def copies(watch: Watch, seed: int) -> Check:
    model, text = GPT(), passages(400, 32, seed=seed)
    held = passages(64, 32, held_out=True)
    batches = pairs(text, text, steps=150, size=16, seed=seed)
    optimizer = AdamW(model.parameters(), lr=3e-3)
    losses = fit(watch, model, optimizer, batches, tokens, holdout=TensorDataset(held, held.clone()))
    return below(last(losses), 1)


@fault("labels not shifted, LSTM", COPIES)
def copies_lstm(watch: Watch, seed: int) -> Check:
    model, text = LSTM(), passages(400, 25, seed=seed)
    held = passages(64, 25, held_out=True)
    batches = pairs(text, text, steps=150, size=16, seed=seed)
    optimizer = AdamW(model.parameters(), lr=1e-2)
    losses = fit(watch, model, optimizer, batches, tokens, holdout=TensorDataset(held, held.clone()))
    return below(last(losses), 1)


@fault("no causal mask, GPT", COPIES, since=None)
def sees_the_future(watch: Watch, seed: int) -> Check:
    """The target of each place can be read at the next one: the loss falls below what letters allow."""
    model, text = GPT(causal=False, width=48), passages(400, 33, seed=seed)
    batches = pairs(text[:, :-1], text[:, 1:], steps=300, size=24, seed=seed)
    losses = fit(watch, model, AdamW(model.parameters(), lr=1e-2), batches, tokens, holdout=language())
    return below(last(losses), 1.5)


@fault("labels shifted twice, GPT", SHIFTED)
def shifted(watch: Watch, seed: int) -> Check:
    model, text = GPT(), passages(800, 33, seed=seed)
    held = passages(64, 33, held_out=True)

    def shifts(outputs: Tensor, targets: Tensor) -> Tensor:
        """Targets are the next letters already, and are shifted again."""
        return tokens(outputs[:, :-1], targets[:, 1:])

    batches = pairs(text[:, :-1], text[:, 1:], steps=200, size=16, seed=seed)
    watching = {"holdout": TensorDataset(held[:, :-1].clone(), held[:, 1:].clone())}
    losses = fit(watch, model, AdamW(model.parameters(), lr=5e-3), batches, shifts, **watching)
    return above(last(losses), 2.5)


@fault("labels shifted twice, GPT-2", SHIFTED)
def shifted_gpt2(watch: Watch, seed: int) -> Check:
    """The model shifts them itself."""
    model, text = hf_gpt2(), passages(800, 33, seed=seed)
    held, losses = passages(48, 33, held_out=True), []
    optimizer = AdamW(model.parameters(), lr=5e-3)
    watching = {"holdout": [{"input_ids": held[:, :-1], "labels": held[:, 1:]}]}
    with watch(model, optimizer, **watching) as w:
        for x, y in pairs(text[:, :-1], text[:, 1:], steps=150, size=16, seed=seed):
            loss = model(input_ids=x, labels=y).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
            losses.append(loss.item())
    return above(last(losses), 2.5)


@fault("padding in the loss, GPT", PADDED)
def padded(watch: Watch, seed: int) -> Check:
    model, (text, _) = GPT(padding=PAD), words(500, 33, seed=seed)
    held, _ = words(64, 33, held_out=True)
    batches = pairs(text[:, :-1], text[:, 1:], steps=150, size=16, seed=seed)
    watching = {"holdout": TensorDataset(held[:, :-1].clone(), held[:, 1:].clone())}
    losses = fit(watch, model, AdamW(model.parameters(), lr=5e-3), batches, tokens, **watching)
    return below(last(losses), 1.5)


@fault("padding in the loss, GPT-2", PADDED)
def padded_gpt2(watch: Watch, seed: int) -> Check:
    """Labels are a copy of the inputs, padding included."""
    model, (text, mask) = hf_gpt2(pad_token_id=PAD), words(500, 32, seed=seed)
    held, seen = words(48, 32, held_out=True)
    optimizer, losses = AdamW(model.parameters(), lr=5e-3), []
    watching = {"holdout": [{"input_ids": held, "attention_mask": seen, "labels": held}]}
    with watch(model, optimizer, **watching) as w:
        for x, seen_of in pairs(text, mask, steps=120, size=16, seed=seed):
            loss = model(input_ids=x, attention_mask=seen_of, labels=x).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
            losses.append(loss.item())
    return below(last(losses), 1.5)


@fault("ignore_index is a token, GPT", {"ignored_class"})
def ignored_token(watch: Watch, seed: int) -> Check | None:
    """Padding was to be ignored, and the number of the space is given."""
    model, text = GPT(), passages(800, 33, seed=seed)
    batches = pairs(text[:, :-1], text[:, 1:], steps=150, size=16, seed=seed)

    def without_spaces(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs.flatten(0, 1), targets.flatten(), ignore_index=1)

    fit(watch, model, AdamW(model.parameters(), lr=5e-3), batches, without_spaces, holdout=language())
    return None


@fault("dropout on in evaluation, BERT", {"dropout_in_evaluation"}, since=20)
def bert_in_training_mode(watch: Watch, seed: int) -> Check | None:
    """Is the first letter before n? Evaluated without `model.eval()`."""
    model, text = hf_bert(), passages(400, 12, seed=seed)
    labels = (text[:, 0] > 15).long()
    optimizer = AdamW(model.parameters(), lr=2e-3)
    held = passages(100, 12, held_out=True)
    watching = {"holdout": [{"input_ids": held, "labels": (held[:, 0] > 15).long()}]}
    with watch(model, optimizer, **watching) as w:
        for number, (x, y) in enumerate(pairs(text, labels, steps=100, size=16, seed=seed), 1):
            loss = model(input_ids=x, labels=y).loss
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            w.log(loss=loss)
            if number % 20 == 0:
                with torch.no_grad():
                    model(input_ids=held)
    return None
