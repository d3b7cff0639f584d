"""What a session examines: a model with its optimizers and data, and the parts it is told apart into."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import is_not
from typing import Any

import torch
from torch import nn

from learnscope.model.weights.content import data_content, model_content, task_content
from learnscope.names import group_parameters, match_parameters, optimizer_groups
from learnscope.store.memo import Memo
from learnscope.task import Task
from learnscope.tensor.segments import Segments

KEPT_SEGMENTS = 64
"""Ways of telling parameters apart that are remembered: a few for each set of them that probes look at."""


class GroupError(ValueError):
    """A group that the user named has no parameters."""


def checked_groups(groups: Any) -> dict[str, str | list[str]]:
    """A copy of the groups that the user named, so that changing theirs later changes nothing here."""
    if not isinstance(groups, Mapping):
        raise TypeError(f"groups={groups!r}: a mapping from names to patterns, such as {{'head': 'classifier'}}")
    checked: dict[str, str | list[str]] = {}
    for name, patterns in groups.items():
        if not isinstance(name, str) or not name:
            raise TypeError(f"groups: {name!r} cannot be the name of a group; a name is text")
        listed = [patterns] if isinstance(patterns, str) else patterns
        given = isinstance(listed, Sequence) and len(listed) > 0
        if not given or not all(isinstance(pattern, str) and pattern for pattern in listed):
            raise ValueError(f"groups[{name!r}]={patterns!r}: the name of a module, a pattern, or a list of them")
        checked[name] = patterns if isinstance(patterns, str) else list(patterns)
    return checked


@dataclass(slots=True)
class Subject:
    """What a session examines: the model with its optimizers and data. The same for all its moments."""

    model: nn.Module
    optimizers: Sequence[torch.optim.Optimizer] = ()
    task: Task | None = None
    holdout: Sequence[Any] | None = None
    train_data: Sequence[Any] | None = None
    test_data: Sequence[Any] | None = None
    tokenizer: Any = None
    """Of a model that reads text, where it is known: for what shows texts."""
    groups: Mapping[str, str | Sequence[str]] = field(default_factory=dict)
    """Groups of parameters that the user named, with the patterns of their names."""
    names: list[str] = field(default_factory=list)
    parameters: list[nn.Parameter] = field(default_factory=list)
    memo: Memo | None = None
    """Results of earlier examinations of the same weights on the same data."""
    show_progress: bool = False
    """Whether what takes long shows a bar."""
    backward_order: list[str] = field(default_factory=list)
    """Names in the order in which a backward reached them, if it has been seen."""
    _held: list[tuple[int, ...]] = field(default_factory=list)
    """The parameters of every optimizer's group."""
    _scopes: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    _segments: dict[tuple[str, tuple[int, ...]], Segments] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.refresh()

    def refresh(self) -> None:
        """Read the parameters anew: they may have been added or replaced since."""
        named = list(self.model.named_parameters())
        names, parameters = [name for name, _ in named], [p for _, p in named]
        if names != self.names or any(map(is_not, parameters, self.parameters)):
            self.names, self.parameters = names, parameters
            self._scopes, self._segments = {}, {}

    def name_groups(self, groups: Mapping[str, str | Sequence[str]]) -> None:
        """Tell these groups of parameters apart from now on; a pattern that matches none is refused."""
        groups = checked_groups(groups)
        for name, patterns in groups.items():
            for pattern in [patterns] if isinstance(patterns, str) else patterns:
                if not match_parameters(self.names, pattern):
                    layers = ", ".join(list(self.scopes("layer"))[:8])
                    raise GroupError(
                        f"groups[{name!r}]: {pattern!r} matches no parameter of {type(self.model).__name__}. "
                        f"Its layers: {layers}"
                    )
        if groups != dict(self.groups):
            self.groups = groups
            self._scopes.pop("named", None)
            self._segments = {key: kept for key, kept in self._segments.items() if key[0] != "named"}

    @property
    def group_kinds(self) -> list[str]:
        """The kinds of groups there are besides layers and components: the optimizers', and those with names."""
        return [*(["group"] if self.optimizers else []), *(["named"] if self.groups else [])]

    def content(self) -> dict[str, str]:
        """What results depend on: hashes of the weights, the data and how they are read."""
        given = {name: getattr(self, name) for name in ("holdout", "train_data", "test_data")}
        return {
            "model": model_content(self.model),
            "task": task_content(self.task),
            "torch": torch.__version__,
            **{name: data_content(batches) for name, batches in given.items() if batches is not None},
        }

    def by_name(self) -> dict[str, nn.Parameter]:
        return dict(zip(self.names, self.parameters, strict=True))

    def segments(self, by: str, positions: Sequence[int]) -> Segments:
        """The scopes of a kind, over numbers that stand for the parameters at `positions`."""
        scopes = {} if by in ("model", "tensor") else self.scopes(by)
        key = (by, tuple(positions))
        if key not in self._segments:
            local = {position: number for number, position in enumerate(positions)}
            if by == "model":
                members: dict[str, list[int]] = {"model": list(range(len(positions)))}
            elif by == "tensor":
                members = {self.names[position]: [number] for position, number in local.items()}
            else:
                members = {
                    scope: [local[position] for position in inside if position in local]
                    for scope, inside in scopes.items()
                }
            if len(self._segments) >= KEPT_SEGMENTS:  # other parameters have gradients at every step (layer drop)
                del self._segments[next(iter(self._segments))]
            self._segments[key] = Segments(members)
        return self._segments[key]

    def scopes(self, by: str) -> dict[str, list[int]]:
        """Positions of the parameters of each layer, component, optimizer group or named group, in order."""
        groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
        if by == "group" and (held := [tuple(map(id, group["params"])) for group in groups]) != self._held:
            self._held = held  # a group may be added while training, or another optimizer take over
            self._scopes.pop("group", None)
            self._segments = {key: kept for key, kept in self._segments.items() if key[0] != "group"}
        if by not in self._scopes:
            if by == "group":
                named = zip(self.names, self.parameters, strict=True)
                self._scopes[by] = optimizer_groups(groups, named).groups
            elif by == "named":
                self._scopes[by] = {name: match_parameters(self.names, p) for name, p in self.groups.items()}
            else:
                self._scopes[by] = group_parameters(self.names, by)  # type: ignore[arg-type]
        return self._scopes[by]
