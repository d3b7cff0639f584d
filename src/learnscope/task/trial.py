"""A task is tried on one batch when a session opens, so that what it cannot read is refused at once."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from learnscope.task.base import Outputs, Task
from learnscope.task.batches import describe
from learnscope.task.builtin import OwnLossTask
from learnscope.task.calls import unwrap
from learnscope.task.forms import MY_TASK, task_for, tasks_for
from learnscope.task.given import given_loss
from learnscope.task.huggingface import HuggingFaceTask
from learnscope.task.losses import LossCallable, LossFunction, agrees, first_guess, named, usual_loss, usual_name


class _LossError(Exception):
    """The model runs and there are classes, but they have no usual loss: the outputs may be features of examples."""


@dataclass(frozen=True, slots=True)
class Trial:
    """The task that works, with the loss that it computes, and what the user should be told."""

    task: Task
    warning: str = ""


@torch.no_grad()
def tried(task: Task | None, model: nn.Module, batch: Any, loss: LossCallable | None = None) -> Trial:
    """Run `model` on `batch` by `task`, or by the first built-in one that works, and choose the loss.

    The caller has put the batch on the model's device, and guards the model.
    """
    candidates = [task] if task is not None else tasks_for(batch, model) or [task_for(batch, model)]
    failures: list[tuple[Task, Exception]] = []
    for candidate in candidates:
        chosen = candidate if loss is None else _with_given(candidate, loss)
        try:
            return _trial(chosen, model, batch)
        except Exception as error:  # noqa: BLE001  (whatever the model's own code raises; the next one may fit)
            failures.append((chosen, error))
    for chosen, failure in failures:
        if isinstance(failure, _LossError):
            return Trial(chosen, str(failure))
    raise _refusal(model, batch, *failures[0]) from failures[0][1]


def with_loss(task: Task, loss: LossFunction) -> Task:
    """The task with another loss; a copy, since the caller's own is not changed."""
    task = copy.copy(task)
    object.__setattr__(task, "chosen_loss", loss)  # a user's task may be a frozen dataclass
    return task


def _with_given(task: Task, loss: LossCallable) -> Task:
    if type(task).losses is not Task.losses:
        raise ValueError(f"loss= is given, and {type(task).__name__} has losses() of its own: keep one of the two")
    return with_loss(task, given_loss(loss))


def _trial(task: Task, model: nn.Module, batch: Any) -> Trial:
    raw, own = task._forward(model, batch)
    if isinstance(task, OwnLossTask):
        task = _like_its_own(task, model, batch, raw, own)
    elif isinstance(task, HuggingFaceTask):
        own = _returned_loss(task, model, batch)
        task = _shifted(task, model, batch, raw, own)
    # of a model that takes labels, only the task's own losses are compared with its loss
    rows, size = (1 if raw.ndim == 0 else len(raw)), task.size(batch)
    try:
        outputs = task._read(model, batch, raw, own if isinstance(task, OwnLossTask) else None)
    except (ValueError, IndexError) as error:
        targets, own_loss = task.targets(batch), task.chosen_loss is not None or type(task).losses is not Task.losses
        if own_loss or targets is None or targets.is_floating_point() or targets.shape != (rows,):
            raise
        raise _LossError(
            f"the loss of the data given could not be computed ({error}). Probes of features and labels go on; for "
            "those that need it pass loss=, or task= with losses() of your own"
        ) from error
    if rows % size:  # a task may flatten its examples' tokens
        raise ValueError(f"the model gave outputs of shape {list(raw.shape)} for {size} examples: examples come first")
    if outputs.targets is None:
        return Trial(task)
    if task.chosen_loss is None:
        task = with_loss(task, _first_choice(task, model, outputs, outputs.targets, own))
        task._read(model, batch, raw, None)
    return Trial(task, _broadcasting(raw, task.targets(batch)))


