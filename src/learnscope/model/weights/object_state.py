"""Save and restore everything that an unknown method could change about a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

_PLAIN = (int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.device, torch.Size)
_NOT_FOLLOWED = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType, *_PLAIN)
_DEPTH = 3
"""How many steps the attributes of a module are followed."""


@contextmanager
def preserved_state(model: nn.Module, *others: Any) -> Iterator[None]:
    """Restore attributes, submodules, parameters, buffers and other tensors of `model` and of `others` afterwards.

    Each object and container keeps its identity and gets its contents back; tensors get back their memory and its
    contents, bit for bit. Objects in attributes are followed three steps. Takes a copy of every tensor.
    """
    saved = _SavedState()
    for owner in (*model.modules(), *others):
        saved.save(owner, _DEPTH)
    counted = tuple(tensor for tensor, _, _ in saved.tensors if not tensor.is_inference())
    # the contents are restored bit for bit, so what autograd has saved for a backward stays valid
    with _unsafe_preserve_version_counter(counted):
        try:
            yield
        finally:
            saved.restore()


class _SavedState:
    def __init__(self) -> None:
        self.visited: dict[int, Any] = {}  # holds the objects, so that no id is reused
        self.tensors: list[tuple[Tensor, Tensor, Tensor]] = []
        self.undo: list[Callable[[], None]] = []

    def save(self, value: Any, depth: int) -> None:
        if isinstance(value, _NOT_FOLLOWED) or id(value) in self.visited or depth < 0:
            return
        self.visited[id(value)] = value
        if isinstance(value, Tensor):
            memory = value.detach()
            self.tensors.append((value, memory, memory.clone()))
        elif isinstance(value, dict | list | set):
            self._save_container(value, depth)
        elif isinstance(value, tuple | frozenset):
            for item in value:
                self.save(item, depth)
        else:
            attributes = getattr(value, "__dict__", None)
            if isinstance(attributes, dict):
                self._save_container(attributes, depth)
            declared = [kind.__dict__.get("__slots__", ()) for kind in type(value).__mro__]
            names = [name for slots in declared for name in ([slots] if isinstance(slots, str) else slots)]
            for name in names:
                if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                    # also if it is frozen
                    self.undo.append(partial(object.__setattr__, value, name, getattr(value, name)))
                    self.save(getattr(value, name), depth - 1)

    def _save_container(self, container: Any, depth: int) -> None:
        contents = container.copy()
        self.undo.append(lambda: _put_back(container, contents))
        for item in list(contents.values() if isinstance(contents, dict) else contents):
            # the dictionaries of a module do not count as a step
            self.save(item, depth if isinstance(item, dict | nn.Module) else depth - 1)

    @torch.no_grad()
    def restore(self) -> None:
        for undo in self.undo:
            undo()
        for tensor, memory, contents in self.tensors:
            memory.copy_(contents)
            if tensor.data_ptr() != memory.data_ptr() or tensor.shape != memory.shape or tensor.dtype != memory.dtype:
                tensor.data = memory  # `parameter.data = other` had given it other memory


def _put_back(container: Any, contents: Any) -> None:
    """Restore a container's contents and their order in the same object, which is not touched if nothing changed."""
    if isinstance(container, list):
        container[:] = contents
        return
    if isinstance(container, dict):
        same = list(container) == list(contents) and all(container[key] is value for key, value in contents.items())
    else:
        same = container == contents
    if not same:
        container.clear()
        container.update(contents)
