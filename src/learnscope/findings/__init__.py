"""From records to findings: statements about a run with their evidence and what to do about them.

Each analysis is a function of a run and of the cuts in the folder of its family, marked with `@analysis` and found by
its file. None needs torch. `explained.py` puts symptoms under their causes, `checks.py` says what was looked at.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module

from learnscope.findings.explained import explained
from learnscope.quantities import Quantity
from learnscope.reading.course.trainers import TRAINING_SET, holdout_source
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import one_pass
from learnscope.record import Finding
from learnscope.store.reader import RunReader

__all__ = ["Cuts", "Declared", "analyses", "analysis", "find", "findings_of"]

Analysis = Callable[[RunReader, Cuts], Iterable[Finding]]
Unless = Callable[[RunReader], str | None]
Need = Quantity | tuple[Quantity, ...]


@dataclass(frozen=True)
class Declared:
    """What an analysis says about itself."""

    place: int
    check: str
    needs: tuple[Need, ...]
    at_least: int | str
    unless: Unless
    described: tuple[str, ...] = ()


_DECLARED: dict[Analysis, Declared] = {}


def find(reader: RunReader, cuts: Cuts | None = None) -> list[Finding]:
    """All findings of a run: the gravest first, causes before symptoms, and symptoms inside what explains them."""
    cuts, run = cuts or Cuts(), one_pass(reader)
    findings = [finding for function in analyses() for finding in findings_of(function, run, cuts)]
    heads = run.columns().heads
    return explained(findings, lambda probe: heads.step[heads.of(probe)])


def no_training(reader: RunReader) -> str | None:
    """Why checks of a training do not apply to a run."""
    audited = reader.manifest.get("source") == "audit"
    return "a finished model was examined, and nothing was trained" if audited else None


def no_held_out(reader: RunReader) -> str | None:
    """Why checks of data that are not trained on do not apply to a run."""
    sampled = holdout_source(reader) == TRAINING_SET
    return no_training(reader) or ("the holdout is a sample of the training set" if sampled else None)


def not_an_audit(reader: RunReader) -> str | None:
    """Why checks of a finished model do not apply to a run."""
    return None if reader.manifest.get("source") == "audit" else "for the audit of a finished model"


def analysis(
    *, place: int = 1000, check: str = "", needs: Sequence[Need] = (), at_least: int | str = 1,
    unless: Unless = no_training, described: Sequence[str] = (),
) -> Callable[[Analysis], Analysis]:  # fmt: skip
    """Mark a function of a run and of the cuts as an analysis; of findings equally grave, a lower place comes first.

    `check` names it in `run.checks()`, by default after the function. `needs` are the quantities without which it
    cannot say that all is well; a tuple among them means any of these. They must have been measured at `at_least`
    steps, a number or the name of a cut. `unless` gives the reason why it does not apply to a run, or None. `described`
    are parts of run.json that it reads, which a run that was imported does not have: `model`, `optimizers`.
    """

    def mark(function: Analysis) -> Analysis:
        name = check or getattr(function, "__name__", "analysis").replace("_", " ")
        _DECLARED[function] = Declared(place, name, tuple(needs), at_least, unless, tuple(described))
        return function

    return mark


def findings_of(function: Analysis, reader: RunReader, cuts: Cuts) -> list[Finding]:
    """The findings of an analysis, computed once for a run that was read in one pass."""
    run = one_pass(reader)
    return run.remember((function, cuts), lambda: list(function(run, cuts)))


@cache
def analyses() -> dict[Analysis, Declared]:
    """All analyses in the order of their places."""
    for module in pkgutil.walk_packages(__path__, f"{__name__}."):
        import_module(module.name)
    return dict(sorted(_DECLARED.items(), key=lambda declared: declared[1].place))
