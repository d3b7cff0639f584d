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
from learnscope.tensor.adapters.subspace import rowwise, subspace_drifts

SIDES = {"left": (Q.left_angle, Q.left_drift), "right": (Q.right_angle, Q.right_drift)}
SINCE = ("previous", "first")
NONE_EARLIER = "no earlier measurement of it has directions to compare with"


class Drift:
    """Compares the spans of updates with earlier ones: orthonormal columns in a probe's state, for each side."""

    def __init__(self, state: dict[str, Any], memory_mb: float) -> None:
        self._state, self._limit, self._free = state, memory_mb, memory_mb * 1e6

    def columns(self, members: Sequence[Adapter], spectra: Spectra, labels: Labels) -> list[Column]:
        """The angles and drifts of these adapters, whose spans replace the previous ones in the state."""
        spans = [self._spans(adapter, spectra) for adapter in members]
        keys = {side: [f"{side}/{adapter.name}/{adapter.scope}" for adapter in members] for side in SIDES}
        now = {side: [own if isinstance(own, str) else own[side] for own in spans] for side in SIDES}
        # a span is compared with both earlier ones while it is in the cache
        spans_now = [(key, span) for side in SIDES for key, span in zip(keys[side], now[side], strict=True)]
        compared = self._compared([(f"{since}_{key}", span) for key, span in spans_now for since in SINCE])
        columns = []
        for place, quantities in enumerate(SIDES.values()):
            of_side = compared[place * len(SINCE) * len(members) :][: len(SINCE) * len(members)]
            for number, since in enumerate(SINCE):
                for which, quantity in enumerate(quantities):
                    values = [cell if isinstance(cell, str) else cell[which] for cell in of_side[number :: len(SINCE)]]
                    columns.append(quantity.cells(values, **labels, since=since))
        for side in SIDES:
            for key, span in zip(keys[side], now[side], strict=True):
                self._store(key, None if isinstance(span, str) else span)
        return columns

    def _compared(self, spans: Sequence[tuple[str, Tensor | str]]) -> list[tuple[float, float] | str]:
        """The angle and the drift of each span since the one in the state under its key, or why there is none."""
        cells: dict[int, tuple[float, float] | str] = {}
        pairs: dict[int, tuple[Tensor, Tensor]] = {}
        for place, (key, span) in enumerate(spans):
            then = self._state.get(key)
            if isinstance(span, str):
                cells[place] = span
            elif then is None:
                cells[place] = NONE_EARLIER
            elif len(then) != len(span):
                cells[place] = f"then the module had {len(then)} rows or columns, now {len(span)}"
            else:
                # after loading they lie otherwise in memory: changed once, not at every measurement
                self._state[key] = rowwise(then, then.device)
                pairs[place] = self._state[key], span
        cells |= zip(pairs, subspace_drifts(list(pairs.values())), strict=True)
        return [cells[place] for place in range(len(spans))]

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
            self._state[f"first_{key}"] = span

    def measured_at(self, step: int) -> dict[str, int]:
        """Called when all are compared: returns the steps they were compared with, and stores this one."""
        earlier = {f"{since}_step": self._state[since] for since in SINCE if since in self._state}
        self._state.setdefault("first", step)
        self._state["previous"] = step
        return earlier
