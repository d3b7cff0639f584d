"""What is said of probes that have recorded nothing."""

from __future__ import annotations

from learnscope.core.schedules import DENSE
from learnscope.session.bound import Bound
from learnscope.session.engine import FED, Engine


def unfed_message(bound: Bound) -> str:
    """Which call is missing for a probe that needs what the loop hands over."""
    calls = {"logged": "w.log(loss=loss)", "batch": "w.batch(batch)", "examples": "w.examples(ids, logits, targets)"}
    missing = ", ".join(calls[need] for need in sorted(bound.probe.needs & FED))
    return f"{bound.label} has recorded nothing: call {missing} in the loop, or leave this probe out"


def warn_of_unfired(engine: Engine, steps: int, *, epochs: int) -> None:
    """After a loop of so many steps and epochs: which probes have not fired, and why."""
    for bound in engine.bound:
        if bound.fired or steps == 0:
            continue
        if bound.probe.needs & FED and isinstance(bound.probe.every, int) and bound.probe.every <= steps:
            engine.warn(f"{bound.label} unfed", unfed_message(bound))
        elif bound.probe.at == "epoch":
            if epochs == 0:
                engine.warn(bound.label, f"{bound.label} looks once an epoch: call w.end_epoch() in the loop")
        elif not bound.by_default:
            engine.warn(
                bound.label,
                f"{bound.label}(every={bound.probe.every}) was never due in {steps} steps: make it more frequent",
            )


def unmeasured_end(engine: Engine, steps: int, first_step: int) -> list[Bound]:
    """Probes that have not looked at the last step: those that count calls; of the default ones, the holdout's, and in
    a short run that of changes.

    (In a longer one, which may be resumed, the next change begins where the schedule has it.)"""
    counting = [b for b in engine.bound if "calls" in b.probe.needs and b.probe.at != "end"]
    if steps == first_step:
        return counting
    looking = {"holdout", "previous"} if steps < DENSE else {"holdout"}
    behind = [b for b in engine.bound if b.by_default and b.last_step != steps]
    return [*(bound for bound in behind if bound.probe.needs & looking), *counting]
