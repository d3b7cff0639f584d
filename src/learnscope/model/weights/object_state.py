"""Save and restore everything that an unknown method could change about a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
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
def kept_state(model: nn.Module, *others: Any) -> Iterator[None]:
    """Restore attributes, submodules, parameters, buffers and other tensors of `model` and of `others` afterwards.

    Each object and container keeps its identity and gets its contents back; tensors get back their memory and its
    contents, bit for bit. Objects in the attributes of a module are followed three steps. Memory: a copy of every
    tensor.
    """
    keeper = _Keeper()
    for owner in (*model.modules(), *others):
        keeper.keep(owner, _DEPTH)
    counted = tuple(tensor for tensor, _, _ in keeper.tensors if not tensor.is_inference())
    with ExitStack() as stack:
        # the contents are restored bit for bit, so what autograd has saved for a backward stays valid
        stack.enter_context(_unsafe_preserve_version_counter(counted))
        stack.callback(keeper.restore)
        yield


class _Keeper:
    def __init__(self) -> None:
        self.seen: dict[int, Any] = {}  # holds the objects, so that no id is reused
        self.tensors: list[tuple[Tensor, Tensor, Tensor]] = []
        self.undo: list[Callable[[], None]] = []

    def keep(self, value: Any, depth: int) -> None:
        if isinstance(value, _NOT_FOLLOWED) or id(value) in self.seen or depth < 0:
            return
        self.seen[id(value)] = value
        if isinstance(value, Tensor):
            memory = value.detach()
            self.tensors.append((value, memory, memory.clone()))
        elif isinstance(value, dict | list | set):
            self._keep_container(value, depth)
        elif isinstance(value, tuple | frozenset):
            for item in value:
                self.keep(item, depth)
        else:
            attributes = getattr(value, "__dict__", None)
            if isinstance(attributes, dict):
                self._keep_container(attributes, depth)
            self._keep_slots(value, depth)

    def _keep_container(self, container: Any, depth: int) -> None:
        kept = container.copy()
        self.undo.append(lambda: _put_back(container, kept))
        for item in list(kept.values()) if isinstance(kept, dict) else list(kept):
            # the dictionaries of a module do not count as a step
            self.keep(item, depth if isinstance(item, dict | nn.Module) else depth - 1)

    def _keep_slots(self, value: Any, depth: int) -> None:
        named = [name for kind in type(value).__mro__ for name in _slots(kind)]
        slots = {name: getattr(value, name) for name in named if hasattr(value, name)}
        if slots:
            self.undo.append(lambda: _set_all(value, slots))
            for item in slots.values():
                self.keep(item, depth - 1)

    @torch.no_grad()
    def restore(self) -> None:
        for undo in self.undo:
            undo()
        for tensor, memory, contents in self.tensors:
            memory.copy_(contents)
            if tensor.data_ptr() != memory.data_ptr() or tensor.shape != memory.shape or tensor.dtype != memory.dtype:
                tensor.data = memory  # `parameter.data = other` had given it other memory


def _put_back(container: Any, kept: Any) -> None:
    """Restore a container's contents and their order in the same object, which is not touched if nothing changed."""
    if isinstance(container, list):
        container[:] = kept
        return
    if isinstance(container, dict):
        same = list(container) == list(kept) and all(container[key] is value for key, value in kept.items())
    else:
        same = container == kept
    if not same:
        container.clear()
        container.update(kept)


def _set_all(owner: Any, slots: dict[str, Any]) -> None:
    for name, value in slots.items():
        object.__setattr__(owner, name, value)  # also if it is frozen


def _slots(kind: type) -> tuple[str, ...]:
    declared = kind.__dict__.get("__slots__", ())
    names = (declared,) if isinstance(declared, str) else tuple(declared)
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))
