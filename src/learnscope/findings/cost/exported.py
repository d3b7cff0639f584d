"""How fast copies of an audited model are whose weights are really held in fewer bits."""

from __future__ import annotations

from learnscope.findings import analysis, not_an_audit
from learnscope.reading.audit import read_audit
from learnscope.reading.audit_numbers import Number, duration, size
from learnscope.reading.cost.audit_cost import Copy, Exported
from learnscope.reading.cuts import Cuts
from learnscope.reading.words import listed, num
from learnscope.record import Evidence, Finding
from learnscope.store.reader import RunReader

NOTABLE = 1.05
"""Times as fast, or its inverse, from which a difference is called one if its interval allows it."""
WITHOUT_INTERVAL = 2.0
"""Times faster or slower from which a ratio says something although too few passes were timed for an interval."""
PLAINLY_SLOWER = 0.8
"""Times as fast up to which it is said how many times slower that is."""


@analysis(place=181, check="speed of packed weights (audit)", unless=not_an_audit)
def audit_exported(reader: RunReader, cuts: Cuts) -> list[Finding]:  # noqa: ARG001 (judged by no cut)
    part = read_audit(reader).exported
    found = None if part is None else exported(part)
    return [] if found is None else [found]


def exported(part: Exported) -> Finding | None:
    """All copies that were timed, the slower ones first: nobody should find out later."""
    copies = part.copies
    original = copies.pop("original", None)
    timed = {name: copy for name, copy in copies.items() if copy.speed_up.value is not None}
    if not timed or original is None or original.latency.value is None:
        return None
    ordered = dict(sorted(timed.items(), key=lambda item: item[1].speed_up.value or 0))
    each = "; ".join(
        f"{label} {duration(copy.latency.value or 0)} a pass in {size(copy.held.value or 0)}"
        for label, copy in {"the model itself": original, **timed}.items()
    )
    ratios = "; ".join(f"{name} {_exactly(copy.speed_up)}" for name, copy in ordered.items())
    told, fast = [_told(name, copy.speed_up) for name, copy in ordered.items()], _fast(timed)
    worst = next(iter(ordered.values()))
    return Finding(
        kind="audit_exported_speed", severity="info",
        title=f"Really packed, on this machine: {listed(told, len(told))}",
        detail=f"Timed in turn on one batch: {each}. Times as fast as the model: {ratios}.{_decoding(timed)} These are "
        "times of torchao's integers.",
        advice=f"Where speed counts on a machine like this one, use {listed(fast, 2)} through torchao." if fast
        else "Use fewer bits to save memory, not time, unless the machine that counts has other kernels.",
        evidence=Evidence(probe=part.probe, name="speed_up", n=worst.n or 0, value=worst.speed_up.value,
                          interval=worst.speed_up.interval), scopes=list(timed),
    )  # fmt: skip


def _side(ratio: Number) -> int:
    """1: faster; −1: slower; 0: neither can be told. Without an interval, only what is far off."""
    value = ratio.value or 0.0
    low, high = ratio.interval or (value / WITHOUT_INTERVAL, value * WITHOUT_INTERVAL)
    return 1 if low > 1 and value >= NOTABLE else -1 if high < 1 and value <= 1 / NOTABLE else 0


def _told(name: str, ratio: Number) -> str:
    """
    >>> _told("int4", Number(1 / 36, 0.027, 0.029)), _told("int8", Number(1.6, 1.5, 1.7))
    ('int4 is 36 times slower', 'int8 is 1.6 times as fast')
    >>> _told("int8", Number(1.0, 0.98, 1.02)), _told("int8", Number(0.8)), _told("int8", Number(0.1))
    ('int8 is as fast', 'int8 cannot be told from the model', 'int8 is 10 times slower')
    """
    value, side = ratio.value or 0.0, _side(ratio)
    if side < 0 and value <= PLAINLY_SLOWER:
        return f"{name} is {num(1 / value)} times slower"
    if side < 0:
        return f"{name} is slower ({num(value)} times as fast)"
    if side > 0:
        return f"{name} is {num(value)} times as fast"
    return f"{name} is as fast" if ratio.interval is not None else f"{name} cannot be told from the model"


def _exactly(ratio: Number) -> str:
    ends = "" if ratio.interval is None else " (95 % interval {} to {})".format(*map(num, ratio.interval))
    return f"{num(ratio.value or 0.0)}{ends}"


def _fast(timed: dict[str, Copy]) -> list[str]:
    """Copies that are faster in a pass and, where that was timed, not slower in decoding."""
    return [
        name for name, copy in timed.items()
        if _side(copy.speed_up) > 0 and (copy.decode_speed_up.value is None or _side(copy.decode_speed_up) >= 0)
    ]  # fmt: skip


def _decoding(timed: dict[str, Copy]) -> str:
    known = [f"{_told(name, c.decode_speed_up)}" for name, c in timed.items() if c.decode_speed_up.value is not None]
    return f" Decoding at batch 1: {listed(known, len(known))}." if known else ""
