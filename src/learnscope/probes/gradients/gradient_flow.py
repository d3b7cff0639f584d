"""How gradients flow: their size per layer, what is lost to zeros, NaN and clipping, and how noisy they are."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from learnscope.core.gradients import Gradients
from learnscope.core.handed import MicroBatches
from learnscope.core.moment import Moment
from learnscope.core.probe import At, Probe, Schedule
from learnscope.core.stepped import NOT_STEPPED
from learnscope.probes.gradients.flow_spread import spread
from learnscope.probes.gradients.flow_tables import FlowTables
from learnscope.quantities.gradients import GradientFlow as Q
from learnscope.record import Measurement, Table
from learnscope.tensor.gradients.gradient import sum_squares
from learnscope.tensor.gradients.limit import limit_share
from learnscope.tensor.gradients.noise import Weighting, noise_scale_parts
from learnscope.tensor.gradients.sketch import SIZE, sketch, sketched_cosines

EARLY = 10
"""Measurements from the start of a run that always have everything."""

NO_GRADIENTS = "no parameter has a gradient"


class GradientFlow(Probe):
    """Gradient norms overall, per layer, per component and per optimizer group.

    Gradients are read once, before clipping where there is one; what the optimizer was given is that times
    the clip's coefficient. Loss scaling is divided out. Statistics of NaN gradients are null.

    Of several optimizers, each parameter's gradient is the one that its own optimizer was given, at its last step
    within the training step. Layers and groups of an optimizer that did not step are null with this reason; the model's
    numbers are then those of the others, and the record's note `not_stepped` names the groups.
    """

    every: Schedule = 10
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
        micro = moment.micro_batches if self.noise_scale else None
        unknown = micro is not None and self.weighted_by is None and len(set(micro.sizes or ())) > 1
        plan = FlowTables(
            moment.subject.joint_segments(("model", "layer", *self._kinds(moment)), gradients.positions),
            {} if gradients.origin == "accumulated" else {"origin": gradients.origin},
            gradients.names,
            moment.subject.backward_order,
            len(gradients.missing),
            None if micro is None else "micro-batches" if micro.sizes is None else "as given to w.micro_batch",
            unknown,
            micro is not None and micro.of_one_rank,
            self._idle(moment),
        )
        return Measurement(packed=self._numbers(moment, gradients, micro, unknown), unpack=plan, notes=notes)

    def _numbers(
        self, moment: Moment, gradients: Gradients, micro: MicroBatches | None, unknown: bool
    ) -> dict[str, Tensor]:
        """All that is to be read from the device; see `flow_tables.Arrays`."""
        table = gradients.table
        numbers = {"squares": table.sum_squares, "zeros": table.zeros, "nan": table.nan, "inf": table.inf}
        if not (isinstance(gradients.scale, float) and gradients.scale == 1.0):
            numbers["scale"] = torch.as_tensor(gradients.scale, device=table.sum_squares.device).double()
        if (share := limit_share(gradients.tensors, table)) is not None:
            numbers["limit"] = share
        if gradients.coefficients is not None:
            numbers["coefficients"] = gradients.coefficients
        if micro is not None:
            scale = numbers.get("scale", torch.ones((), dtype=torch.float64, device=table.sum_squares.device))
            numbers["noise"] = self._noise(moment, micro, (table.sum_squares / scale.square()).sum(), unknown)
        if self._weighs(moment):
            positions = gradients.positions
            numbers["weights"] = moment.once("weight_sum_squares", lambda: _weight_squares(moment, positions))
        if self.stability and (cosines := self._stability(moment, gradients)) is not None:
            numbers["stability"] = cosines
        if self.variance:
            for kind in ("model", "layer", "component"):
                numbers[f"spread {kind}"] = spread(moment, gradients, kind)
        return numbers

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

    def _noise(self, moment: Moment, micro: MicroBatches, total: Tensor, unknown: bool) -> Tensor:
        """The ratio of the running averages of S and |G|², and both of this step, unbiased."""
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
        return torch.stack([ratio.reshape(()), (noise * units).reshape(()), (signal * units).reshape(())])

    def _stability(self, moment: Moment, gradients: Gradients) -> Tensor | None:
        """Cosine with the previous measurement and its error, by layer."""
        state = moment.state
        now = torch.stack([sketch(g, self.sketch_size) for g in gradients.tensors]).double()
        last, names = state.get("sketch"), state.get("sketch_names")
        state["sketch"], state["sketch_names"] = now, list(gradients.names)
        if last is None or names != list(gradients.names) or last.shape != now.shape:
            return None
        entries = [g.numel() for g in gradients.tensors]
        segments = moment.subject.segments("layer", gradients.positions)
        cosine, error = sketched_cosines(now, last.to(now.device), entries, segments)
        return torch.stack([cosine, error])


def _weight_squares(moment: Moment, positions: Sequence[int]) -> Tensor:
    """Σw² of every parameter before its own optimizer's step."""
    stepped = moment.handed.stepped
    earlier = {} if stepped is None else {i: stepped.weights[i] for i in positions if i in stepped.weights}
    left = [i for i in positions if i not in earlier]
    now = sum_squares([moment.subject.parameters[i] for i in left])
    if not earlier:
        return now
    by_position = {**dict(zip(left, now, strict=True)), **earlier}
    device = by_position[positions[0]].device
    return torch.stack([by_position[i].to(device) for i in positions])


def _idle_groups(moment: Moment, gradients: Gradients) -> list[str]:
    """The groups of optimizers that did not step."""
    if not gradients.unstepped:  # as nearly always
        return []
    unstepped = set(gradients.unstepped)
    return [name for name, members in moment.subject.scopes("group").items() if unstepped.intersection(members)]
