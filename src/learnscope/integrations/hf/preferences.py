"""Held-out pairs of a chosen and a rejected text, as two classes whose logits are the rewards.

Cross entropy of the first class is then −ln σ(r_chosen − r_rejected): the loss of a reward model, and of DPO with its
implicit rewards r = β (ln π(y|x) − ln π_ref(y|x)) (arXiv 2305.18290, eq. 7). The accuracy is the share of pairs whose
chosen text has the higher reward.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from learnscope.task import IGNORE, Task
from learnscope.task.batches import map_leaves
from learnscope.task.losses import CROSS_ENTROPY, named
from learnscope.task.shapes import logits_in

MASK, CHOSEN, REJECTED = "completion_mask", "ref_chosen_logps", "ref_rejected_logps"


class PairRewards(Task):
    """Batches with the chosen texts first and the rejected ones after them.

    Args:
        beta: of DPO; None for a model whose outputs are the rewards.
        known: whether the trainer's loss is this one.
    """

    def __init__(self, beta: float | None, *, known: bool) -> None:
        self.beta = beta
        why = "of the rewards of chosen and rejected, as the trainer computes it"
        unlike = "of the rewards of chosen and rejected; the trainer's loss has other terms"
        self.chosen_loss = named(CROSS_ENTROPY, "known" if known else "guessed", why if known else unlike)

    def logits(self, model: nn.Module, batch: Any) -> Tensor:
        if self.beta is None:
            margin = batch.get("margin")
            inputs = {key: value for key, value in batch.items() if key != "margin"}
            chosen, rejected = logits_in(model(**inputs, use_cache=False)).squeeze(-1).chunk(2)
            return torch.stack([chosen if margin is None else chosen - margin, rejected], 1)
        chosen, rejected = log_probabilities(model, batch).chunk(2)
        rewards = torch.stack([chosen - batch[CHOSEN], rejected - batch[REJECTED]], 1)
        return self.beta * rewards

    def targets(self, batch: Any) -> Tensor:
        return torch.zeros(self.size(batch), dtype=torch.long, device=batch["input_ids"].device)

    def size(self, batch: Any) -> int:
        return len(batch["input_ids"]) // 2

    def take(self, batch: Any, n: int) -> Any:
        """The first pairs: rows of both halves."""
        pairs = self.size(batch)

        def cut(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor) or not leaf.ndim:
                return leaf
            return torch.cat([leaf[:n], leaf[pairs : pairs + n]]) if len(leaf) == 2 * pairs else leaf[:n]

        return map_leaves(batch, cut)


def log_probabilities(model: nn.Module, batch: Any) -> Tensor:
    """Σ ln p of the completion's tokens, for each row, in float32."""
    inputs = {key: value for key, value in batch.items() if key not in (MASK, CHOSEN, REJECTED)}
    targets = batch["input_ids"].masked_fill(batch[MASK] == 0, IGNORE)[:, 1:]
    logits = logits_in(model(**inputs, use_cache=False))[:, -targets.shape[1] - 1 : -1].float()
    each = nn.functional.cross_entropy(logits.transpose(1, 2), targets, ignore_index=IGNORE, reduction="none")
    return -each.sum(1)


@torch.no_grad()
def with_reference(trainer: Any, batch: dict[str, Any]) -> dict[str, Any]:
    """The batch with the reference model's log probabilities, which stay the same throughout the training."""
    if CHOSEN in batch:
        return batch
    device = trainer.accelerator.device
    moved = {key: value.to(device) if isinstance(value, Tensor) else value for key, value in batch.items()}
    reference = trainer.model if trainer.ref_model is None else trainer.ref_model
    chosen, rejected = trainer.compute_ref_log_probs(reference, moved)
    return {**batch, CHOSEN: chosen.cpu(), REJECTED: rejected.cpu()}
