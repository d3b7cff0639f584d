"""The analyses: functions marked with `@analysis` in the folders of the families, found by their files."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable
from functools import cache
from importlib import import_module

from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import one_pass
from learnscope.record import Finding
from learnscope.store.reader import RunReader

Analysis = Callable[[RunReader, Cuts], Iterable[Finding]]
_PLACES: dict[Analysis, int] = {}


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
def analyses() -> tuple[Analysis, ...]:
    import learnscope.findings as home

    for module in pkgutil.walk_packages(home.__path__, f"{home.__name__}."):
        import_module(module.name)
    return tuple(sorted(_PLACES, key=lambda function: _PLACES[function]))
