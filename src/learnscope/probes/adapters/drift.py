"""How far the directions of an adapter's update have turned since the last and since the first measurement."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from learnscope.model.adapters.inventory import Adapter
from learnscope.probes.adapters.spectra import Spectra
from learnscope.quantities.adapters import AdapterSpectrum as Q
from learnscope.record import Column
from learnscope.tensor.adapters.spectrum import NOT_FINITE, ZERO
from learnscope.tensor.adapters.subspace import subspace_drifts

SIDES = {"left": (Q.left_angle, Q.left_drift), "right": (Q.right_angle, Q.right_drift)}
SINCE = ("previous", "first")
NONE_EARLIER = "no earlier measurement of it has directions to compare with"
Cell = tuple[float, float] | str
"""The largest angle and the drift, or why there are none."""


class Kept:
    """Spans of earlier measurements in a probe's state: orthonormal columns for each side of each update."""

    def __init__(self, state: dict[str, Any], memory_mb: float) -> None:
        self._state, self._limit, self._left = state, memory_mb, memory_mb * 1e6
        self._earlier: dict[str, int] = {}

    def compare(self, members: Sequence[Adapter], spectra: Spectra) -> list[dict[tuple[str, str], Cell]]:
        """Of each adapter by side and since when; and keep what is there now."""
        found: list[dict[tuple[str, str], Cell]] = [{} for _ in members]
        wanted: list[tuple[int, str, str]] = []
        pairs: list[tuple[Tensor, Tensor]] = []
        for place, one in enumerate(members):
            spans, reason = self._spans(one, spectra)
            for side in SIDES:
                key = f"{side}/{one.name}/{one.scope}"
                for since in SINCE:
                    then = self._state.get(f"{since}_{key}")
                    why = reason or _why_not(then, spans.get(side))
                    if why is not None:
                        found[place][side, since] = why
                    elif then is not None:
                        wanted.append((place, side, since))
                        pairs.append((then, spans[side]))
                self._keep(key, None if reason else spans[side])
        for (place, side, since), angles in zip(wanted, subspace_drifts(pairs), strict=True):
            found[place][side, since] = angles
        return found

    def _spans(self, one: Adapter, spectra: Spectra) -> tuple[dict[str, Tensor], str | None]:
        now = spectra.of(one)
        if now is None:
            return {}, one.parts.reason or ""
        rank = spectra.rank(one)
        if math.isnan(rank):
            return {}, NOT_FINITE
        if not rank:
            return {}, ZERO
        left, right = now.left_side, now.right_side
        assert left is not None, "drift needs singular vectors"
        assert right is not None, "drift needs singular vectors"
        size = int(rank) * (left.q.shape[0] + right.q.shape[0]) * left.q.itemsize
        self._left -= 2 * size
        if self._left < 0:
            return {}, f"more than memory_mb={self._limit:g} of directions would be kept"
        return {"left": left.span(int(rank)), "right": right.span(int(rank))}, None

    def _keep(self, key: str, span: Tensor | None) -> None:
        if span is None:  # the next comparison would be with an older one
            self._state.pop(f"previous_{key}", None)
            return
        self._state[f"previous_{key}"] = span
        if f"first_{key}" not in self._state:
            self._state[f"first_{key}"] = span.clone()

    @property
    def notes(self) -> dict[str, int]:
        return dict(self._earlier)

    def measured_at(self, step: int) -> None:
        """Once all are compared: the steps that they were compared with, and this one as the next's."""
        self._earlier = {f"{since}_step": self._state[since] for since in SINCE if since in self._state}
        self._state.setdefault("first", step)
        self._state["previous"] = step


def _why_not(then: Tensor | None, now: Tensor | None) -> str | None:
    if then is None or now is None:
        return NONE_EARLIER
    before, after = then.shape[0], now.shape[0]
    return None if before == after else f"then the module had {before} rows or columns, now {after}"


def drift_columns(members: Sequence[Adapter], spectra: Spectra, labels: Mapping[str, str], kept: Kept) -> list[Column]:
    found = kept.compare(members, spectra)
    columns = []
    for side, quantities in SIDES.items():
        for since in SINCE:
            cells = [one[side, since] for one in found]
            reasons = {place: cell for place, cell in enumerate(cells) if isinstance(cell, str)}
            for which, quantity in enumerate(quantities):
                values = [None if isinstance(cell, str) else cell[which] for cell in cells]
                columns.append(quantity.column(values, {**labels, "since": since}, reasons))
    return columns
