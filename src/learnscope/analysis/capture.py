"""The batch of a step: handed over, or seen in the model's own forward."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from learnscope.core.subject import Subject
from learnscope.task import HuggingFaceTask, Task, task_for, unwrap
from learnscope.task.batches import first_tensor
from learnscope.task.huggingface import MODEL_INPUTS
from learnscope.task.shapes import logits_in

NO_BATCH = "a batch, and none was given nor seen in a forward: pass inputs= to on_optimizer_step"

Call = tuple[tuple[Any, ...], dict[str, Any]]
"""The positional and the keyword arguments of a forward."""


class CallTask(Task):
    """Repeats a call of the model with the arguments it had: `{"args": (...), "kwargs": {...}}`."""

    def logits(self, model: nn.Module, batch: Any) -> Tensor:
        return logits_in(model(*batch["args"], **batch["kwargs"]))


class Batches:
    """Finds the batch of a measurement and the task that reads it.

    If none is handed over, the arguments of the model's last forward with gradients are the batch, on the steps for
    which they are wanted. Generation and evaluation run without gradients and are not taken for training.
    """

    def __init__(self, task: Task | None, wanted: Callable[[], bool]) -> None:
        self.problem = NO_BATCH
        """Why the last `find` found none."""
        self._task, self._wanted = task, wanted
        self._call: Call | None = None
        self._paused = False
        self._remove: weakref.finalize[..., Batches] | None = None

    def watch_forward(self, model: nn.Module) -> None:
        """Remember forwards from now on; calling it again does nothing."""
        if self._remove is None:
            handle = model.register_forward_pre_hook(_BeforeForward(self), with_kwargs=True)
            self._remove = weakref.finalize(self, handle.remove)

    def close(self) -> None:
        if self._remove is not None:
            self._remove()

    def see(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # what is compiled must not ask for the step, or it would be compiled anew when the answer changes
        if torch.is_grad_enabled() and (torch.compiler.is_compiling() or (not self._paused and self._wanted())):
            self._call = args, kwargs

    @contextmanager
    def paused(self) -> Iterator[None]:
        """While forwards are our own."""
        self._paused = True
        try:
            yield
        finally:
            self._paused = False

    def take(self) -> Call | None:
        """The arguments of the last forward; None if there was no forward since they were last taken."""
        call, self._call = self._call, None
        return call

    def find(self, subject: Subject, inputs: Any, attention_mask: Any) -> Any:
        """The batch, also as the subject's holdout; None if there is none, with the reason in `problem`."""
        subject.holdout, self.problem = None, NO_BATCH
        try:
            found = self._read(subject.model, inputs, attention_mask)
        except TypeError as error:
            self.problem = f"a batch that can be read: {error}\nPass it as ModelAnalysisManager(…, task=MyTask())."
            return inputs
        if found is None:
            return None
        batch, subject.task = found
        subject.holdout = [batch]
        return batch if inputs is None else inputs

    def _read(self, model: nn.Module, inputs: Any, attention_mask: Any) -> tuple[Any, Task] | None:
        call = self.take()
        if inputs is None:
            return None if call is None else _as_batch(model, *call)
        batch = with_mask(inputs, attention_mask)
        if self._task is not None:
            return batch, self._task
        if call is not None and not isinstance(inputs, Tensor) and len(call[0]) == 1 and call[0][0] is inputs:
            # the model was called with the batch itself as its one argument, whatever the batch is made of
            return {"args": call[0], "kwargs": call[1]}, CallTask()
        return batch, task_for(batch, model)


class _BeforeForward:
    """The hook on the model. In a copied or pickled model it does nothing, and needs no learnscope to be loaded."""

    def __init__(self, batches: Batches) -> None:
        self._batches = weakref.ref(batches)

    def __call__(self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        batches = self._batches()
        if batches is not None:
            batches.see(args, kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (nullcontext(), "__exit__")


def with_mask(inputs: Any, attention_mask: Any) -> Any:
    """Token ids and their mask as the dictionary that a language model takes."""
    if isinstance(inputs, Tensor) and attention_mask is not None:
        return {"input_ids": inputs, "attention_mask": attention_mask}
    return inputs


def _as_batch(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Task] | None:
    """A call's arguments as a batch. Caches, flags and counts are left out of a Hugging Face model's."""
    try:
        named = dict(inspect.signature(unwrap(model).forward).bind_partial(*args, **kwargs).arguments)
    except TypeError:  # a wrapper whose arguments are not those of the model inside
        named = dict(kwargs)
    named |= named.pop("kwargs", {}) if isinstance(named.get("kwargs"), dict) else {}
    if any(isinstance(named.get(key), Tensor) for key in MODEL_INPUTS):
        rows = {key: value for key, value in named.items() if isinstance(value, Tensor) and value.ndim}
        return rows, HuggingFaceTask()
    batch = {"args": args, "kwargs": kwargs}
    return None if first_tensor(batch) is None else (batch, CallTask())
