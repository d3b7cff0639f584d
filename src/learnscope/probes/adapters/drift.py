"""How far the directions of an adapter's update have turned since the last and since the first measurement."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from learnscope.model.adapters.inventory import Adapter
from learnscope.probes.adapters.columns import Labels, Spectra
from learnscope.quantities.adapters import AdapterSpectrum as Q
from learnscope.record import Column
from learnscope.tensor.adapters.spectrum import NOT_FINITE, ZERO
from learnscope.tensor.adapters.subspace import subspace_drifts

SIDES = {"left": (Q.left_angle, Q.left_drift), "right": (Q.right_angle, Q.right_drift)}
SINCE = ("previous", "first")
NONE_EARLIER = "no earlier measurement of it has directions to compare with"


class Drift:
    """Compares the spans of updates with earlier ones: orthonormal columns in a probe's state, for each side."""

    def __init__(self, state: dict[str, Any], memory_mb: float) -> None:
        self._state, self._limit, self._free = state, memory_mb, memory_mb * 1e6

    def columns(self, members: Sequence[Adapter], spectra: Spectra, labels: Labels) -> list[Column]:
        """The angles and drifts of these adapters, whose spans replace the previous ones in the state."""
        cells: dict[tuple[str, str, int], tuple[float, float] | str] = {}
        pairs: dict[tuple[str, str, int], tuple[Tensor, Tensor]] = {}
        for place, adapter in enumerate(members):
            spans = self._spans(adapter, spectra)
            for side in SIDES:
                key = f"{side}/{adapter.name}/{adapter.scope}"
                for since in SINCE:
                    then = self._state.get(f"{since}_{key}")
                    if isinstance(spans, str):
                        cells[side, since, place] = spans
                    elif then is None:
                        cells[side, since, place] = NONE_EARLIER
                    elif len(then) != len(spans[side]):
                        lengths = f"then the module had {len(then)} rows or columns, now {len(spans[side])}"
                        cells[side, since, place] = lengths
                    else:
                        pairs[side, since, place] = (then, spans[side])
                self._store(key, None if isinstance(spans, str) else spans[side])
        cells |= zip(pairs, subspace_drifts(list(pairs.values())), strict=True)
        columns = []
        for side, quantities in SIDES.items():
            for since in SINCE:
                row = [cells[side, since, place] for place in range(len(members))]
                for which, quantity in enumerate(quantities):
                    values = [cell if isinstance(cell, str) else cell[which] for cell in row]
                    columns.append(quantity.cells(values, **labels, since=since))
        return columns

    def _spans(self, adapter: Adapter, spectra: Spectra) -> dict[str, Tensor] | str:
        spectrum = spectra.of(adapter)
        if spectrum is None:
            return adapter.parts.reason or ""
        rank = spectra.number(adapter, Q.numerical_rank)
        if math.isnan(rank):
            return NOT_FINITE
        if not rank:
            return ZERO
        left, right = spectrum.left_side, spectrum.right_side
        assert left is not None, "drift needs singular vectors"
        assert right is not None, "drift needs singular vectors"
        self._free -= 2 * int(rank) * (left.q.shape[0] + right.q.shape[0]) * left.q.itemsize
        if self._free < 0:
            return f"more than memory_mb={self._limit:g} of directions would be kept"
        return {"left": left.span(int(rank)), "right": right.span(int(rank))}

    def _store(self, key: str, span: Tensor | None) -> None:
        if span is None:  # the next comparison would be with an older one
            self._state.pop(f"previous_{key}", None)
            return
        self._state[f"previous_{key}"] = span
        if f"first_{key}" not in self._state:
            self._state[f"first_{key}"] = span.clone()

    def measured_at(self, step: int) -> dict[str, int]:
        """Called when all are compared: returns the steps they were compared with, and stores this one."""
        earlier = {f"{since}_step": self._state[since] for since in SINCE if since in self._state}
        self._state.setdefault("first", step)
        self._state["previous"] = step
        return earlier
