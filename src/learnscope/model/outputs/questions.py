"""Questions with known answers put to a causal language model, as lm-eval puts them (arXiv 2405.14782)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from learnscope.model.guard import guard
from learnscope.model.outputs.evaluate import model_device
from learnscope.model.outputs.sampling import next_logits
from learnscope.task import unwrap
from learnscope.task.shapes import logits_in


class CannotAsk(ValueError):
    """Why a question cannot be put to this model."""


@dataclass(frozen=True, repr=False)
class Questions:
    """A named set of questions of one kind: with `choices`, or to be answered in words.

    `rows` are those of `learnscope.sources.task_files`; `delimiter` stands between a context and each choice.
    """

    name: str
    rows: Sequence[Mapping[str, Any]]
    delimiter: str = " "

    @property
    def choose(self) -> bool:
        return "choices" in self.rows[0]

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps([*self.rows, self.delimiter], sort_keys=True).encode()).hexdigest()[:16]

    def __repr__(self) -> str:
        """Short, as it goes into the manifest of a run."""
        return f"Questions({self.name!r}, {len(self.rows)} questions, sha256 {self.digest})"


@dataclass(frozen=True, slots=True)
class Asker:
    """A model with its tokenizer, and the number of tokens that it takes at most (None: any)."""

    model: nn.Module
    tokenizer: Any
    positions: int | None

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        if special or not hasattr(self.tokenizer, "all_special_ids"):
            return list(self.tokenizer(text)["input_ids"])
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """The tokens of a context and of what follows it, encoded together and split where the context's own end.

        Spaces at the end of the context go to the continuation, as tokens begin with a space. An empty context is the
        token that begins a text, or the one that ends it.
        """
        if not context:
            tokens, prefix = self.encode(continuation, special=False), self._prefix()
            if not tokens:
                raise CannotAsk(f"the choice {continuation!r} has no token")
            return ([prefix], tokens) if tokens[0] != prefix else (tokens[:1], tokens[1:])
        kept = context.rstrip()
        context, continuation = kept, context[len(kept) :] + continuation
        before, whole = self.encode(context), self.encode(context + continuation)
        if len(whole) <= len(before) or not before:
            raise CannotAsk(
                f"after {context[-40:]!r}, {continuation!r} has no token of its own: the tokenizer joins them"
            )
        return before, whole[len(before) :]

    def _prefix(self) -> int:
        config = getattr(unwrap(self.model), "config", None)
        for owner in (self.tokenizer, config):
            for kind in ("bos_token_id", "eos_token_id"):
                if isinstance(token := getattr(owner, kind, None), int):
                    return token
        raise CannotAsk("a context is empty, and there is no token that begins or ends a text")


@torch.no_grad()
def log_likelihoods(
    asker: Asker, pairs: Sequence[tuple[list[int], list[int]]], *, batch_size: int = 8
) -> tuple[list[float], int]:
    """ln p(continuation | context) of each pair in float64, and of how many the context was cut.

    Tokens beyond what the model takes are cut from the left. Pairs of similar length are run together, padded on the
    right, where a causal model does not see it.
    """
    device, most = model_device(asker.model), asker.positions
    rows = [before + after if most is None else (before + after)[-(most + 1) :] for before, after in pairs]
    cut = sum(len(row) < len(before) + len(after) for row, (before, after) in zip(rows, pairs, strict=True))
    found = [0.0] * len(pairs)
    order = sorted(range(len(pairs)), key=lambda place: -len(rows[place]))
    with guard(asker.model):
        for start in range(0, len(order), batch_size):
            places = order[start : start + batch_size]
            width = len(rows[places[0]]) - 1
            ids = torch.zeros(len(places), width, dtype=torch.int64)
            for line, place in enumerate(places):
                ids[line, : len(rows[place]) - 1] = torch.tensor(rows[place][:-1])
            logits = logits_in(asker.model(input_ids=ids.to(device)))
            for line, place in enumerate(places):
                found[place] = _summed(logits[line], rows[place], min(len(pairs[place][1]), len(rows[place]) - 1))
    return found, cut


def _summed(logits: Tensor, row: Sequence[int], last: int) -> float:
    """Σ ln p of the last tokens of a row, from the logits of the places before them."""
    end = len(row) - 1
    at = logits[end - last : end].double().log_softmax(1)
    return float(at.gather(1, torch.tensor(row[-last:], device=at.device)[:, None]).sum())


@torch.no_grad()
def written(asker: Asker, prompt: str, *, until: Sequence[str], most: int) -> tuple[str, bool]:
    """The most likely next tokens one after the other, as text up to the first of `until` or the end of a text; and
    whether the prompt was cut from the left to leave room for them."""
    tokens, room = asker.encode(prompt), None if asker.positions is None else asker.positions - most
    if not tokens:
        raise CannotAsk(f"the prompt {prompt!r} has no token")
    if room is not None and room < 1:
        raise CannotAsk(f"{most} tokens leave no room for a prompt: the model takes {asker.positions}")
    ids = torch.tensor([tokens if room is None else tokens[-room:]])
    made: list[int] = []
    config, text = getattr(unwrap(asker.model), "config", None), ""
    ends = {getattr(owner, "eos_token_id", None) for owner in (asker.tokenizer, config)}
    cache: Any = None
    with guard(asker.model):
        while len(made) < most:
            logits, cache = next_logits(asker.model, ids, cache)
            token = int(logits[0].argmax())
            if token in ends:
                break
            made.append(token)
            text = str(asker.tokenizer.decode(made))
            if any(stop in text for stop in until):
                break
            ids = torch.cat([ids, torch.tensor([[token]])], 1)
    for stop in until:
        text = text.split(stop)[0]
    return text, room is not None and len(tokens) > room
