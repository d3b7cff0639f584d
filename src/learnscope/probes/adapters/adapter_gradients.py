"""How gradients reach the parts of adapters: A and B of every adapted module, layer by layer."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from learnscope.core.moment import Moment
from learnscope.core.probe import At, Probe
from learnscope.core.stepped import NOT_STEPPED
from learnscope.model.adapters.inventory import Adapters, find_adapters
from learnscope.model.adapters.parameters import TrainedPart, trained_parts
from learnscope.model.adapters.start import AdapterError
from learnscope.model.selection import check_max_layers, spread
from learnscope.names import components, resolve
from learnscope.probes.adapters.opening import warn_of_unknown
from learnscope.probes.gradients.flow_rows import GradientRows
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
    """Rows only for modules in at most so many layers: the first, the last and some evenly between, or the middle one.
    Sums over components and the model still cover all layers."""
    adapters_only: bool = True
    """False: also a row for every other trained parameter, of the family `none`, by the last part of its name."""

    needs = frozenset({"grads"})
    reads_only = True
    cost = "one pass over the gradients, shared with `GradientFlow`"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_max_layers(type(self).__name__, self.max_layers)

    def open(self, moment: Moment) -> None:
        self._parts(moment)

    def measure(self, moment: Moment) -> Measurement:
        gradients = moment.gradients
        rows = self._rows(moment, list(gradients.positions))
        if rows.silent:
            warn_of_unknown(type(self).__name__, rows.silent, moment.state)
        flow = GradientRows.of(moment, gradients)
        sums = rows.sums(flow.numbers[:, :2]).split([len(members) for members in rows.tables.values()])
        tables, idle = [], {id(moment.subject.parameters[position]) for position in gradients.unstepped}
        for ((kind, *names), members), part in zip(rows.tables.items(), sums, strict=True):
            labels = dict(zip(_LABELS, names, strict=True))
            columns = flow.norm_columns(part[:, 0], part[:, 1], labels, rows.reasons(members, idle), Q.norm)
            tables.append(Table(kind, list(members), columns))
        return Measurement(tables, notes={"unknown": rows.silent} if rows.silent else {})

    def _rows(self, moment: Moment, positions: list[int]) -> _Rows:
        """Those of the last measurement, unless parameters, what is trained, optimizers or gradients have changed."""
        subject = moment.subject
        key = (*(p.requires_grad for p in subject.parameters), *map(id, subject.optimizers), *positions)
        rows: _Rows | None = moment.state.get("_rows")
        if rows is None or rows.parameters is not subject.parameters or rows.key != key:
            parts, unknown = self._parts(moment)
            row_of = {id(subject.parameters[position]): row for row, position in enumerate(positions)}
            row_of_part = [None if part.shared_with else row_of.get(id(part.parameter)) for part in parts]
            rows = _Rows(subject.parameters, key, parts, row_of_part, self.max_layers)
            families = {part.family for part in parts}
            rows.silent = {family: scopes for family, scopes in unknown.items() if family not in families}
            moment.state["_rows"] = rows
        return rows

    def _parts(self, moment: Moment) -> tuple[list[TrainedPart], dict[str, list[str]]]:
        """The parameters to measure, and the modules with adapters of unknown families, by family."""
        subject = moment.subject
        try:
            adapters = find_adapters(subject.model, subject.optimizers)
        except AdapterError:
            if self.adapters_only:
                raise
            adapters = Adapters()
        named = zip(subject.names, subject.parameters, strict=True)
        return trained_parts(adapters, named, others=not self.adapters_only), adapters.unknown


_LABELS = ("adapter", "family", "component")
_Members = dict[str, list[int]]
"""By the scopes of one table, which parts each of them sums."""


class _Rows:
    """The rows of all tables, and which gradients each of them sums."""

    def __init__(
        self, parameters: Sequence[Tensor], key: tuple[int, ...], parts: list[TrainedPart],
        row_of_part: list[int | None], max_layers: int | None,
    ) -> None:  # fmt: skip
        self.parameters, self.key, self._parts, self._row_of_part = parameters, key, parts, row_of_part
        self.silent: dict[str, list[str]] = {}
        """Adapters of unknown families without a single parameter that is known to be theirs."""
        self.tables = _tables(parts, max_layers)
        scopes = [parts_of_scope for members in self.tables.values() for parts_of_scope in members.values()]
        present = [[row for part in scope if (row := row_of_part[part]) is not None] for scope in scopes]
        self._count = len(scopes)
        self._segments = Segments({str(number): rows for number, rows in enumerate(present)})
        self._filled = torch.tensor([int(number) for number in self._segments.scopes], dtype=torch.int64)

    def sums(self, squares: Tensor) -> Tensor:
        """[scopes of all tables, stages]; NaN where nothing has a gradient."""
        sums = squares.new_full((self._count, squares.shape[1]), torch.nan)
        return sums.index_copy_(0, self._filled.to(squares.device), self._segments.sum(squares))

    def reasons(self, table: _Members, idle: Collection[int]) -> dict[int, str]:
        """Why a scope has no gradient, by place; asked each time, as adapters are switched on and off.

        `idle` are the ids of parameters whose optimizer did not step.
        """
        if None not in self._row_of_part:
            return {}
        why = [NOT_STEPPED if id(part.parameter) in idle else part.why_no_gradient() for part in self._parts]
        return {
            place: "; ".join(dict.fromkeys(why[part] for part in members))
            for place, members in enumerate(table.values())
            if all(self._row_of_part[part] is None for part in members)
        }


def _tables(parts: Sequence[TrainedPart], max_layers: int | None) -> dict[tuple[str, ...], _Members]:
    """By the kind and the labels of each table."""
    weights = [f"{part.scope}.weight" for part in parts]
    layers, types = [resolve(name).layer for name in weights], components(weights)
    chosen = set(spread(layers, max_layers))
    tables: dict[tuple[str, ...], _Members] = {}
    for kind in KINDS:
        for number, (part, layer, of_type) in enumerate(zip(parts, layers, types, strict=True)):
            if kind in ("module", "layer") and layer not in chosen:
                continue
            scope = {"module": part.scope, "layer": layer, "component": of_type, "model": "model"}[kind]
            table = tables.setdefault((kind, part.adapter, part.family, part.component), {})
            table.setdefault(scope, []).append(number)
    return tables
