"""How far the directions of an adapter's update have turned since the last and since the first measurement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from learnscope.model.adapters import Adapter
from learnscope.record import Column
from learnscope.tensor.spectrum import NOT_FINITE, ZERO, Decomposed
from learnscope.tensor.subspace import subspace_drift

SIDES = ("left", "right")
SINCE = ("previous", "first")
Angles = tuple[float, float]


class Kept:
    """Spans of earlier measurements in a probe's state: orthonormal columns for each side of each update."""

    def __init__(self, state: dict[str, Any], memory_mb: float, tolerance: float) -> None:
        self._state, self._limit, self._left, self._tolerance = state, memory_mb, memory_mb * 1e6, tolerance
        self._earlier: dict[str, int] = {}

    def compare(self, one: Adapter, now: Decomposed | None) -> dict[tuple[str, str], Angles | str]:
        """By side and since when: the drift, or why there is none; and keep what is there now."""
        if now is None:
            return {(side, since): one.parts.reason or "" for side in SIDES for since in SINCE}
        spans, reason = self._spans(now)
        found: dict[tuple[str, str], Angles | str] = {}
        for side in SIDES:
            key = f"{side}/{one.name}/{one.scope}"
            for since in SINCE:
                found[side, since] = reason or self._against(spans[side], f"{since}_{key}")
            if reason is None:
                # copies of their own: what shares memory cannot be saved
                self._state[f"previous_{key}"] = spans[side].clone()
                self._state.setdefault(f"first_{key}", spans[side].clone())
            else:  # the next comparison would be with an older one
                self._state.pop(f"previous_{key}", None)
        return found

    def _spans(self, now: Decomposed) -> tuple[dict[str, Tensor], str | None]:
        assert now.left is not None, "drift needs singular vectors"
        assert now.right is not None, "drift needs singular vectors"
        if bool(now.values.isnan().any()):
            return {}, NOT_FINITE
        rank = now.rank(self._tolerance)
        spans = {"left": now.left[:, :rank].contiguous(), "right": now.right[:, :rank].contiguous()}
        if not rank:
            return spans, ZERO
        self._left -= 2 * (spans["left"].nbytes + spans["right"].nbytes)
        return spans, None if self._left >= 0 else f"more than memory_mb={self._limit:g} of directions would be kept"

    def _against(self, span: Tensor, key: str) -> Angles | str:
        then = self._state.get(key)
        if then is None:
            return "no earlier measurement of it has directions to compare with"
        if len(then) != len(span):
            return f"then the module had {len(then)} rows or columns, now {len(span)}"
        return subspace_drift(then.to(span.device), span)

    @property
    def notes(self) -> dict[str, int]:
        return dict(self._earlier)

    def measured_at(self, step: int) -> None:
        """Once all are compared: the steps that they were compared with, and this one as the next's."""
        self._earlier = {f"{since}_step": self._state[since] for since in SINCE if since in self._state}
        self._state.setdefault("first", step)
        self._state["previous"] = step


def drift_columns(
    members: Sequence[Adapter], spectra: Mapping[int, Decomposed], labels: Mapping[str, str], kept: Kept
) -> list[Column]:
    found = [kept.compare(one, spectra.get(id(one))) for one in members]
    columns = []
    for side in SIDES:
        for since in SINCE:
            cells = [one[side, since] for one in found]
            reasons = {place: cell for place, cell in enumerate(cells) if isinstance(cell, str)}
            for which, name in enumerate((f"{side}_angle", f"{side}_drift")):
                values = [None if isinstance(cell, str) else cell[which] for cell in cells]
                columns.append(Column(name, values, {**labels, "since": since}, reasons))
    return columns
