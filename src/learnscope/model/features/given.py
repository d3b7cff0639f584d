"""What a model is given: its first input, by the loop's own call, or for a batch as its task would call it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from learnscope.model.guard import guard
from learnscope.task import Task, unwrap

FIRST = ("decoder_input_ids", "input_ids", "inputs_embeds", "pixel_values", "input_values", "input_features")
"""Names that go before others, where inputs have names."""
OTHERS = ("mask", "label", "target", "position", "type_ids", "index")
"""Parts of the names of what is no input, unless there is nothing else."""


class _Called(Exception):
    """Ends a forward before it begins: that the model was called is all that was asked."""


def given_inputs(model: nn.Module, task: Task, batches: Iterable[Any]) -> Iterator[tuple[str, Tensor] | None]:
    """The first input of the model for each batch, as the task calls it. The model itself is not run."""
    found: list[tuple[str, Tensor] | None] = []

    def stop(_module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        found.append(first_input(args, kwargs))
        raise _Called

    with guard(model), torch.no_grad():
        handle = model.register_forward_pre_hook(stop, with_kwargs=True, prepend=True)
        try:
            for batch in batches:
                try:
                    task.logits(model, batch)
                except _Called:
                    yield found.pop()
                else:
                    return  # it calls a part of the model
        finally:
            handle.remove()


def padding_token(model: nn.Module) -> int | None:
    """The model's own padding token: of its configuration, or of its only embedding that has one."""
    told = getattr(getattr(unwrap(model), "config", None), "pad_token_id", None)
    if isinstance(told, int):
        return told
    embeddings = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    known = {module.padding_idx for module in embeddings if module.padding_idx is not None}
    return known.pop() if len(known) == 1 else None


def first_input(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[str, Tensor] | None:
    """The first tensor with examples in it that a forward is given, with its name or place.

    >>> first_input((torch.zeros(2, 3),), {"mask": torch.ones(2)})[0]
    '0'
    >>> first_input((), {"attention_mask": torch.ones(2, 3), "input_ids": torch.zeros(2, 3)})[0]
    'input_ids'
    """
    found = dict(_tensors(args, "")) | dict(_tensors(kwargs, ""))
    known = [name for wanted in FIRST for name in found if name.rpartition(".")[2] == wanted]
    plain = _inputs(found)
    name = next(iter([*known, *plain, *found]), None)
    return None if name is None else (name, found[name])


def is_only_input(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether a forward is given one tensor that is no mask, label or the like: what it says is made of that alone.

    >>> is_only_input((torch.zeros(2, 3),), {"mask": torch.ones(2)}), is_only_input((torch.zeros(2), torch.ones(2)), {})
    (True, False)
    """
    return len(_inputs(dict(_tensors(args, "")) | dict(_tensors(kwargs, "")))) == 1


def _inputs(found: Mapping[str, Tensor]) -> list[str]:
    return [name for name in found if not any(part in name.rpartition(".")[2] for part in OTHERS)]


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


def is_compiled(model: nn.Module) -> bool:
    """Whether hooks inside of the model do not fire."""
    return hasattr(model, "_orig_mod") or getattr(unwrap(model), "_compiled_call_impl", None) is not None
