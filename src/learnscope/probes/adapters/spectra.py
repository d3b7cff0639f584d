"""The decomposed updates of all adapters of a firing, and their numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from learnscope.model.adapters.inventory import Adapter
from learnscope.quantities import Quantity
from learnscope.quantities.adapters import AdapterSpectrum as Q
from learnscope.record import Column
from learnscope.tensor.adapters.spectrum import Decomposed, decompose_factors, spectrum_numbers


class Spectra:
    """Decomposed together, which costs far less than one by one."""

    def __init__(self, adapters: Sequence[Adapter], *, vectors: bool, tolerance: float) -> None:
        pairs = [(one, factors) for one in adapters if (factors := one.parts.factors) is not None]
        self.factored = [one for one, _ in pairs]
        self._found = decompose_factors([factors for _, factors in pairs], vectors=vectors)
        self._place = {id(one): place for place, one in enumerate(self.factored)}
        # without a spectrum at all there is still a row for each number, null and with its reason
        values = [one.values for one in self._found] or [torch.zeros(1, dtype=torch.float64)]
        self._numbers = spectrum_numbers(values, tolerance=tolerance)

    def of(self, one: Adapter) -> Decomposed | None:
        place = self._place.get(id(one))
        return None if place is None else self._found[place]

    def rank(self, one: Adapter) -> float:
        """How many singular values count; NaN if they are not finite."""
        return self.number(one, Q.numerical_rank)

    def number(self, one: Adapter, quantity: Quantity) -> float:
        place = self._place.get(id(one))
        return math.nan if place is None else self._numbers.values[quantity.name][place]

    def arrays(self) -> dict[str, Tensor]:
        return {
            f"singular_values/{one.name}/{one.scope}": found.values
            for one, found in zip(self.factored, self._found, strict=True)
        }

    def columns(self, members: Sequence[Adapter], labels: Mapping[str, str]) -> list[Column]:
        places = [self._place.get(id(one)) for one in members]
        none = {at: one.parts.reason or "" for at, one in enumerate(members) if places[at] is None}
        columns = []
        for name, found in self._numbers.values.items():
            reasons = self._numbers.reasons.get(name, {})
            status = none | {at: reasons[place] for at, place in enumerate(places) if place in reasons}
            row = [None if place is None or place in reasons else found[place] for place in places]
            columns.append(Q.named(name).column(row, labels, status))
        return columns
