"""What the training loop calls, counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from learnscope.core.calls import schedule_calls
from learnscope.core.moment import Moment
from learnscope.core.probe import At, Probe, Schedule
from learnscope.quantities.updates import LoopCalls as Q
from learnscope.record import Measurement, Table

_COUNTED = (
    Q.steps, Q.backwards, Q.uncleared_steps, Q.cleared_steps, Q.steps_without_backward, Q.backwards_without_step,
    Q.eval_mode_steps, Q.weights_written, Q.empty_clips,
)  # fmt: skip
NOT_SEEN = "the model was compiled before the session opened: its forwards cannot be seen"
NO_SCHEDULE = "no torch schedule was stepped"
MOMENTUM = 1.0
"""In place of the age of a momentum."""
NO_STATE = "the optimizer keeps no step and no momentum"


class LoopCalls(Probe):
    """Counts of the loop's calls since the last record: steps, backward passes, clearing, modes, schedules.

    Gradients are followed on a few parameters that are spread over the model. In eval mode counts what trains: a batch
    norm if its own parameters do, a dropout if it stands between trained parameters, each only if the module that
    contains it is in eval mode too, so that a frozen backbone and batch norms that were frozen by themselves do not.
    Evaluations are forwards of the model itself, not of a part of it, and never those of probes; a forward that
    `torch.utils.checkpoint` runs without gradients for the whole model is taken for one.

    A loop that finishes has a last record, with the counts since the one before.
    """

    every: Schedule = 10
    at: At = "after_step"
    needs = frozenset({"calls"})
    reads_only = True
    cost = "a few counters; at each step a look at the flags of a few modules and the gradients of a few tensors"

    def open(self, moment: Moment) -> None:
        moment.state["_live"] = moment.subject.calls

    def settle(self, state: dict[str, Any]) -> None:
        if "_live" in state:  # what was counted since the last record goes on in a resumed session
            state["carried"] = _since(state["_live"].totals(), state)

    def measure(self, moment: Moment) -> Measurement | None:
        calls, state = moment.subject.calls, moment.state
        totals = calls.totals()
        counts = _since(totals, state)
        resets = _state_resets(moment)
        state["_counted"], state["_live"] = totals, calls
        state.pop("carried", None)
        if moment.phase == "end" and not any(counts.values()):
            return None
        columns = [quantity.column([counts.get(quantity.name, 0)]) for quantity in _COUNTED]
        evaluations = counts.get(Q.train_mode_evaluations.name, 0) if calls.evaluated else NOT_SEEN
        columns.append(Q.train_mode_evaluations.cells([evaluations]))
        if moment.optimizers:
            before = schedule_calls(counts)
            known = calls.has_schedule
            total = sum(number * steps for number, steps in before.items())
            columns += [
                Q.state_resets.cells([NO_STATE if resets is None else resets]),
                Q.scheduler_steps.cells([total if known else NO_SCHEDULE]),
                Q.rate_changes.cells([max(before, default=0) if known else NO_SCHEDULE]),
            ]
        in_eval = counts.get(Q.eval_mode_steps.name, 0) and calls.eval_modules
        notes = {"eval_modules": list(calls.eval_modules)} if in_eval else {}
        return Measurement([Table("model", ["model"], columns)], notes=notes)


def _since(totals: Mapping[str, int], state: Mapping[str, Any]) -> dict[str, int]:
    """Counts since the last record, with those of the session that this one continues."""
    counted, carried = state.get("_counted", {}), state.get("carried", {}) if "_counted" not in state else {}
    return {name: totals.get(name, 0) - counted.get(name, 0) + carried.get(name, 0) for name in totals.keys() | carried}


def _state_resets(moment: Moment) -> int | None:
    """Groups whose state began again since the last record; None if no group has any."""
    before: dict[str, list[float]] = moment.state.get("ages", {})
    since = moment.step - moment.state.get("aged", 0)
    now, resets = {}, 0
    for number, optimizer in enumerate(moment.optimizers):
        for place, group in enumerate(optimizer.param_groups):
            known = before.get(f"{number}/{place}")
            aged = _age(optimizer, group["params"], known)
            if aged is not None:
                now[f"{number}/{place}"] = list(aged)
                resets += known is not None and _is_reset(known[1], aged[1], since, group["params"][int(aged[0])])
    moment.state["ages"], moment.state["aged"] = now, moment.step
    return resets if now else None


def _is_reset(before: float, age: float, since: int, parameter: Tensor) -> bool:
    """Whether a state is younger than it was. One that began again right after the last record is as old again; a
    momentum, whose age is not known, never is."""
    return age < before or (age == before == since > MOMENTUM and parameter.grad is not None)


def _age(optimizer: Optimizer, parameters: Sequence[Tensor], known: Sequence[float] | None) -> tuple[int, float] | None:
    """How old a group's state is: the place of one parameter with its Adam `step`, or 1 with a momentum.

    It is the parameter of the last record, whose state may be gone (0), else the first that has a state.
    """
    places = range(len(parameters)) if known is None else [int(known[0])]
    for place in places:
        state = optimizer.state.get(parameters[place], {}) if place < len(parameters) else {}
        if state.get("step") is not None:
            return place, float(state["step"])
        if isinstance(state.get("momentum_buffer"), Tensor):
            return place, MOMENTUM
    return None if known is None else (int(known[0]), 0.0)
