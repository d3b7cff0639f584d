"""What a trainer's model is evaluated on: its own evaluation set, else a fixed sample of its training set."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, Subset

from learnscope.integrations.hf.kinds import GENERATING, PAIRS, kind_of
from learnscope.integrations.hf.preferences import PairRewards, with_reference
from learnscope.integrations.sampling import spread
from learnscope.model.guard import guard, preserve_rng
from learnscope.reading.course.trainers import EVALUATION_SET, NONE, TRAINING_SET
from learnscope.task import HuggingFaceTask, Task
from learnscope.task.losses import CROSS_ENTROPY, named
from learnscope.task.trial import with_loss

EXAMPLES = 256
"""Examples of the evaluation or training set that are kept. Language models have hundreds of positions in each."""


@dataclass(frozen=True, slots=True)
class Evaluated:
    """Batches to evaluate on, with where they come from; or why there are none."""

    source: str
    batches: list[Any] | None = None
    task: Task | None = None
    """How they become losses, if the usual way is not the trainer's."""
    examples: int = 0


def default_holdout(trainer: Any) -> Evaluated:
    """Examples of the evaluation set; without one, of the training set; always the same."""
    kind = kind_of(trainer)
    if kind in GENERATING:
        return Evaluated(
            f"{NONE}{type(trainer).__name__} trains on completions that it generates; pass holdout= with batches of "
            "tokens and labels"
        )
    name, data = _evaluation_set(trainer)
    source = f"{EVALUATION_SET}{f' {name!r}' if name else ''}"
    if data is None:
        data, source = trainer.train_dataset, TRAINING_SET
    data = _sample(data)
    if data is None or isinstance(data, IterableDataset) or not hasattr(data, "__getitem__"):
        return Evaluated(f"{NONE}the {source} is a stream or absent; pass holdout=, a list of batches")
    batches = _batches(trainer, data)
    task: Task | None = _task(trainer)
    if kind in PAIRS:
        if kind == "DPOTrainer":
            with guard(trainer.model):
                batches = [with_reference(trainer, batch) for batch in batches]
        task = PairRewards(float(trainer.beta) if kind == "DPOTrainer" else None, known=_is_plain(trainer, kind))
    return Evaluated(source, batches, task, min(len(data), EXAMPLES))


def _evaluation_set(trainer: Any) -> tuple[str, Any]:
    """Of several, the first, with its name."""
    data = trainer.eval_dataset
    if isinstance(data, Mapping):
        name = next(iter(data), "")
        return name, data.get(name)
    return "", data


def _sample(data: Any) -> Any:
    """Examples spread over a data set, which may be sorted; None of a stream."""
    try:
        size = len(data)
    except TypeError:
        return None
    places = spread(size, EXAMPLES)
    return data.select(places) if hasattr(data, "select") else Subset(data, places)


def _batches(trainer: Any, data: Any) -> list[Any]:
    """As the trainer itself would evaluate them: columns removed, and collated by its collator."""
    collate = trainer.data_collator
    columns = hasattr(data, "remove_columns")  # of the package `datasets`
    with preserve_rng():
        # a collator that masks at random masks the same whenever it is asked, also after a resume
        random.seed(0)
        np.random.seed(0)
        torch.manual_seed(0)
        if columns:
            data = trainer._remove_unused_columns(data, description="evaluation")
        else:
            collate = trainer._get_collator_with_removed_columns(collate, description="evaluation")
        size = max(1, int(trainer.args.per_device_eval_batch_size))
        loader = DataLoader(data, batch_size=min(size, EXAMPLES), collate_fn=collate)
        return list(islice(loader, -(-EXAMPLES // min(size, EXAMPLES))))


def _task(trainer: Any) -> Task | None:
    """None if the model's own loss is what the trainer trains with; else a task that says that it is another one."""
    from transformers import Trainer

    why = ""
    if trainer.label_smoother is not None:
        why = "the trainer smooths labels"
    elif trainer.compute_loss_func is not None:
        why = "the trainer has a loss function of its own (compute_loss_func)"
    elif kind_of(trainer) == "SFTTrainer" and trainer.args.loss_type != "nll":
        why = f"the trainer's loss is {trainer.args.loss_type}"
    elif kind_of(trainer) not in (None, "SFTTrainer", *PAIRS):
        why = f"{kind_of(trainer)} has a loss of its own"
    elif kind_of(trainer) is None and type(trainer).compute_loss is not Trainer.compute_loss:
        why = f"{type(trainer).__name__} computes a loss of its own"
    return with_loss(HuggingFaceTask(), named(CROSS_ENTROPY, "guessed", f"{why}: pass task=")) if why else None


def _is_plain(trainer: Any, kind: str) -> bool:
    """Whether the trainer's loss is that of the difference of rewards alone."""
    if kind == "RewardTrainer":
        return trainer.args.center_rewards_coefficient is None
    types, weights = trainer.args.loss_type, getattr(trainer.args, "loss_weights", None)
    types = [types] if isinstance(types, str) else list(types)
    smoothed = bool(getattr(trainer.args, "label_smoothing", 0.0))
    return types == ["sigmoid"] and weights in (None, [1.0]) and not smoothed
