"""What a model's forward takes, read from its signature."""

from __future__ import annotations

import inspect
from dataclasses import dataclass

from torch import nn

TARGET_NAMES = ("targets", "target", "labels", "label", "y")
"""What a forward that computes its own loss calls the targets."""


@dataclass(frozen=True, slots=True)
class Forward:
    """The parameters of a forward."""

    required: tuple[str, ...]
    """The positional ones without a default."""
    names: tuple[str, ...]
    """All that have a name."""
    open_ended: bool
    """Whether it takes any number of positional ones, so that nothing is known of them."""

    @property
    def targets(self) -> str | None:
        """The parameter for targets, which is never the first."""
        return next((name for name in self.names[1:] if name in TARGET_NAMES), None)


def forward_of(model: nn.Module) -> Forward:
    """What the forward of the model inside its wrappers takes."""
    parameters = list(inspect.signature(unwrap(model).forward).parameters.values())
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return Forward(
        tuple(p.name for p in positional if p.default is p.empty),
        tuple(p.name for p in named),
        any(p.kind is p.VAR_POSITIONAL for p in parameters),
    )


def unwrap(model: nn.Module) -> nn.Module:
    """The model inside torch.compile, DDP, FSDP, PEFT and the like, in whatever order they were applied."""
    while True:
        inner = model._modules.get("_orig_mod") or model._modules.get("_fsdp_wrapped_module")
        if inner is None and list(model._modules) == ["module"]:
            inner = model._modules["module"]
        if inner is None and callable(base := getattr(model, "get_base_model", None)):
            inner = base()
        if inner is None or inner is model:
            return model
        model = inner
