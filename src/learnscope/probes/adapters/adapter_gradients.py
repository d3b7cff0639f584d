"""How gradients reach the parts of adapters: A and B of every adapted module, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from learnscope.core.moment import Moment
from learnscope.core.probe import At, Probe
from learnscope.model.adapters.inventory import Adapters, find_adapters
from learnscope.model.adapters.parameters import TrainedPart, trained_parts
from learnscope.model.adapters.start import AdapterError
from learnscope.model.selection import check_max_layers, spread
from learnscope.names import resolve
from learnscope.probes.adapters.notes import warn_of_unknown
from learnscope.probes.gradients.flow_rows import Flow
from learnscope.quantities import Quantities
from learnscope.quantities.adapters import AdapterGradients as Q
from learnscope.record import Measurement, Table
from learnscope.tensor.segments import Segments

KINDS = ("module", "layer", "component", "model")


class AdapterGradients(Probe):
    """Gradient norms of the parts of every adapter (PEFT): which modules learn, and through A or through B.

    Loss scaling is divided out. A gradient of zeros has norm 0, as `lora_A` has while B is 0.

    Null, with the reason, is a part without gradient: frozen (`lora_A` of LoRA-FA), of an adapter that is inactive,
    disabled or merged, or one that shares its parameter with an earlier module, which has the row. Sums leave such
    parts out, and are null where nothing is left.

    Gradients are read once for all probes, and a norm of a module costs nothing more: `max_layers` shortens the
    record, not the measurement.
    """

    every: int = 100
    at: At = "before_step"
    max_layers: int | None = None
    """Rows for modules and layers of at most so many layers, the first, the last and some evenly between; one is the
    middle one. Sums over components and the model are still of all."""
    adapters_only: bool = True
    """False: a row as well for whatever else is trained, of the family `none`, by the last part of its name."""

    needs: ClassVar[frozenset[str]] = frozenset({"grads"})
    reads_only: ClassVar[bool] = True
    quantities: ClassVar[type[Quantities]] = Q
    cost: ClassVar[str] = "one pass over the gradients, shared with `GradientFlow`"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_max_layers(type(self).__name__, self.max_layers)

    def open(self, moment: Moment) -> None:
        self._rows(moment)

    def measure(self, moment: Moment) -> Measurement:
        gradients = moment.gradients
        rows = self._rows(moment)
        if rows.silent:
            warn_of_unknown(type(self).__name__, rows.silent, moment.state)
        flow = Flow.of(moment, gradients)
        places = rows.places(moment, gradients.positions)
        sums = places.sums(flow.numbers[:, :2])
        tables = [
            Table(one.kind, one.scopes, flow.norm_columns(part[:, 0], part[:, 1], one.labels, status, Q.norm))
            for one, part, status in zip(rows.tables, sums.split(rows.sizes), places.reasons(rows.parts), strict=True)
        ]
        return Measurement(tables, notes={"unknown": rows.silent} if rows.silent else {})

    def _rows(self, moment: Moment) -> _Rows:
        """Those of the last measurement, if parameters, which of them are trained and optimizers have not changed."""
        subject = moment.subject
        rest = [*(p.requires_grad for p in subject.parameters), *map(id, subject.optimizers)]
        kept: _Rows | None = moment.state.get("_rows")
        if kept is None or kept.parameters is not subject.parameters or kept.rest != rest:
            kept = _Rows(subject.parameters, rest, self._parts(moment), self.max_layers)
            moment.state["_rows"] = kept
        return kept

    def _parts(self, moment: Moment) -> tuple[list[TrainedPart], Adapters]:
        subject = moment.subject
        try:
            adapters = find_adapters(subject.model, subject.optimizers)
        except AdapterError:
            if self.adapters_only:
                raise
            adapters = Adapters()
        named = zip(subject.names, subject.parameters, strict=True)
        return trained_parts(adapters, named, others=not self.adapters_only), adapters


@dataclass(frozen=True, slots=True)
class _TableOf:
    """The scopes of one table, and which parts each of them sums."""

    kind: str
    labels: dict[str, Any]
    members: dict[str, list[int]]

    @property
    def scopes(self) -> list[str]:
        return list(self.members)


class _Rows:
    """What the rows are: known from the adapters alone, whatever gradients there are."""

    def __init__(
        self, parameters: Sequence[Tensor], rest: list[int], found: tuple[list[TrainedPart], Adapters],
        max_layers: int | None,
    ) -> None:  # fmt: skip
        self.parameters, self.rest = parameters, rest
        self.parts, adapters = found
        families = {part.family for part in self.parts}
        self.silent = {family: scopes for family, scopes in adapters.unknown.items() if family not in families}
        """Adapters without a single parameter that is known to be theirs."""
        self.tables = self._tables(max_layers)
        self.sizes = [len(one.members) for one in self.tables]
        self._places: _Places | None = None

    def _tables(self, max_layers: int | None) -> list[_TableOf]:
        names = [resolve(f"{part.scope}.weight") for part in self.parts]
        chosen = set(spread((name.layer for name in names), max_layers))
        tables: dict[tuple[str, ...], _TableOf] = {}
        for kind in KINDS:
            for number, (part, name) in enumerate(zip(self.parts, names, strict=True)):
                if kind in ("module", "layer") and name.layer not in chosen:
                    continue
                scope = {"module": part.scope, "layer": name.layer, "component": name.component, "model": "model"}[kind]
                labels = {"adapter": part.adapter, "family": part.family, "component": part.component}
                table = tables.setdefault((kind, *labels.values()), _TableOf(kind, labels, {}))
                table.members.setdefault(scope, []).append(number)
        return list(tables.values())

    def places(self, moment: Moment, positions: Sequence[int]) -> _Places:
        """Where each scope finds its gradients."""
        if self._places is None or self._places.positions != list(positions):
            known = {id(p): place for place, p in enumerate(moment.subject.parameters)}
            row = {position: number for number, position in enumerate(positions)}
            at = [None if one.shared_with else row.get(known.get(id(one.parameter), -1)) for one in self.parts]
            self._places = _Places(list(positions), self.tables, at)
        return self._places


class _Places:
    """For one set of gradients: which row of theirs belongs to which scope, and why others have none."""

    def __init__(self, positions: list[int], tables: Sequence[_TableOf], at: Sequence[int | None]) -> None:
        self.positions, self._tables, self._at = positions, tables, at
        scopes = [inside for table in tables for inside in table.members.values()]
        present = [[row for part in inside if (row := at[part]) is not None] for inside in scopes]
        self._count = len(scopes)
        self._segments = Segments({str(number): rows for number, rows in enumerate(present)})
        self._filled = torch.tensor([int(number) for number in self._segments.scopes], dtype=torch.int64)

    def sums(self, squares: Tensor) -> Tensor:
        """[scopes of all tables, stages]; NaN where nothing has a gradient."""
        found = squares.new_full((self._count, squares.shape[1]), torch.nan)
        return found.index_copy_(0, self._filled.to(squares.device), self._segments.sum(squares))

    def reasons(self, parts: Sequence[TrainedPart]) -> list[dict[int, str]]:
        """By table and place, why nothing has a gradient; asked each time, as adapters are switched on and off."""
        if None not in self._at:
            return [{} for _ in self._tables]
        return [
            {
                place: "; ".join(dict.fromkeys(_why(parts[part]) for part in inside))
                for place, inside in enumerate(table.members.values())
                if all(self._at[part] is None for part in inside)
            }
            for table in self._tables
        ]


def _why(part: TrainedPart) -> str:
    return f"shares its parameter with {part.shared_with}" if part.shared_with else part.why_no_gradient()
