"""From records to findings: statements about a run with their evidence and what to do about them.

Each analysis is a function of a run and of the cuts in the folder of its family, marked with `@analysis` and found by
its file. None needs torch.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable
from functools import cache
from importlib import import_module

from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import one_pass
from learnscope.record import SEVERITIES, Finding
from learnscope.store.reader import RunReader

__all__ = ["Cuts", "analysis", "find", "findings_of"]

Analysis = Callable[[RunReader, Cuts], Iterable[Finding]]
_PLACES: dict[Analysis, int] = {}


def find(reader: RunReader, cuts: Cuts | None = None) -> list[Finding]:
    """All findings of a run, the gravest first."""
    cuts, run = cuts or Cuts(), one_pass(reader)
    findings = [finding for function in _analyses() for finding in findings_of(function, run, cuts)]
    return sorted(findings, key=lambda finding: -SEVERITIES.index(finding.severity))


def analysis(*, place: int = 1000) -> Callable[[Analysis], Analysis]:
    """Mark a function of a run and of the cuts as an analysis; of findings equally grave, a lower place comes first."""

    def mark(function: Analysis) -> Analysis:
        _PLACES[function] = place
        return function

    return mark


def findings_of(function: Analysis, reader: RunReader, cuts: Cuts) -> list[Finding]:
    """The findings of an analysis, computed once for a run that was read in one pass."""
    run = one_pass(reader)
    return run.remember((function, cuts), lambda: list(function(run, cuts)))


@cache
def _analyses() -> tuple[Analysis, ...]:
    for module in pkgutil.walk_packages(__path__, f"{__name__}."):
        import_module(module.name)
    return tuple(sorted(_PLACES, key=lambda function: _PLACES[function]))