def _returned_loss(task: HuggingFaceTask, model: nn.Module, batch: Any) -> Tensor | None:
    """What the model returns as its loss, where it takes these labels."""
    if task.chosen_loss is not None or type(task).losses is not Task.losses:
        return None
    try:
        return task.own_loss(model, batch)
    except Exception:  # noqa: BLE001  (the model's own code: it is not asked for its loss elsewhere)
        return None


def _like_its_own(task: OwnLossTask, model: nn.Module, batch: Any, raw: Tensor, own: Tensor | None) -> OwnLossTask:
    """The task whose positions are aligned as the model's own loss aligns them."""
    if own is None:
        raise ValueError(f"the model takes {task.name} and returned no loss")
    if task.chosen_loss is not None:
        return task
    for shift in (False, True):
        form = OwnLossTask(task.name, shift=shift)
        try:
            losses = form._read(model, batch, raw, None).losses
        except (ValueError, IndexError, RuntimeError):  # targets without a second dimension cannot be shifted
            continue
        if losses is not None and agrees(float(losses.double().mean()), float(own)):
            return form
    return task


def _shifted(task: HuggingFaceTask, model: nn.Module, batch: Any, raw: Tensor, own: Tensor | None) -> HuggingFaceTask:
    """The task itself, or if the model's class does not tell whether its logits are shifted, as its own loss tells."""
    try:
        task._read(model, batch, raw, None)
        return task
    except TypeError:
        if own is None or task.shift is not None or task.chosen_loss is not None:
            raise
        for shift in (False, True):
            form = HuggingFaceTask(shift)
            losses = form._read(model, batch, raw, None).losses
            if losses is not None and agrees(float(losses.double().mean()), float(own)):
                return form
        raise


def _first_choice(
    task: Task, model: nn.Module, outputs: Outputs, targets: Tensor, own: Tensor | None
) -> LossFunction:  # fmt: skip
    """The loss before anything is known of the loop; `own` is what the model returned as its loss."""
    if type(task).losses is not Task.losses:
        # what `super().losses(…)` gives to a task that changes it
        return LossFunction(f"{type(task).__name__}.losses", usual_loss, "known", "the task's own losses")
    if isinstance(task, OwnLossTask):
        return named(usual_name(outputs.logits, targets), "known", "the model's own loss")
    if not isinstance(task, HuggingFaceTask):
        return first_guess(outputs.logits, targets)
    name = task.usual_name(model, outputs.logits, targets)
    assert outputs.losses is not None
    mean = float(outputs.losses.double().mean())
    if own is None:
        return named(name, "usual", f"{name}, by transformers' rules")
    if agrees(mean, float(own)):
        return named(name, "known", f"{name}, the model's own loss")
    return named(name, "guessed", f"{name} is {mean:.6g} where the model's own loss is {float(own):.6g}")


def _broadcasting(raw: Tensor, targets: Tensor | None) -> str:
    """[n] against [n, 1] is compared entry by entry here, and all with all by most losses."""
    if targets is None or not targets.is_floating_point() or raw.shape == targets.shape or len(targets) < 2:
        return ""
    given, wanted = list(raw.shape), list(targets.shape)
    cure = "outputs.squeeze(-1)" if len(given) > len(wanted) else "targets.squeeze(-1)"
    return (
        f"the model's outputs have shape {given} and the targets {wanted}: nn.MSELoss() and its like compare all with "
        f"all then. learnscope compares each output with its own target; see that your loop does too, with {cure}"
    )


def _refusal(model: nn.Module, batch: Any, task: Task, error: Exception) -> TypeError:
    model_name, task_name = type(unwrap(model)).__name__, type(task).__name__
    reason = f"{type(error).__name__}: {error}"
    if not type(task).__module__.startswith("learnscope.task."):
        return TypeError(f"task={task_name}() does not work for {model_name} on {describe(batch)}: {reason}")
    return TypeError(
        f"{model_name} could not be run on {describe(batch)} as {task_name} does it: {reason}\n"
        f"Say how to read such a batch, task=MyTask():\n\n{MY_TASK}"
    )
