"""How gradients flow: their size per layer, what is lost to zeros, NaN and clipping, and how noisy they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from learnscope.core.gradients import Gradients
from learnscope.core.handed import MicroBatches
from learnscope.core.moment import Moment
from learnscope.core.probe import At, Probe
from learnscope.probes.gradients.flow_rows import Flow
from learnscope.probes.gradients.gradient_spread import spoilt_by_clip, with_spread
from learnscope.quantities import Quantities
from learnscope.quantities.gradients import GradientFlow as Q
from learnscope.record import Column, Measurement, Table
from learnscope.tensor.gradients.gradient import sum_squares
from learnscope.tensor.gradients.sketch import sketch

EARLY = 10
"""Measurements from the start of a run that always have everything."""


NO_GRADIENTS = "no parameter has a gradient"


class GradientFlow(Probe):
    """Gradient norms overall, per layer, per component and per optimizer group.

    Gradients are read once, before clipping where there is one; what the optimizer was given is that times
    the clip's coefficient. Loss scaling is divided out. Statistics of NaN gradients are null.
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
    smoothing: float = 0.9
    """Decay of the averages whose ratio is the noise scale."""
    stability: bool = False
    """Compare with the previous measurement through a sketch of `sketch_size` numbers a tensor."""
    sketch_size: int = 1024
    variance: bool = False
    """Also the mean and the variance of the entries, which take a pass of their own."""

    needs: ClassVar[frozenset[str]] = frozenset({"grads"})
    uses: ClassVar[frozenset[str]] = frozenset({"micro_batches"})
    reads_only: ClassVar[bool] = True
    quantities: ClassVar[type[Quantities]] = Q
    cost: ClassVar[str] = "one pass over the gradients; the weights too, every `weights_every` steps"

    def measure(self, moment: Moment) -> Measurement:
        gradients = moment.gradients
        if not gradients.names:
            columns = [
                Q.norm.column([None], {"stage": "stepped"}, {0: NO_GRADIENTS}),
                Q.without_gradient.column([len(gradients.missing)]),
            ]
            return Measurement([Table("model", ["model"], columns)])
        flow = Flow.of(moment, gradients)
        tables = [self._model(moment, flow), self._layers(moment, flow)]
        kinds = [
            "component",
            *moment.subject.group_kinds,
            *(["tensor"] if self.per_tensor else []),
        ]
        tables += [_table(moment, flow, kind, detailed=False) for kind in kinds]
        tables.append(_candidates(moment, flow))
        if not self.variance:
            return Measurement(tables, finish=_once_read)
        # of the model, the layers and the components
        tables[:3] = [with_spread(moment, gradients, table, flow.labels) for table in tables[:3]]
        return Measurement(tables, finish=lambda read: spoilt_by_clip(_once_read(read)))

    def _model(self, moment: Moment, flow: Flow) -> Table:
        table = _table(moment, flow, "model", detailed=True)
        columns = list(table.columns)
        bad = (flow.gradients.table.nan + flow.gradients.table.inf) > 0
        columns.append(Q.nonfinite_tensors.column(bad.sum().reshape(1)))
        columns.append(Q.without_gradient.column([len(flow.gradients.missing)]))
        if flow.gradients.coefficients is not None:
            columns.append(Q.clip_coefficient.column(flow.gradients.coefficients.min().reshape(1)))
        if self.noise_scale and moment.micro_batches is not None:
            columns += self._noise(moment, moment.micro_batches, flow.numbers[:, 0].sum())
        return Table("model", table.scopes, columns)

    def _layers(self, moment: Moment, flow: Flow) -> Table:
        table = _table(moment, flow, "layer", detailed=True)
        columns = list(table.columns)
        if self._weighs(moment):
            weights = moment.once("weight_sum_squares", lambda: _weights(moment, flow.gradients))
            segments = moment.subject.segments("layer", flow.gradients.positions)
            ratio = (segments.sum(flow.numbers[:, 0]) / segments.sum(weights)).sqrt()
            columns.append(Q.gradient_to_weight.column(ratio, flow.labels))
        if self.stability:
            columns += self._stability(moment, flow.gradients)
        return Table("layer", table.scopes, columns)

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
        signal, noise = noise_scale_parts(torch.stack(list(micro.sum_squares)), micro.accumulated, micro.sizes)
        # the micro-batches may still carry the loss scale: bring them to the units of the gradient itself
        units = total / micro.accumulated
        state = moment.state
        for key, value in (("noise", noise * units), ("signal", signal * units)):
            last = state[key].to(value.device) if key in state else torch.full_like(value, torch.nan)
            average = self.smoothing * last + (1 - self.smoothing) * value
            # a step that is not finite must not spoil the averages of all that follow
            kept = torch.where(last.isfinite(), average, value)
            state[key] = torch.where(value.isfinite(), kept, last).reshape(())
        ratio = torch.where(state["signal"] > 0, state["noise"] / state["signal"], torch.nan)
        unit = "micro-batches" if micro.sizes is None else "as given to w.micro_batch"
        return [
            Q.noise_scale.column(ratio.reshape(1), {"unit": unit}),
            Q.noise.column((noise * units).reshape(1)),
            Q.signal.column((signal * units).reshape(1)),
        ]

    def _stability(self, moment: Moment, gradients: Gradients) -> list[Column]:
        state = moment.state
        now = torch.stack([sketch(g, self.sketch_size) for g in gradients.tensors]).double()
        last, names = state.get("sketch"), state.get("sketch_names")
        state["sketch"], state["sketch_names"] = now, list(gradients.names)
        if last is None or names != list(gradients.names):
            return []
        segments = moment.subject.segments("layer", gradients.positions)
        last = last.to(now.device)
        inner, new, old = (segments.sum((a * b).sum(1)) for a, b in ((now, last), (now, now), (last, last)))
        return [Q.stability.column(inner / (new * old).sqrt())]


