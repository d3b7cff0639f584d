"""From what the user passed to the subject of a session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from learnscope.core.subject import Subject
from learnscope.model.data import fixed_batches
from learnscope.task import Task, task_for

EXAMPLES = 1024
"""Examples of each data set that are kept for probes, unless a list of batches says exactly which."""


def make_subject(
    model: nn.Module,
    optimizers: Sequence[Optimizer] = (),
    *,
    task: Task | None = None,
    holdout: Any = None,
    train: Any = None,
    test: Any = None,
    groups: Mapping[str, str | Sequence[str]] | None = None,
) -> Subject:
    """The model with fixed subsets of its data, and the task that reads them."""
    data = {
        name: None if given is None else fixed_batches(given, task, examples=_limit(given))
        for name, given in (("holdout", holdout), ("train_data", train), ("test_data", test))
    }
    first = next((batches[0] for batches in data.values() if batches), None)
    if task is None and first is not None:
        task = task_for(first, model)
    subject = Subject(model, optimizers, task, data["holdout"], data["train_data"], data["test_data"])
    subject.name_groups(groups or {})
    return subject


def provided(subject: Subject) -> set[str]:
    """The needs that the subject itself meets."""
    met = {name for name in ("holdout", "train_data", "test_data") if getattr(subject, name) is not None}
    if subject.holdout is not None:
        met.add("features")
    if subject.optimizers:
        met.add("optimizer")
    return met


def _limit(given: Any) -> int | None:
    return None if isinstance(given, list | tuple | dict) else EXAMPLES
