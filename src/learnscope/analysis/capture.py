"""The last training batch, where the caller does not hand it over."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from learnscope.task import HuggingFaceTask, Task, unwrap
from learnscope.task.batches import first_tensor
from learnscope.task.huggingface import MODEL_INPUTS
from learnscope.task.shapes import logits_in

Call = tuple[tuple[Any, ...], dict[str, Any]]
"""The positional and the keyword arguments of a forward."""


class CallTask(Task):
    """Repeats a call of the model with the arguments it had: `{"args": (...), "kwargs": {...}}`."""

    def logits(self, model: nn.Module, batch: Any) -> Tensor:
        return logits_in(model(*batch["args"], **batch["kwargs"]))


class BatchCapture:
    """Remembers the arguments of the model's last forward with gradients, on the steps for which they are wanted.

    Generation and evaluation run without gradients and are not taken for training.
    """

    def __init__(self, wanted: Callable[[], bool]) -> None:
        self._wanted = wanted
        self._call: Call | None = None
        self._paused = False
        self._remove: weakref.finalize[..., BatchCapture] | None = None

    def look_out(self, model: nn.Module) -> None:
        """From now on; again it does nothing."""
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
        """The arguments; None if no forward was seen since they were last taken."""
        call, self._call = self._call, None
        return call


class _BeforeForward:
    """The hook on the model. A copy of the model, or a pickled one, takes a hook along that does nothing.

    That is one of the standard library's, so that the model can be loaded where there is no learnscope.
    """

    def __init__(self, capture: BatchCapture) -> None:
        self._capture = weakref.ref(capture)

    def __call__(self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        capture = self._capture()
        if capture is not None:
            capture.see(args, kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (nullcontext(), "__exit__")


def takes_it_whole(call: Call | None, inputs: Any) -> bool:
    """Whether the model was called with the batch itself as its one argument, whatever the batch is made of."""
    return call is not None and not isinstance(inputs, Tensor) and len(call[0]) == 1 and call[0][0] is inputs


def as_batch(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Task] | None:
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
