"""How gradients reach the parts of adapters: A and B of every adapted module, layer by layer."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from operator import attrgetter

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from learnscope.core.gradients import Gradients
from learnscope.core.moment import Moment
from learnscope.core.probe import At, Probe, Schedule
from learnscope.core.stepped import NOT_STEPPED
from learnscope.model.adapters.inventory import Adapters, find_adapters
from learnscope.model.adapters.parameters import TrainedPart, trained_parts
from learnscope.model.adapters.start import AdapterError
from learnscope.model.selection import check_max_layers, spread
from learnscope.names import components, resolve
from learnscope.probes.adapters.opening import warn_of_unknown
from learnscope.quantities.adapters import AdapterGradients as Q
from learnscope.record import Column, Label, Measurement, Table

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

    every: Schedule = 100
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
        rows = self._rows(moment, gradients.positions)
        if rows.silent:
            warn_of_unknown(type(self).__name__, rows.silent, moment.state)
        idle = {id(moment.subject.parameters[position]) for position in gradients.unstepped}
        reasons = [rows.reasons(members, idle) for members in rows.tables.values()] if rows.lacking else None
        unpack = partial(rows.unpacked, gradients.origin, reasons)
        notes = {"unknown": rows.silent} if rows.silent else {}
        return Measurement(packed=stepped_squares(gradients), unpack=unpack, notes=notes)

    def _rows(self, moment: Moment, positions: Sequence[int]) -> _Rows:
        """Those of the last measurement, unless parameters, what is trained, optimizers or gradients have changed."""
        subject = moment.subject
        key = (*map(_is_trained, subject.parameters), *map(id, subject.optimizers), *positions)
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


_is_trained = attrgetter("requires_grad")
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
        self.kinds = [kind for kind, *_ in self.tables]
        self.scopes = [list(members) for members in self.tables.values()]
        self._labels: dict[tuple[str, str], list[dict[str, Label]]] = {}
        self._ends = np.cumsum([len(scopes) for scopes in self.scopes])[:-1]
        summed = [parts_of_scope for members in self.tables.values() for parts_of_scope in members.values()]
        present = [[row for part in scope if (row := row_of_part[part]) is not None] for scope in summed]
        self._from = np.array([row for rows in present for row in rows], dtype=np.int64)
        self._to = np.array([number for number, rows in enumerate(present) for _ in rows], dtype=np.int64)
        self._empty = np.array([0.0 if rows else np.nan for rows in present])
        self.lacking = None in row_of_part
        """Whether a part has no gradient."""

    def labels(self, origin: str, stage: str) -> list[dict[str, Label]]:
        """The labels of each table's column, made once."""
        made = self._labels.get((origin, stage))
        if made is None:
            first = {} if origin == "accumulated" else {"origin": origin}
            own = [dict(zip(_LABELS, names, strict=True)) for _, *names in self.tables]
            made = self._labels[origin, stage] = [{**first, **names, "stage": stage} for names in own]
        return made

    def unpacked(
        self, origin: str, reasons: Sequence[dict[int, str]] | None, squares: Mapping[str, NDArray[np.float64]]
    ) -> list[Table]:
        """All tables, from Σg² of every gradient by stage; made when somebody reads them."""
        columns: list[list[Column]] = [[] for _ in self.kinds]
        for stage, values in squares.items():
            norms, labels = self._norms(values), self.labels(origin, stage)
            for place, numbers in enumerate(norms):
                missing = {} if reasons is None else reasons[place]
                columns[place].append(Q.norm.column(numbers.tolist(), labels[place], missing))
        return [Table(*named) for named in zip(self.kinds, self.scopes, columns, strict=True)]

    def _norms(self, squares: NDArray[np.float64]) -> list[NDArray[np.float64]]:
        """The norms of each table's scopes; NaN where nothing has a gradient."""
        if not len(self._empty):
            return []
        sums = self._empty + np.bincount(self._to, weights=squares[self._from], minlength=len(self._empty))
        return np.split(np.sqrt(sums), self._ends)

    def reasons(self, table: _Members, idle: Collection[int]) -> dict[int, str]:
        """Why a scope has no gradient, by place; asked each time, as adapters are switched on and off.

        `idle` are the ids of parameters whose optimizer did not step.
        """
        why = [NOT_STEPPED if id(part.parameter) in idle else part.why_no_gradient() for part in self._parts]
        return {
            place: "; ".join(dict.fromkeys(why[part] for part in members))
            for place, members in enumerate(table.values())
            if all(self._row_of_part[part] is None for part in members)
        }


def stepped_squares(gradients: Gradients) -> dict[str, Tensor]:
    """Σg² of every gradient as the optimizer gets it; also before a clip, where one was seen."""
    before, scale = gradients.table.sum_squares, gradients.scale
    if not isinstance(scale, float) or scale != 1.0:
        before = before / torch.as_tensor(scale, device=before.device).double() ** 2
    if gradients.coefficients is None:
        return {"stepped": before}
    return {"stepped": before * gradients.coefficients.to(before.device) ** 2, "before_clip": before}


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
