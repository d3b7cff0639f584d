"""How gradients flow: their size per layer, what is lost to zeros, NaN and clipping, and how noisy they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from learnscope.core.gradients import Gradients
from learnscope.core.handed import MicroBatches
from learnscope.core.moment import Moment
from learnscope.core.probe import At, Probe
from learnscope.core.stepped import NOT_STEPPED
from learnscope.probes.gradients.flow_rows import GradientRows, with_spread
from learnscope.quantities.gradients import GradientFlow as Q
from learnscope.record import Column, Measurement, Table
from learnscope.tensor.gradients.gradient import sum_squares
from learnscope.tensor.gradients.noise import Weighting, noise_scale_parts
from learnscope.tensor.gradients.sketch import SIZE, sketch, sketched_cosines

EARLY = 10
"""Measurements from the start of a run that always have everything."""

NO_GRADIENTS = "no parameter has a gradient"
ZERO = "its gradient is 0: it has no direction"
UNKNOWN_WEIGHTS = (
    "its micro-batches have unequal sizes, and how the loop weighs them is not known: say so, "
    "GradientFlow(weighted_by='number'), 'size' or 'sum'"
)


class GradientFlow(Probe):
    """Gradient norms overall, per layer, per component and per optimizer group.

    Gradients are read once, before clipping where there is one; what the optimizer was given is that times
    the clip's coefficient. Loss scaling is divided out. Statistics of NaN gradients are null.

    Of several optimizers, each parameter's gradient is the one that its own optimizer was given, at its last step
    within the training step. Layers and groups of an optimizer that did not step are null with this reason; the model's
    numbers are then those of the others, and the record's note `not_stepped` names the groups.
    """

    every: int = 10
    at: At = "before_step"
    per_tensor: bool = False
    """Also the norm of every single tensor."""
    weights_every: int = 10
    """‖W‖ takes a pass over the weights, which change slowly: the first ten measurements and then those of
    every so many steps have it. 0: none has."""
    noise_scale: bool = True
    """Measure the noise scale where a step has several micro-batches."""
    weighted_by: Weighting | None = None
    """How the loop weighs micro-batches of unequal sizes (`w.micro_batch`). `number`: the mean loss of each is divided
    by how many there are. `size`: each counts by its share of the step's examples or tokens. `sum`: losses are sums.
    None: not known; steps with unequal sizes then have no noise scale, as gradients do not tell."""
    smoothing: float = 0.9
    """Decay of the averages whose ratio is the noise scale."""
    stability: bool = False
    """Compare with the previous measurement through a sketch of `sketch_size` numbers a tensor."""
    sketch_size: int = SIZE
    """Tensors of up to so many entries are compared exactly. Best a prime; four times as many halve the error."""
    variance: bool = False
    """Also the mean and the variance of the entries, which take a pass of their own."""

    needs = frozenset({"grads"})
    uses = frozenset({"micro_batches", "weight_norms"})
    reads_only = True
    cost = "one pass over the gradients; the weights too, every `weights_every` steps"

    def reads_spread(self) -> bool:
        return self.variance

    def measure(self, moment: Moment) -> Measurement:
        gradients = moment.gradients
        idle = _idle_groups(moment, gradients)
        notes = {"not_stepped": idle} if idle else {}
        if not gradients.names:
            norm = Q.norm.column([None], {"stage": "stepped"}, {0: NO_GRADIENTS})
            missing = Q.without_gradient.column([len(gradients.missing)])
            return Measurement([Table("model", ["model"], [norm, missing]), *self._idle(moment)], notes=notes)
        flow = GradientRows.of(moment, gradients)
        tables = [self._model(moment, flow), self._layers(moment, flow)]
        tables += [_table(moment, flow, kind) for kind in self._kinds(moment)]
        tables += [*self._idle(moment), _candidates(moment, flow)]
        if self.variance:  # of the model, the layers and the components
            tables[:3] = [with_spread(moment, gradients, table, flow.labels) for table in tables[:3]]
        return Measurement(tables, finish=_once_read, notes=notes)

    def _model(self, moment: Moment, flow: GradientRows) -> Table:
        gradients = flow.gradients
        bad = (gradients.table.nan + gradients.table.inf) > 0
        columns = [
            Q.nonfinite_tensors.column(bad.sum().reshape(1)),
            Q.without_gradient.column([len(gradients.missing)]),
        ]
        if gradients.coefficients is not None:
            columns.append(Q.clip_coefficient.column(gradients.coefficients.min().reshape(1)))
        if self.noise_scale and moment.micro_batches is not None:
            columns += self._noise(moment, moment.micro_batches, flow.numbers[:, 0].sum())
        return _table(moment, flow, "model", columns)

    def _layers(self, moment: Moment, flow: GradientRows) -> Table:
        columns = []
        positions = flow.gradients.positions
        if self._weighs(moment):
            weights = moment.once("weight_sum_squares", lambda: _weight_squares(moment, positions))
            segments = moment.subject.segments("layer", positions)
            ratio = (segments.sum(flow.numbers[:, 0]) / segments.sum(weights)).sqrt()
            columns.append(Q.gradient_to_weight.column(ratio, flow.labels))
        if self.stability:
            columns += self._stability(moment, flow.gradients)
        return _table(moment, flow, "layer", columns)

    def _kinds(self, moment: Moment) -> list[str]:
        return ["component", *moment.subject.group_kinds, *(["tensor"] if self.per_tensor else [])]

    def _idle(self, moment: Moment) -> list[Table]:
        """Rows without a number for what belongs to optimizers that did not step."""
        unstepped, tables = moment.gradients.unstepped, []
        for kind in ["layer", *self._kinds(moment)] if unstepped else ():
            every = moment.subject.segments(kind, range(len(moment.subject.parameters)))
            scopes = [s for s, held in zip(every.scopes, every.members, strict=True) if set(held) <= set(unstepped)]
            if scopes:
                tables.append(Table(kind, scopes, [Q.norm.cells([NOT_STEPPED] * len(scopes), stage="stepped")]))
        return tables

    def _weighs(self, moment: Moment) -> bool:
        """Whether this measurement has the weights' norms; decided by counts, so that a resumed run agrees."""
        if not self.weights_every:
            return False
        early = moment.state.get("measured", 0)
        if early < EARLY:
            moment.state["measured"] = early + 1
            return True
        often = moment.source != "watch" or not isinstance(self.every, int) or self.every >= self.weights_every
        return often or moment.step % self.weights_every == 0

    def _noise(self, moment: Moment, micro: MicroBatches, total: Tensor) -> list[Column]:
        """Unbiased S and |G|² of this step, and the ratio of their running averages."""
        unknown = self.weighted_by is None and len(set(micro.sizes or ())) > 1
        squares = torch.stack(list(micro.sum_squares))
        signal, noise = noise_scale_parts(squares, micro.accumulated, micro.sizes, self.weighted_by or "size")
        # the micro-batches may still carry the loss scale: bring them to the units of the gradient itself; one that is
        # averaged over ranks does not tell them, and only the ratio, which has no units, is recorded
        units = torch.ones_like(total) if micro.of_one_rank else total / micro.accumulated
        units = torch.full_like(units, torch.nan) if unknown else units
        state = moment.state
        for key, value in (("noise", noise * units), ("signal", signal * units)):
            last = state[key].to(value.device) if key in state else torch.full_like(value, torch.nan)
            average = self.smoothing * last + (1 - self.smoothing) * value
            # a step that is not finite must not spoil the averages of all that follow
            average = torch.where(last.isfinite(), average, value)
            state[key] = torch.where(value.isfinite(), average, last).reshape(())
        ratio = torch.where(state["signal"] > 0, state["noise"] / state["signal"], torch.nan)
        unit = "micro-batches" if micro.sizes is None else "as given to w.micro_batch"
        scale = Q.noise_scale.column(ratio.reshape(1), {"unit": unit})
        if micro.of_one_rank:
            return [scale]
        if unknown:
            return [scale, Q.noise.cells([UNKNOWN_WEIGHTS]), Q.signal.cells([UNKNOWN_WEIGHTS])]
        return [
            scale,
            Q.noise.column((noise * units).reshape(1)),
            Q.signal.column((signal * units).reshape(1)),
        ]

    def _stability(self, moment: Moment, gradients: Gradients) -> list[Column]:
        state = moment.state
        now = torch.stack([sketch(g, self.sketch_size) for g in gradients.tensors]).double()
        last, names = state.get("sketch"), state.get("sketch_names")
        state["sketch"], state["sketch_names"] = now, list(gradients.names)
        if last is None or names != list(gradients.names) or last.shape != now.shape:
            return []
        entries = [g.numel() for g in gradients.tensors]
        segments = moment.subject.segments("layer", gradients.positions)
        cosine, error = sketched_cosines(now, last.to(now.device), entries, segments)
        return [Q.stability.column(cosine), Q.stability_error.column(error)]


