"""Prompts of a batch changed as text or as tokens, with the tokens that are predicted left as they are."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor, nn

from learnscope.model.features.pooling import is_encoder_decoder
from learnscope.model.robustness.token_units import special_tokens
from learnscope.model.robustness.typed_errors import CHANGES, chosen, distracted
from learnscope.task import IGNORE, unwrap

TEXT_KINDS = (*CHANGES, "distractor")
TOKEN_KINDS = ("token_swaps", "token_distractor")
NO_TOKENIZER = "no tokenizer is known, so there is no text to change: give one"
NO_PROMPTS = "the inputs are no token ids under input_ids, with a label for each token or one for all"


@dataclass(frozen=True, slots=True)
class Prompt:
    """An example: special tokens first, what is changed, and what follows it with its labels; `label` of a class."""

    head: list[int]
    body: list[int]
    tail: list[int]
    labels: list[int]
    label: int | None = None


def prompts_of(model: nn.Module, batches: Sequence[Any], tokenizer: Any) -> list[Prompt] | str:
    """The examples' prompts, or why there are none.

    Of a language model the first half of each text is changed, and the second is predicted, so that the same tokens
    are predicted in the same order whatever is done to the prompt. Of a classifier all but special tokens is changed.
    """
    if is_encoder_decoder(model):
        return NO_PROMPTS
    special = special_tokens(model, tokenizer)
    found = []
    for batch in batches:
        ids = batch.get("input_ids") if isinstance(batch, Mapping) else None
        if not isinstance(ids, Tensor) or ids.ndim != 2 or ids.is_floating_point():
            return NO_PROMPTS
        labels, mask = batch.get("labels", ids), batch.get("attention_mask", torch.ones_like(ids))
        each = isinstance(labels, Tensor) and labels.shape == ids.shape
        if not isinstance(labels, Tensor) or labels.is_floating_point() or not (each or labels.ndim == 1):
            return NO_PROMPTS
        for row, answer, real in zip(ids, labels, mask.bool(), strict=True):
            tokens = row[real].tolist()
            head = list(takewhile(special.__contains__, tokens))
            rest = tokens[len(head) :]
            if each:
                cut = max(1, len(rest) // 2)
                found.append(Prompt(head, rest[:cut], rest[cut:], answer[real].tolist()[len(head) + cut :]))
            else:
                tail = list(takewhile(special.__contains__, reversed(rest)))
                body = rest[: len(rest) - len(tail)]
                found.append(Prompt(head, body, tail[::-1], [], int(answer)))
    return found


def possible_kinds(model: nn.Module, batches: Sequence[Any], tokenizer: Any) -> tuple[str, ...]:
    """The kinds of changes that can be made to these examples: without a tokenizer there is no text to change."""
    if isinstance(prompts_of(model, batches, tokenizer), str):
        return ()
    return (*TEXT_KINDS, *TOKEN_KINDS) if callable(tokenizer) else TOKEN_KINDS


@dataclass(frozen=True, slots=True)
class Prompter:
    """Makes batches of prompts, as they are and changed."""

    model: nn.Module
    prompts: Sequence[Prompt]
    tokenizer: Any
    batch_size: int = 8

    def clean(self, kind: str) -> list[dict[str, Tensor]]:
        """The batches without a change: of the text kinds encoded again, as the changed ones are."""
        text = kind in TEXT_KINDS
        return self.batches([self._encoded(self._text(each)) if text else each.body for each in self.prompts])

    def changed(self, kind: str, level: float, seed: int) -> tuple[list[dict[str, Tensor]], int, int]:
        """The batches with a share of their letters, words or tokens changed; how many were, and of how many."""
        bodies, count, of = [], 0, 0
        for number, prompt in enumerate(self.prompts):
            generator = random.Random(f"{seed} {kind} {number}")
            other = self.prompts[(number + 1 + generator.randrange(max(1, len(self.prompts) - 1))) % len(self.prompts)]
            if kind in TEXT_KINDS:
                text = self._text(prompt)
                made = (
                    distracted(text, self._text(other), level)
                    if kind == "distractor"
                    else CHANGES[kind](text, level, generator)
                )
                bodies.append(self._encoded(made.text))
                count, of = count + made.changed, of + made.of
                continue
            body, places = list(prompt.body), range(len(prompt.body) - 1)
            if kind == "token_swaps":
                taken = chosen([p for p in places if body[p] != body[p + 1]], level, generator, apart=True)
                for place in taken:
                    body[place], body[place + 1] = body[place + 1], body[place]
            else:
                taken = other.body[: max(1, round(level * len(body)))] if level > 0 else []
                body = [*taken, *body]
            bodies.append(body)
            count, of = count + len(taken), of + len(prompt.body)
        return self.batches(bodies), count, of

    def batches(self, bodies: Sequence[list[int]]) -> list[dict[str, Tensor]]:
        """With these in place of the prompts, padded on the right; what is too long is cut from the left."""
        config = getattr(unwrap(self.model), "config", None)
        most, pad = (getattr(config, name, None) for name in ("max_position_embeddings", "pad_token_id"))
        rows = []
        for prompt, body in zip(self.prompts, bodies, strict=True):
            room = None if not isinstance(most, int) else most - len(prompt.head) - len(prompt.tail)
            kept = body if room is None else body[len(body) - max(room, 0) :] if len(body) > room else body
            rows.append([*prompt.head, *kept, *prompt.tail])
        filler = pad if isinstance(pad, int) and pad >= 0 else None
        # a classifier looks for its padding token to find a text's end
        size = 1 if self.prompts[0].label is not None and filler is None else self.batch_size
        parts = [range(start, min(start + size, len(rows))) for start in range(0, len(rows), size)]
        return [self._batch([rows[n] for n in part], [self.prompts[n] for n in part], filler or 0) for part in parts]

    def _batch(self, rows: Sequence[list[int]], prompts: Sequence[Prompt], pad: int) -> dict[str, Tensor]:
        width = max(map(len, rows))
        ids, mask = torch.full((len(rows), width), pad), torch.zeros(len(rows), width, dtype=torch.int64)
        labels = torch.full((len(rows), width), IGNORE)
        for line, (row, prompt) in enumerate(zip(rows, prompts, strict=True)):
            ids[line, : len(row)], mask[line, : len(row)] = torch.tensor(row, dtype=torch.int64), 1
            if prompt.labels:
                labels[line, len(row) - len(prompt.labels) : len(row)] = torch.tensor(prompt.labels)
        classes = [prompt.label for prompt in prompts if prompt.label is not None]
        return {"input_ids": ids, "attention_mask": mask, "labels": torch.tensor(classes) if classes else labels}

    def _text(self, prompt: Prompt) -> str:
        return str(self.tokenizer.decode(prompt.body))

    def _encoded(self, text: str) -> list[int]:
        if hasattr(self.tokenizer, "all_special_ids"):
            return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        return list(self.tokenizer(text)["input_ids"])
