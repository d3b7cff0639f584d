"""Whether a model still has the modules and parameters that it had, without walking its tree again."""

from __future__ import annotations

from itertools import chain
from operator import is_
from typing import Any

import torch
from torch import nn


def can_be_compared(model: nn.Module) -> bool:
    """Whether its parameters are those of its modules' dictionaries: not if it lists them itself, or is scripted."""
    if type(model).named_parameters is not nn.Module.named_parameters:
        return False
    if type(model)._named_members is not nn.Module._named_members:
        return False
    return all(
        type(module).named_modules is nn.Module.named_modules and not isinstance(module, torch.jit.ScriptModule)
        for module in model.modules()
    )


class Structure:
    """The modules and parameters of a model, by name and identity, as they were when this was made.

    To walk a model's tree takes longer than to measure a few adapters. What hangs where stands in two dictionaries of
    every module; they are compared as they are. A parameter whose values, gradient or `requires_grad` changed is the
    same parameter.
    """

    def __init__(self, model: nn.Module) -> None:
        tables: list[dict[str, Any]] = [
            table for module in model.modules() for table in (module._modules, module._parameters)
        ]
        # most are empty, and whether one of them still is takes less time than its length
        self._empty, self._filled = [table for table in tables if not table], list(filter(None, tables))
        self._sizes = list(map(len, self._filled))
        self._names = list(chain.from_iterable(self._filled))
        self._objects = list(chain.from_iterable(map(dict.values, self._filled)))

    def holds(self) -> bool:
        """Whether every module has the same children and parameters, by the same names, as then."""
        return (
            not any(self._empty)
            and list(map(len, self._filled)) == self._sizes
            and all(map(is_, chain.from_iterable(map(dict.values, self._filled)), self._objects))
            and list(chain.from_iterable(self._filled)) == self._names
        )
