"""How fast fewer bits really are: copies of the model that hold packed integers, timed beside it."""

from __future__ import annotations

from learnscope.reading.audit_parts import Exported
from learnscope.reading.audit_words import duration, size
from learnscope.reading.words import num
from learnscope.record import Evidence, Finding

NOTABLE = 1.05
"""A ratio of medians nearer to 1 than this is called the same."""


def exported(part: Exported) -> Finding | None:
    """The fastest of the copies, and what all of them take."""
    timed = {name: copy for name, copy in part.copies.items() if copy.speed_up.value is not None}
    if not timed or part.original is None or part.original.latency.value is None:
        return None
    name, best = max(timed.items(), key=lambda item: item[1].speed_up.value or 0)
    gain = best.speed_up.value or 0
    faster, slower = gain >= NOTABLE, gain <= 1 / NOTABLE
    said = f"{num(gain)} times as fast as" if faster or slower else "as fast as"
    each = "; ".join(
        f"{other} {duration(copy.latency.value or 0)} a pass in {size(copy.held.value or 0)}"
        for other, copy in timed.items()
    )
    advice = (
        f"Deploy {name} through torchao where speed counts on a machine like this one."
        if faster
        else "Use fewer bits to save memory, not time, unless the machine that counts has other kernels."
    )
    return Finding(
        kind="audit_exported_speed",
        severity="info",
        title=f"Really packed, {name} is {said} the model itself",
        detail=f"Timed in turn on one batch: the model itself {duration(part.original.latency.value)} a pass in "
        f"{size(part.original.held.value or 0)}; {each}. These are times of torchao's integers.",
        advice=advice,
        evidence=Evidence(probe=part.probe, name="speed_up", n=best.n or 0, value=gain),
        scopes=list(timed),
    )
