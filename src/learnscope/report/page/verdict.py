"""The first thing on a page: what to think of the run, in one sentence."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from learnscope.findings.checks import Check
from learnscope.quantities.outputs import Loss
from learnscope.reading.course.best import Best, best_step
from learnscope.reading.gather import series
from learnscope.reading.words import count, listed, num
from learnscope.record import Finding
from learnscope.report.explanations import no_problems
from learnscope.report.facts import wall_seconds
from learnscope.store.reader import RunReader


def verdict_of(reader: RunReader, findings: Sequence[Finding], checks: Sequence[Check]) -> dict[str, Any]:
    """The sentence, how grave it is, and the figures beside it."""
    open_ones = [finding for finding in findings if finding.acknowledged is None and finding.against != "gone"]
    counts = Counter(finding.severity for finding in open_ones)
    grave = [finding for finding in open_ones if finding.severity != "info"]
    states = Counter(check.state for check in checks)
    best, loss = best_step(reader), series(reader, Loss.loss)
    return {
        "severity": grave[0].severity if grave else ("ok" if states["passed"] else "unknown"),
        "sentence": _sentence(reader, grave, checks),
        "counts": {name: counts[name] for name in ("critical", "warning", "info")},
        "checked": {state: states[state] for state in ("passed", "failed", "not measured", "not applicable")},
        "status": str(reader.status or "not recorded"), "seconds": wall_seconds(reader),
        "last_step": int(reader.columns().last_step), "best": _best(best),
        "loss": [_told(value) for value in (loss.values[0], loss.values[-1])] if len(loss) else None,
    }  # fmt: skip


def _told(value: float) -> str:
    return num(float(value)) if math.isfinite(value) else "not finite"


def _sentence(reader: RunReader, grave: Sequence[Finding], checks: Sequence[Check]) -> str:
    if not grave:
        if not len(reader.columns().heads):
            return "Nothing was recorded, so there is nothing to find."
        missing = [check.name for check in checks if check.state == "not measured"]
        if not any(check.state in ("passed", "failed") for check in checks) or not missing:
            return no_problems(checks)
        return f"No problems found; not checked: {listed(missing, 3)}."
    more = len(grave) - 1
    return f"{grave[0].title.rstrip('.')}." + (f" {count(more, 'more problem')} below." if more else "")


def _best(best: Best | None) -> dict[str, Any] | None:
    if best is None:
        return None
    name = best.quantity.name.replace("_", " ")
    return {
        "step": best.step, "value": best.value, "of": best.of, "name": name, "last": best.last,
        "last_step": best.last_step,
        "text": f"{name} {num(best.value)}, the best of {count(best.of, 'measurement')}",
    }  # fmt: skip
