"""The structure of batches: containers, examples, ids."""

import copy
import dataclasses
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor

ID_KEYS = ("index", "id", "idx", "ids", "example_id", "example_ids")
GROUP_KEYS = ("group", "groups")


def describe(batch: Any) -> str:
    """The structure of a batch in one line: types, keys, shapes, dtypes."""
    if isinstance(batch, Tensor):
        return f"Tensor{list(batch.shape)} {str(batch.dtype).removeprefix('torch.')}"
    name = type(batch).__name__
    if isinstance(batch, Mapping):
        return f"{name} {{{', '.join(f'{key!r}: {describe(value)}' for key, value in batch.items())}}}"
    if isinstance(batch, (tuple, list)):
        items = ", ".join(describe(value) for value in batch[:4])
        return f"{name} of {len(batch)} ({items}{', …' if len(batch) > 4 else ''})"
    return name


def first_of(batch: Any, keys: Sequence[str]) -> Any:
    if not isinstance(batch, Mapping):
        return None
    return next((batch[key] for key in keys if key in batch and batch[key] is not None), None)


def example_ids(value: Any) -> Tensor | None:
    if value is None:
        return None
    if not isinstance(value, Tensor) and not all(isinstance(item, int) for item in value):
        raise TypeError("example ids must be integers; number the examples in the data set")
    ids = torch.as_tensor(value)
    if ids.is_floating_point():
        raise TypeError(f"example ids must be integers, not {ids.dtype}")
    return ids if ids.ndim == 1 else None  # token ids under the same key are an input, not example ids


def first_tensor(batch: Any) -> Tensor | None:
    if isinstance(batch, Tensor):
        return batch if batch.ndim else None
    tensors = (first_tensor(item) for item in _children(batch) or ())
    return next((tensor for tensor in tensors if tensor is not None), None)


def map_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    """The same containers with every leaf changed; the original stays as it is."""
    if isinstance(value, Tensor) or _children(value) is None:
        return change(value)
    if isinstance(value, Mapping):
        changed = {key: map_leaves(item, change) for key, item in value.items()}
        if not isinstance(value, MutableMapping):
            return changed
        rebuilt = copy.copy(value)  # keeps the type: BatchEncoding, OrderedDict, defaultdict
        rebuilt.update(changed)
        return rebuilt
    if isinstance(value, (tuple, list)):
        items = [map_leaves(item, change) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    fields = {f.name: map_leaves(getattr(value, f.name), change) for f in dataclasses.fields(value) if f.init}
    return dataclasses.replace(value, **fields)


def is_tuple_batch(batch: Any, inputs: int = 1) -> bool:
    """`(x, y, ids, groups)` or the first one, two or three of them, aligned; with several inputs in place of x."""
    if not isinstance(batch, (tuple, list)) or not inputs <= len(batch) <= inputs + 3:
        return False
    first = first_tensor(batch[0])
    if first is None:
        return False
    after, rest = batch[1 : inputs + 2], batch[inputs + 1 :]
    if not all(isinstance(item, Tensor) and item.ndim > 0 and len(item) == len(first) for item in after):
        return False
    if inputs > 1 and rest:  # a second input must not be taken for a target, nor a target for ids
        return all(_one_each(item, len(first)) for item in rest)
    if len(rest) < 2:
        return True
    # with four entries, a mask or weights must not be taken for ids or groups
    return rest[0].dtype != torch.bool and all(_one_each(item, len(first)) for item in rest)


def _one_each(value: Any, examples: int) -> bool:
    """An integer or a name for each example."""
    if isinstance(value, Tensor):
        return value.shape == (examples,) and not value.is_floating_point()
    return isinstance(value, (tuple, list)) and len(value) == examples and all(isinstance(v, str) for v in value)


def _children(value: Any) -> list[Any] | None:
    """The items of a container; None for a leaf. A list of plain values is a leaf: one value per example."""
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, (tuple, list)):
        nested = any(isinstance(item, Tensor) or _children(item) is not None for item in value)
        return list(value) if nested else None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name) for field in dataclasses.fields(value)]
    return None
