"""Steps that never happened because their gradients were not finite."""

from __future__ import annotations

from collections.abc import Sequence

from learnscope.findings import analysis
from learnscope.findings.evidence import evidence_over
from learnscope.quantities.gradients import LostSteps
from learnscope.quantities.outputs import Loss
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import series
from learnscope.reading.lost import Lost, lost_steps, rows_told
from learnscope.reading.words import count, listed, num, percent
from learnscope.record import Finding, nonfinite
from learnscope.store.reader import RunReader

SCALER_SHARE, SCALER_STEPS = 0.01, 3
"""A GradScaler looks for its scale: the first steps that it leaves out in a row are not counted, nor are later ones
below this share of all steps, or fewer than so many."""
IN_A_ROW = 20
"""Steps left out one after another from which the training has stopped, whoever leaves them out."""


@analysis(place=10, check="steps that never happened", needs=[(LostSteps.lost_steps, LostSteps.skipped)])
def skipped_steps(reader: RunReader, cuts: Cuts) -> list[Finding]:
    """Attempts at steps whose gradients or loss were not finite, and that were skipped or ended the run."""
    attempts = [lost for lost in lost_steps(reader) if lost.skipped is not False and lost.is_nonfinite]
    lost = [each for each in attempts if each.cause != "scaler"] + _beyond_usual(attempts, reader.last_step)
    if not lost:
        return []
    lost.sort(key=lambda each: (each.step, each.attempt))
    first, taken = lost[0], reader.last_step
    total = max(len(lost), int(series(reader, LostSteps.lost_steps).values[-1:].sum()))
    stopped = lost[-1].skipped is None or lost[-1].step > taken or any(each.attempt >= IN_A_ROW for each in lost)
    share = total / max(1, taken + total)
    ends = stopped and len(lost) == 1
    where = f", first in {first.tensor}" if first.tensor else ""
    title = (
        f"The run ended at step {first.step:,}: its gradients were not finite{where}"
        if ends
        else f"{count(total, 'step')} never happened, from step {first.step:,}: gradients not finite{where}"
    )
    return [
        Finding(
            kind="skipped_steps",
            severity="critical" if stopped or share > 0.2 else "warning",
            title=title,
            detail=f"{_told(lost, total, share)} {_first(reader, first)}{rows_told(reader, first.step)}",
            advice=_advice(first),
            evidence=evidence_over(
                (first.step, lost[-1].step), LostSteps.skipped.probe, LostSteps.skipped, len(lost), float(total)
            ),
            scopes=sorted({each.tensor for each in lost if each.tensor})[: cuts.names_listed],
            cause=True,
            explains=["nonfinite", "bad_batch", "loss_spike", "backward_without_step"],
            since=first.step,
        )
    ]


def _beyond_usual(attempts: Sequence[Lost], steps: int) -> list[Lost]:
    """What a GradScaler left out beyond the search for its scale."""
    scaler = [each for each in attempts if each.cause == "scaler"]
    if any(each.attempt >= IN_A_ROW for each in scaler):
        return scaler
    later = [each for each in scaler if each.step != scaler[0].step] if scaler and scaler[0].step <= 2 else scaler
    return later if len(later) >= SCALER_STEPS and len(later) > SCALER_SHARE * steps else []


def _told(lost: Sequence[Lost], total: int, share: float) -> str:
    steps = listed(list(dict.fromkeys(f"{each.step:,}" for each in lost)), 5)
    by = {each.cause for each in lost}
    who = "A GradScaler left them out" if by == {"scaler"} else f"What showed it: {lost[0].why}"
    return f"{count(total, 'attempt')} at a step, {percent(share)} of all, came to nothing: at step {steps}. {who}."


def _first(reader: RunReader, first: Lost) -> str:
    tensor = f"The first bad tensor in backward order is {first.tensor}" if first.tensor else ""
    tensors = f", of {count(int(first.bad_tensors), 'tensor')} with NaN or infinity" if first.bad_tensors else ""
    if nonfinite(first.loss_status):
        loss = f"The loss of step {first.step:,} was {first.loss_status}, so it began in the forward pass."
    elif first.loss is not None:
        usual = series(reader, Loss.loss).at(first.step - 1)
        beside = f" ({num(usual)} at the step before)" if usual is not None else ""
        loss = f"The loss of step {first.step:,} was {num(first.loss)}{beside}: it began in the backward pass."
    else:
        loss = "The loss of that attempt was not logged."
    return f"{tensor}{tensors}. {loss}" if tensor else loss


def _advice(first: Lost) -> str:
    batch = f"Look at the batch of step {first.step:,}"
    if nonfinite(first.loss_status):
        return f"{batch}: inputs or targets that are not finite, empty or fully masked rows, log(0), a division by 0."
    after = f" that {first.tensor} feeds" if first.tensor else ""
    return (
        f"{batch}, and at the operation{after} for a derivative that does not exist or overflows: a square root or a "
        "norm at 0, half precision. torch.autograd.detect_anomaly() on that batch names it."
    )
