"""The model's training forwards: what it is given, at the steps that are looked at.

The hooks are on the model as the session was given it, and only for these steps. A model that was compiled after the
session had opened calls no hook that is not part of its graph; while it is being compiled, the hooks do nothing.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from learnscope.model.guard import is_guarded

FIRST = ("decoder_input_ids", "input_ids", "inputs_embeds", "pixel_values", "input_values", "input_features")
"""Names that go before others, where inputs have names."""
OTHERS = ("mask", "label", "target", "position", "type_ids", "index", "ids_keep")
"""Parts of the names of what is no input, unless there is nothing else."""

Listener = Callable[[nn.Module, str, Tensor], None]


class Forwards:
    """Calls its listener with the first input of each training forward, as long as it is followed."""

    def __init__(self, model: nn.Module, listener: Listener) -> None:
        self._model, self._listener = model, listener
        self._handle: Any = None

    def follow(self) -> None:
        if self._handle is None:
            hook = _BeforeForward(self._model, self._listener)
            self._handle = self._model.register_forward_pre_hook(hook, with_kwargs=True)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.remove()
            self._handle = None


class _BeforeForward:
    """The hook on the model. In a copied or pickled model it does nothing, and needs no learnscope to be loaded."""

    def __init__(self, model: nn.Module, listener: Listener) -> None:
        self._model, self._listener = weakref.ref(model), listener

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return
        # inside a backward, a checkpoint runs it again
        if not module.training or is_guarded() or torch._C._current_graph_task_id() != -1:
            return
        found = first_input(args, kwargs)
        if found is not None and module is self._model():
            self._listener(module, *found)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (nullcontext(), "__exit__")


def first_input(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[str, Tensor] | None:
    """The first tensor with examples in it that a forward is given, with its name or place.

    >>> first_input((torch.zeros(2, 3),), {"mask": torch.ones(2)})[0]
    '0'
    >>> first_input((), {"attention_mask": torch.ones(2, 3), "input_ids": torch.zeros(2, 3)})[0]
    'input_ids'
    """
    found = dict(_tensors(args, "")) | dict(_tensors(kwargs, ""))
    known = [name for wanted in FIRST for name in found if name.rpartition(".")[2] == wanted]
    plain = [name for name in found if not any(part in name.rpartition(".")[2] for part in OTHERS)]
    name = next(iter([*known, *plain, *found]), None)
    return None if name is None else (name, found[name])


def _tensors(given: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    """The plain tensors with at least one dimension in nested containers, each with its path."""
    if type(given) is Tensor:
        if given.ndim and not torch._C._functorch.is_functorch_wrapped_tensor(given):
            yield name, given
    elif isinstance(given, Mapping):
        for key, value in given.items():
            yield from _tensors(value, f"{name}.{key}" if name else str(key))
    elif isinstance(given, tuple | list):
        for place, value in enumerate(given):
            yield from _tensors(value, f"{name}.{place}" if name else str(place))
