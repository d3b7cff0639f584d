"""What a Lightning trainer offers to a session: the part of its module to watch, and data to evaluate it on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, Subset

from learnscope.core.probe import Probe
from learnscope.integrations.sampling import spread
from learnscope.model.data import fixed_batches
from learnscope.model.outputs.trial import try_task
from learnscope.reading.course.trainers import TRAINING_SET, VALIDATION_SET
from learnscope.session.subject import EXAMPLES
from learnscope.task import Task, task_for
from learnscope.task.losses import LossCallable

TRANSFERS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
"""Hooks of Lightning that may make another batch of what the data set gives."""
_OF_HOLDOUT = frozenset({"holdout", "features"})


@dataclass(frozen=True)
class Offered:
    """Batches to evaluate on, and where they are from; without batches, why there are none."""

    batches: list[Any] | None
    about: str
    loaders: int = 1
    """How many the trainer has; the batches are of the first."""


def watched_part(module: nn.Module) -> nn.Module:
    """The module itself, or the one child that holds all parameters, if only that child can be called.

    Many modules have a `training_step` that calls `self.net(x)` and no `forward` of their own.
    """
    base: Any = next(kind for kind in type(module).__mro__ if kind.__name__ == "LightningModule")
    if type(module).forward is not base.forward:
        return module
    parts = [child for child in module.children() if next(child.parameters(), None) is not None]
    alone = len(parts) == 1 and next(module.parameters(recurse=False), None) is None
    return parts[0] if alone else module


def wants_holdout(probes: Sequence[Probe] | None) -> bool:
    """Whether any of these probes evaluates the model; the default ones do where there is data."""
    return probes is None or any((probe.needs | probe.uses) & _OF_HOLDOUT for probe in probes)


def examples_of(outputs: Any, batch: Any, model: nn.Module, task: Task | None) -> tuple[Any, Tensor, Tensor] | str:
    """Ids, logits and targets of a batch, for probes that follow examples; or what is missing."""
    logits = outputs.get("logits") if isinstance(outputs, dict) else None
    if not isinstance(logits, Tensor):
        return "the logits of each batch: return {'loss': loss, 'logits': logits.detach()} from training_step"
    reading = task or task_for(batch, model)
    ids = reading.ids(batch)
    if ids is None:
        return "ids of the examples in each batch: wrap the data set, ls.IndexedDataset(data)"
    targets = reading.aligned_targets(model, batch, logits)
    return "targets in each batch" if targets is None else (ids, logits, targets)


def offered_holdout(
    trainer: Any, model: nn.Module, task: Task | None, loss: LossCallable | None
) -> Offered:  # fmt: skip
    """The first validation loader's examples; without one, a fixed sample of the training set."""
    changed = _changed_transfers(trainer)
    if changed:
        return Offered(None, f"{changed} makes other batches of what the data set gives: pass holdout=, a list of them")
    validation, training = _loaders(trainer.val_dataloaders), _loaders(trainer.train_dataloader)
    loaders = validation or training
    if not loaders:
        return Offered(None, "the trainer has no loader whose data set could be read")
    what = VALIDATION_SET if validation else TRAINING_SET
    try:
        data = loaders[0] if validation else _spread(loaders[0])
        batches = fixed_batches(data, task, model=model, examples=EXAMPLES)
        try_task(task, model, batches[0], loss)
    except Exception as error:  # noqa: BLE001  (the user's data set and model: nobody asked for this data)
        return Offered(None, f"{what}: {error}")
    return Offered(batches, what, len(loaders))


def _spread(loader: Any) -> Any:
    """Examples from all over a training set, which may be sorted, as the loader would give them."""
    data = loader.dataset
    if isinstance(data, IterableDataset) or not hasattr(data, "__len__"):
        return loader
    places = spread(len(data), EXAMPLES)
    return DataLoader(Subset(data, places), batch_size=loader.batch_size or 1, collate_fn=loader.collate_fn)


def _loaders(given: Any) -> list[Any]:
    """The loaders in what a trainer was given: one, a list, a dictionary, or Lightning's own combination of them."""
    if given is None:
        return []
    if isinstance(given, dict):
        return [loader for each in given.values() for loader in _loaders(each)]
    if isinstance(given, list | tuple):
        return [loader for each in given for loader in _loaders(each)]
    if hasattr(given, "flattened"):
        return list(given.flattened)
    return [given]


def _changed_transfers(trainer: Any) -> str:
    """The hook that changes batches on their way to the model, if the module or the data module has one."""
    for owner in (trainer.lightning_module, trainer.datamodule):
        own = [kind for kind in type(owner).__mro__ if kind.__module__.split(".")[0] not in _PACKAGES]
        for hook in TRANSFERS:
            if any(hook in vars(kind) for kind in own):
                return f"{type(owner).__name__}.{hook}"
    return ""


_PACKAGES = ("lightning", "pytorch_lightning", "torch", "builtins")