def noise_scale_parts(each: Tensor, accumulated: Tensor, sizes: Sequence[float] | None = None) -> tuple[Tensor, Tensor]:
    """Unbiased |G|² and S (arXiv 1812.06162, appendix A.1) from one step's micro-batches.

    `each` holds |w_i g_i|², `accumulated` is |Σ w_i g_i|², with w_i = b_i/B for micro-batches of `sizes` b_i
    (equal ones of size 1 unless given) and B = Σb_i. E|g_i|² = |G|² + S/b_i, so with the means over i of both
    sides, |G|² and S follow from it and from E|G_B|² = |G|² + S/B.
    """
    n = each.shape[0]
    b = each.new_ones(n) if sizes is None else each.new_tensor(list(sizes))
    big = b.sum()
    small_square = (each * (big / b).square()).mean()
    noise = (small_square - accumulated) / ((1 / b).mean() - 1 / big)
    return accumulated - noise / big, noise


def _table(moment: Moment, flow: Flow, kind: str, *, detailed: bool) -> Table:
    segments = moment.subject.segments(kind, flow.gradients.positions)
    before, stepped, zeros, nan, inf, entries = segments.sum(flow.numbers).unbind(1)
    columns = flow.norm_columns(before, stepped)
    if detailed:
        columns += [Q.zero_share.column(zeros / entries), Q.nan.column(nan), Q.inf.column(inf)]
    return Table(kind, segments.scopes, columns)


def _explained(column: Column) -> Column:
    if column.name != Q.noise_scale.name or column.values[0] is not None:
        return column
    return replace(column, status={0: "the smoothed signal is not positive"})


def _weights(moment: Moment, gradients: Gradients) -> Tensor:
    return sum_squares([moment.subject.parameters[i].detach() for i in gradients.positions])


def _candidates(moment: Moment, flow: Flow) -> Table:
    """Bad entries of every tensor in backward order, from which the first is kept once they are read."""
    seen = {name: place for place, name in enumerate(moment.subject.backward_order)}
    names = flow.gradients.names
    # what the recorded backward never reached comes last, the rest of the model's order reversed
    order = sorted(range(len(names)), key=lambda i: (seen.get(names[i], len(seen)), -i))
    bad = flow.numbers[:, 3] + flow.numbers[:, 4]
    return Table("tensor", [names[i] for i in order], [Q.first_nonfinite.column(bad[order])])


def _once_read(tables: Sequence[Table]) -> list[Table]:
    """Say why there is no noise scale, and keep only the first tensor that is not finite."""
    model, *others, candidates = tables
    rest = [replace(model, columns=[_explained(column) for column in model.columns]), *others]
    column = candidates.columns[0]
    for name, value in zip(candidates.scopes, column.values, strict=True):
        if value:
            return [*rest, Table("tensor", [name], [Q.first_nonfinite.column([value])])]
    return rest