def _weight_squares(moment: Moment, positions: Sequence[int]) -> Tensor:
    """Σw² of every parameter before its own optimizer's step."""
    stepped = moment.handed.stepped
    earlier = {} if stepped is None else {i: stepped.weights[i] for i in positions if i in stepped.weights}
    left = [i for i in positions if i not in earlier]
    now = sum_squares([moment.subject.parameters[i].detach() for i in left])
    if not earlier:
        return now
    by_position = {**dict(zip(left, now, strict=True)), **earlier}
    device = by_position[positions[0]].device
    return torch.stack([by_position[i].to(device) for i in positions])


def _idle_groups(moment: Moment, gradients: Gradients) -> list[str]:
    """The groups of optimizers that did not step."""
    unstepped = set(gradients.unstepped)
    return [name for name, members in moment.subject.scopes("group").items() if unstepped.intersection(members)]


def _table(moment: Moment, flow: GradientRows, kind: str, more: Sequence[Column] | None = None) -> Table:
    """Norms; with `more` columns also what is zero, NaN or infinite."""
    segments = moment.subject.segments(kind, flow.gradients.positions)
    before, stepped, zeros, nan, inf, entries = segments.sum(flow.numbers).unbind(1)
    columns = flow.norm_columns(before, stepped)
    if more is not None:
        columns += [Q.zero_share.column(zeros / entries), Q.nan.column(nan), Q.inf.column(inf), *more]
    return Table(kind, segments.scopes, columns)


