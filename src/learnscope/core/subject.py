"""What a session examines: a model with its optimizers and data, and the groups of its parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import is_not
from typing import Any

import torch
from torch import nn

from learnscope.core.calls import CallCounts
from learnscope.model.structure import Structure, can_be_compared
from learnscope.model.weights.content import data_content, model_content, task_content
from learnscope.names import group_parameters, match_parameters, optimizer_groups
from learnscope.store.memo import ResultCache
from learnscope.task import Task
from learnscope.tensor.segments import JointSegments, Segments

KEPT_SEGMENTS = 64
"""Groupings of parameters that are cached: a few for each set of parameters that probes look at."""


class GroupError(ValueError):
    """A group that the user named has no parameters."""


def checked_groups(groups: Any) -> dict[str, str | list[str]]:
    """A checked copy of the groups that the user named."""
    if not isinstance(groups, Mapping):
        raise TypeError(f"groups={groups!r}: a mapping from names to patterns, such as {{'head': 'classifier'}}")
    checked: dict[str, str | list[str]] = {}
    for name, patterns in groups.items():
        if not isinstance(name, str) or not name:
            raise TypeError(f"groups: {name!r} cannot be the name of a group; a name is text")
        listed = [patterns] if isinstance(patterns, str) else patterns
        is_list = isinstance(listed, Sequence) and len(listed) > 0
        if not is_list or not all(isinstance(pattern, str) and pattern for pattern in listed):
            raise ValueError(f"groups[{name!r}]={patterns!r}: the name of a module, a pattern, or a list of them")
        checked[name] = patterns if isinstance(patterns, str) else list(patterns)
    return checked


@dataclass(slots=True)
class Subject:
    """The model with its optimizers and data: the same for all moments of a session."""

    model: nn.Module
    optimizers: Sequence[torch.optim.Optimizer] = ()
    task: Task | None = None
    holdout: Sequence[Any] | None = None
    train_data: Sequence[Any] | None = None
    test_data: Sequence[Any] | None = None
    tokenizer: Any = None
    """Of a language model, if it is known: to show texts."""
    sampled: bool = False
    """Whether `holdout` was sampled from the model itself: its loss there is no quality on any data."""
    groups: Mapping[str, str | Sequence[str]] = field(default_factory=dict)
    """Patterns of parameter names, by the user's name of the group."""
    names: list[str] = field(default_factory=list)
    parameters: list[nn.Parameter] = field(default_factory=list)
    memo: ResultCache | None = None
    """Results of earlier examinations of the same weights on the same data."""
    show_progress: bool = False
    backward_order: list[str] = field(default_factory=list)
    """Names in the order in which the first backward reached them, if there was one."""
    calls: CallCounts = field(default_factory=CallCounts)
    """What a watched loop has called so far."""
    _held: list[tuple[int, ...]] = field(default_factory=list)
    _scopes: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    _segments: dict[tuple[str, tuple[int, ...]], Segments] = field(default_factory=dict)
    _joint: dict[tuple[str, ...], JointSegments] = field(default_factory=dict)
    _looked_at: tuple[nn.Module, Structure] | None = None

    def __post_init__(self) -> None:
        self.refresh()

    def refresh(self) -> None:
        """Read the parameters anew: they may have been added or replaced since."""
        if self._looked_at is not None and self._looked_at[0] is self.model and self._looked_at[1].holds():
            return
        self._looked_at = (self.model, Structure(self.model)) if can_be_compared(self.model) else None
        named = list(self.model.named_parameters())
        names, parameters = [name for name, _ in named], [p for _, p in named]
        if names != self.names or any(map(is_not, parameters, self.parameters)):
            self.names, self.parameters = names, parameters
            self._scopes, self._segments = {}, {}

    def name_groups(self, groups: Mapping[str, str | Sequence[str]]) -> None:
        """Use these groups of parameters from now on; a pattern that matches none is refused."""
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
            self._forget("named")

    def _forget(self, kind: str) -> None:
        self._scopes.pop(kind, None)
        self._segments = {key: segments for key, segments in self._segments.items() if key[0] != kind}

    @property
    def group_kinds(self) -> list[str]:
        """The kinds of groups besides layers and components: the optimizers', and those the user named."""
        return [*(["group"] if self.optimizers else []), *(["named"] if self.groups else [])]

    def content(self) -> dict[str, str]:
        """What results depend on: hashes of the weights, the data and how they are read."""
        data = {name: getattr(self, name) for name in ("holdout", "train_data", "test_data")}
        hashes = {name: data_content(batches) for name, batches in data.items() if batches is not None}
        of = {"model": model_content(self.model), "task": task_content(self.task), "torch": torch.__version__}
        return of | hashes

    def by_name(self) -> dict[str, nn.Parameter]:
        return dict(zip(self.names, self.parameters, strict=True))

    def segments(self, by: str, positions: Sequence[int]) -> Segments:
        """The scopes of a kind, over one number for each of the parameters at `positions`."""
        scopes = {} if by in ("model", "tensor") else self.scopes(by)
        key = (by, tuple(positions))
        if key not in self._segments:
            local = {position: number for number, position in enumerate(positions)}
            if by == "model":
                members: dict[str, list[int]] = {"model": list(range(len(positions)))}
            elif by == "tensor":
                members = {self.names[position]: [number] for position, number in local.items()}
            else:
                members = {scope: [local[i] for i in in_scope if i in local] for scope, in_scope in scopes.items()}
            if len(self._segments) >= KEPT_SEGMENTS:  # other parameters have gradients at every step (layer drop)
                del self._segments[next(iter(self._segments))]
            self._segments[key] = Segments(members)
        return self._segments[key]

    def joint_segments(self, kinds: Sequence[str], positions: Sequence[int]) -> JointSegments:
        """The scopes of several kinds over the parameters at `positions`, to be added up together."""
        segments = {kind: self.segments(kind, positions) for kind in kinds}
        known = self._joint.get(tuple(kinds))
        if known is None or any(known.kinds[kind] is not each for kind, each in segments.items()):
            known = JointSegments(segments, [self.parameters[i].numel() for i in positions])
            self._joint[tuple(kinds)] = known
        return known

    def scopes(self, by: str) -> dict[str, list[int]]:
        """Positions of the parameters of each layer, component, optimizer group or named group, in order."""
        groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
        if by == "group" and (held := [tuple(map(id, group["params"])) for group in groups]) != self._held:
            self._held = held  # a group may be added while training, or another optimizer take over
            self._forget("group")
        if by not in self._scopes:
            if by == "group":
                named = zip(self.names, self.parameters, strict=True)
                self._scopes[by] = optimizer_groups(groups, named).groups
            elif by == "named":
                self._scopes[by] = {name: match_parameters(self.names, p) for name, p in self.groups.items()}
            else:
                self._scopes[by] = group_parameters(self.names, by)  # type: ignore[arg-type]
        return self._scopes[by]
