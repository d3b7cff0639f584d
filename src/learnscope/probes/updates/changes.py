"""Statistics of the last change of the weights, from one pass for all probes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from learnscope.core.moment import Moment
from learnscope.tensor.updates.delta import DeltaTable, delta_statistics


@dataclass(frozen=True)
class Changes:
    """What changed since the previous weights, per floating-point parameter."""

    names: Sequence[str]
    positions: Sequence[int]
    """Of these parameters among the subject's."""
    thresholds: tuple[float, ...]
    table: DeltaTable
    dtype: str
    """Of the weights, or "mixed"."""

    @classmethod
    def between(
        cls, new: Mapping[str, Tensor], old: Mapping[str, Tensor], thresholds: Sequence[float], positions: Sequence[int]
    ) -> Changes:
        """From two sets of weights with the same names."""
        dtypes = {str(tensor.dtype).removeprefix("torch.") for tensor in new.values()}
        table = delta_statistics([tensor.detach() for tensor in new.values()], [old[name] for name in new], thresholds)
        return cls(list(new), positions, tuple(thresholds), table, dtypes.pop() if len(dtypes) == 1 else "mixed")

    def within(self, thresholds: Sequence[float]) -> Tensor:
        """[tensors, thresholds]: entries with |Δ| ≤ t."""
        return self.table.within[:, [self.thresholds.index(t) for t in thresholds]]


def changes(moment: Moment, thresholds: Sequence[float]) -> Changes:
    """The change since `moment.previous`, computed once unless a later probe has other thresholds."""
    before = moment.previous
    computed: list[Changes] = moment.once(("changes", id(before)), list)
    for earlier in computed:
        if set(thresholds) <= set(earlier.thresholds):
            return earlier
    subject = moment.subject
    subject.refresh()
    before.check(subject.by_name())
    positions = [i for i, p in enumerate(subject.parameters) if p.is_floating_point()]
    floats = {subject.names[i]: subject.parameters[i] for i in positions}
    computed.append(Changes.between(floats, before.tensors, thresholds, positions))
    return computed[-1]