def _candidates(moment: Moment, flow: GradientRows) -> Table:
    """Bad entries of every tensor in backward order; only the first is kept once they are read."""
    reached = {name: place for place, name in enumerate(moment.subject.backward_order)}
    names = flow.gradients.names
    # what the recorded backward never reached comes last, in the reverse of the model's order
    order = sorted(range(len(names)), key=lambda i: (reached.get(names[i], len(reached)), -i))
    bad = flow.numbers[:, 3] + flow.numbers[:, 4]
    return Table("tensor", [names[i] for i in order], [Q.first_nonfinite.column(bad[order])])


def _once_read(tables: Sequence[Table]) -> list[Table]:
    """Say why there is no noise scale or stability, and keep only the first tensor that is not finite."""
    model, layers, *others, candidates = tables
    rest = [_with_noise_reason(model), _with_stability_reasons(layers), *others]
    for name, value in zip(candidates.scopes, candidates.columns[0].values, strict=True):
        if value:
            return [*rest, Table("tensor", [name], [Q.first_nonfinite.column([value])])]
    return rest


def _with_noise_reason(model: Table) -> Table:
    unknown = any(UNKNOWN_WEIGHTS in column.status.values() for column in model.columns)
    status = {0: UNKNOWN_WEIGHTS if unknown else "the smoothed signal is not positive"}
    columns = [
        replace(c, status=status) if c.name == Q.noise_scale.name and c.values[0] is None else c for c in model.columns
    ]
    return replace(model, columns=columns)


def _with_stability_reasons(layers: Table) -> Table:
    """A gradient without a direction: 0 or not finite, now or then."""
    norms = next(column.values for column in layers.columns if column.name == Q.norm.name)
    why = [
        "its gradient is not finite" if norm is None else "its gradient is or was 0 or not finite" if norm else ZERO
        for norm in norms
    ]
    columns = []
    for column in layers.columns:
        if column.name in (Q.stability.name, Q.stability_error.name):
            missing = [place for place, value in enumerate(column.values) if value is None]
            column = replace(column, status={place: why[place] for place in missing})
        columns.append(column)
    return replace(layers, columns=columns)
