"""Whether a model fits what its tracker was told about it, or read from a file."""

from __future__ import annotations

import re
from pathlib import Path

from torch import nn

from learnscope.model.adapters.inventory import Adapters, find_adapters, method_of
from learnscope.model.adapters.parameters import OUTSIDE_ADAPTERS
from learnscope.model.adapters.start import AdapterError
from learnscope.names import resolve
from learnscope.options import known_name
from learnscope.trackers.history import History
from learnscope.trackers.tracker_file import TrackerFileError

METHODS = {
    **dict.fromkeys(("lora", "dora", "rslora", "lora+", "loraplus", "lorafa", "pissa", "milora", "milora+"), "lora"),
    **dict.fromkeys(("layernorm", "layernormtuning", "lntuning"), "layernorm"),
    "adalora": "adalora", "vera": "vera", "ia3": "ia3",
}  # fmt: skip
"""Types of adapters as users and PEFT name them, in small letters, and PEFT's method for each."""


def adapters_in(model: nn.Module) -> Adapters:
    """The adapters of a model; it may have none."""
    try:
        return find_adapters(model)
    except AdapterError:
        return Adapters()


def check_family(model: nn.Module, peft_type: str | None) -> None:
    """Refuse a type of adapters that the model does not have; they are told by what they are, not by this name."""
    if peft_type is None:
        return
    name = re.sub(r"[^a-z0-9+]", "", str(peft_type).lower())
    known_name("peft_type", name, METHODS)
    wanted = METHODS[name]
    found = {method_of(adapter.parts.family) for adapter in adapters_in(model).items}
    if found and wanted not in found:
        raise ValueError(
            f"peft_type={peft_type!r}, but the adapters of {type(model).__name__} are {', '.join(sorted(found))}: "
            "leave it out, they are recognised by themselves"
        )


def check_modules(path: Path, history: History, model: nn.Module) -> None:
    """Refuse a model that is not the one of the file."""
    adapters = adapters_in(model)
    methods = {(adapter.name, adapter.scope): method_of(adapter.parts.family) for adapter in adapters.items}
    unknown = {scope for scopes in adapters.unknown.values() for scope in scopes}  # their gradients are tracked as well
    tensors = [resolve(name).clean for name, _ in model.named_parameters()]
    own = {*tensors, *(name.rpartition(".")[0] for name in tensors)}
    last = max(history.measured, default=-1)
    for adapter in history.families:
        for module, family in history.present(last, adapter).items():
            same = methods.get((adapter, module)) == method_of(family) or module in unknown
            if not (module in own if family == OUTSIDE_ADAPTERS else same):
                owner = "" if family == OUTSIDE_ADAPTERS else f" with an adapter {adapter!r} ({family})"
                raise TrackerFileError(
                    f"{path} is of a model that has {module}{owner}, which this {type(model).__name__} lacks: load it "
                    "with the model it was saved with, or without one for analysis"
                )
