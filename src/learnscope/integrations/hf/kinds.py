"""Which of TRL's trainers one is, and what they cannot give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from learnscope.core.probe import Probe

GENERATING = ("GRPOTrainer", "RLOOTrainer")
"""Trainers whose batches are made while they train."""
PAIRS = ("DPOTrainer", "RewardTrainer")
"""Trainers whose batches hold the chosen texts in the first half of their rows and the rejected ones in the second."""


def kind_of(trainer: Any) -> str | None:
    """The class of TRL that a trainer is of; None for transformers' own and its other subclasses."""
    classes = (base for base in type(trainer).__mro__ if base.__module__.partition(".")[0] == "trl")
    return next((base.__name__ for base in classes), None)


def refuse_examples(trainer: Any, probes: Sequence[Probe], no_ids: str | None) -> None:
    """Refuse probes that follow examples where a trainer has no ids or no logits for them."""
    needing = [type(probe).__name__ for probe in probes if "examples" in probe.needs]
    reason = no_ids or without_logits(trainer)
    if needing and reason is not None:
        raise ValueError(
            f"{needing[0]} follows examples by their ids and logits, and {type(trainer).__name__} cannot give them: "
            f"{reason}. Leave it out of probes=, or follow examples over saved checkpoints: ls.replay(checkpoints, "
            "model=model, train=data, probes=[…])"
        )


def joined_examples(trainer: Any) -> str | None:
    """Why rows of the training set are no examples; None if they are."""
    if getattr(trainer.args, "packing", False):
        return "packing=True joins several examples in one row, so that a row has no id; set packing=False"
    return None


def without_logits(trainer: Any) -> str | None:
    """Why a trainer's step has no logits of single examples with a target each; None if it has."""
    kind = kind_of(trainer)
    if kind is None:
        return None
    if kind in GENERATING:
        return "it trains on completions that it generates, which have no right answer"
    if kind in PAIRS:
        return "its loss is of pairs, not of classes"
    if kind == "SFTTrainer":
        return "its loss is computed without logits (by the fused head); transformers.Trainer computes them"
    return "its loss does not give the logits that it is computed from"
