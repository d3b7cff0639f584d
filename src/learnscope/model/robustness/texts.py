"""The text nearest to an attack on embeddings: tokens that it moves nearer to another token than to themselves."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from learnscope.model.data import DataError
from learnscope.model.outputs.example_sums import example_sums_of_pass
from learnscope.model.robustness.target import Target, token_ids
from learnscope.model.robustness.token_noise import with_tokens
from learnscope.model.robustness.token_units import nearest_within
from learnscope.task import Task
from learnscope.tensor.robustness.perturbation import Ball, lengths


def changed_texts(
    model: nn.Module, task: Task, target: Target, delta: Tensor, ball: Ball, tokenizer: Any, vocabulary: Tensor,
    table: Tensor, most: int,
) -> list[dict[str, Any]]:  # fmt: skip
    """For the first examples: the text (token ids without a tokenizer) before and after the attack, and both losses.

    Each attacked embedding becomes the token nearest to it, among those within ε of the original token (a sequence's ε
    is divided among its tokens as in the attack). The loss is that of the changed text with the original labels.
    """
    assert target.tokens is not None
    tokens, origin = target.tokens[:most], target.origin[:most]
    free, moved = target.free[:most, :, 0], delta[:most]
    radius = ball.radius[:most].expand(-1, tokens.shape[1], 1) if ball.lead == 2 else _token_radii(ball, moved)
    rows = nearest_within(origin[free], (origin.to(moved.dtype) + moved)[free], radius[..., 0][free], table, ball.norm)
    new = tokens.clone()
    new[free] = torch.where(rows >= 0, vocabulary.to(tokens)[rows.clamp(min=0)], tokens[free])
    part = task.take(target.batch, most)
    ids = token_ids(part, task)
    if ids is None or not torch.equal(ids, tokens):
        raise DataError(
            f"the token ids that {type(model).__name__} embeds are not those of the batch: an attacked text cannot "
            "be put in their place. Use texts=0"
        )
    before, after = (example_sums_of_pass(model, task, [batch]) for batch in (part, with_tokens(part, ids, new)))
    return [
        {
            "before": _text(tokens[n][real], tokenizer),
            "after": _text(new[n][real], tokenizer),
            "changed": int((tokens[n] != new[n]).sum()),
            "tokens": int(real.sum()),
            "loss_before": before.loss[n] / before.positions[n] if before.positions[n] else None,
            "loss_after": after.loss[n] / before.positions[n] if before.positions[n] else None,
        }
        for n, real in enumerate(free)
    ]


def _token_radii(ball: Ball, delta: Tensor) -> Tensor:
    """The ε of each token, a sequence's ε divided in proportion to the attack."""
    of_tokens, of_sequence = lengths(delta, 2), lengths(delta, 1)
    if ball.norm == "linf":  # bounds each entry, for any cell
        return ball.radius[: len(delta)].expand(of_tokens.shape)
    return ball.radius[: len(delta)] * (of_tokens / torch.where(of_sequence > 0, of_sequence, 1))


def _text(ids: Tensor, tokenizer: Any) -> Any:
    decode = getattr(tokenizer, "decode", None)
    return str(decode(ids.tolist())) if callable(decode) else ids.tolist()
