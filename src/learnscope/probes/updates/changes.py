"""The statistics of the last change of the weights, taken in one pass for all probes that ask."""

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
    """Where these parameters stand among the subject's."""
    thresholds: tuple[float, ...]
    table: DeltaTable
    dtype: str
    """That of the weights, or "mixed"."""

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
    """The change since `moment.previous`; a second asker with no other thresholds costs nothing."""
    before = moment.previous
    taken: list[Changes] = moment.once(("changes", id(before)), list)
    for known in taken:
        if set(thresholds) <= set(known.thresholds):
            return known
    subject = moment.subject
    subject.refresh()
    before.check(subject.by_name())
    positions = [i for i, p in enumerate(subject.parameters) if p.is_floating_point()]
    floats = {subject.names[i]: subject.parameters[i] for i in positions}
    found = Changes.between(floats, before.tensors, thresholds, positions)
    taken.append(found)
    return found
