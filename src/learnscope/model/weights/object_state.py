"""Everything that a method of unknown workings could change about a model, kept and put back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

_PLAIN = (int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.device, torch.Size)
_NOT_LOOKED_INTO = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType, *_PLAIN)
_DEPTH = 3
"""How far from a module what hangs on its attributes is followed."""


@contextmanager
def kept_state(model: nn.Module, *others: Any) -> Iterator[None]:
    """Attributes, submodules, parameters, buffers and other tensors of `model` and of `others` are back afterwards.

    Each object and each container keeps its identity and gets back what it held; tensors get back their memory and its
    contents, bit for bit. Settings objects that hang on a module are followed three steps. Memory: a copy of every
    tensor.
    """
    keeper = _Keeper()
    for one in (*model.modules(), *others):
        keeper.look(one, _DEPTH)
    counted = tuple(tensor for tensor, _, _ in keeper.tensors if not tensor.is_inference())
    with ExitStack() as stack:
        # the contents are put back bit for bit, so nothing that was recorded for a backward is out of date
        stack.enter_context(_unsafe_preserve_version_counter(counted))
        stack.callback(keeper.restore)
        yield


class _Keeper:
    def __init__(self) -> None:
        self.seen: dict[int, Any] = {}  # holds what it names, so that no identity is given to something else
        self.tensors: list[tuple[Tensor, Tensor, Tensor]] = []
        self.undo: list[Callable[[], None]] = []

    def look(self, thing: Any, depth: int) -> None:
        if isinstance(thing, _NOT_LOOKED_INTO) or id(thing) in self.seen or depth < 0:
            return
        self.seen[id(thing)] = thing
        if isinstance(thing, Tensor):
            memory = thing.detach()
            self.tensors.append((thing, memory, memory.clone()))
        elif isinstance(thing, dict | list | set):
            self._keep(thing, depth)
        elif isinstance(thing, tuple | frozenset):
            for one in thing:
                self.look(one, depth)
        else:
            attributes = getattr(thing, "__dict__", None)
            if isinstance(attributes, dict):
                self._keep(attributes, depth)
            self._keep_slots(thing, depth)

    def _keep(self, container: Any, depth: int) -> None:
        kept = container.copy()
        self.undo.append(lambda: _put_back(container, kept))
        for one in list(kept.values()) if isinstance(kept, dict) else list(kept):
            # a module's own dictionaries are no step away from it
            self.look(one, depth if isinstance(one, dict | nn.Module) else depth - 1)

    def _keep_slots(self, thing: Any, depth: int) -> None:
        named = [name for kind in type(thing).__mro__ for name in _slots(kind)]
        values = {name: getattr(thing, name) for name in named if hasattr(thing, name)}
        if values:
            self.undo.append(lambda: _set_all(thing, values))
            for value in values.values():
                self.look(value, depth - 1)

    @torch.no_grad()
    def restore(self) -> None:
        for undo in self.undo:
            undo()
        for tensor, memory, contents in self.tensors:
            memory.copy_(contents)
            if tensor.data_ptr() != memory.data_ptr() or tensor.shape != memory.shape or tensor.dtype != memory.dtype:
                tensor.data = memory  # `parameter.data = other` had given it other memory


def _put_back(container: Any, kept: Any) -> None:
    """A container's contents in their order; it stays the same object, and is not touched where nothing changed."""
    if isinstance(container, list):
        container[:] = kept
    elif isinstance(container, dict):
        same = list(container) == list(kept) and all(container[key] is value for key, value in kept.items())
        if not same:
            container.clear()
            container.update(kept)
    elif container != kept:
        container.clear()
        container.update(kept)


def _set_all(thing: Any, values: dict[str, Any]) -> None:
    for name, value in values.items():
        object.__setattr__(thing, name, value)  # frozen or not


def _slots(kind: type) -> tuple[str, ...]:
    given = kind.__dict__.get("__slots__", ())
    names = (given,) if isinstance(given, str) else tuple(given)
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))
