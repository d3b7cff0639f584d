"""What was looked at: every analysis with its state, so that silence is not taken for health."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from learnscope.findings import Declared, Need, analyses, find, findings_of
from learnscope.quantities import Quantity, quantity_of
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import class_of, one_pass, series
from learnscope.reading.words import count
from learnscope.record import Finding
from learnscope.record.finding import with_taken_in
from learnscope.store.reader import RunReader

State = Literal["passed", "failed", "not measured", "not applicable"]


@dataclass(frozen=True)
class Check:
    """One check of a run."""

    name: str
    state: State
    reason: str
    """What passed rests on, what failed, what is missing, or why the check does not apply."""
    how_to_enable: str = ""
    """What to do so that it is measured next time."""
    findings: Sequence[Finding] = ()
    """What it found, also for information."""


def checks_of(reader: RunReader, cuts: Cuts | None = None) -> list[Check]:
    """Every check in the order of the analyses."""
    cuts, run = cuts or Cuts(), one_pass(reader)

    def judge() -> list[Check]:
        # a candidate for a cause has the severity of what it explains
        wrong = {each.fingerprint for each in with_taken_in(find(run, cuts)) if each.severity != "info"}
        return [
            _check(run, declared, findings_of(function, run, cuts), wrong, cuts)
            for function, declared in analyses().items()
        ]

    return run.remember(("checks", cuts), judge)


def not_checked(checks: Sequence[Check]) -> list[str]:
    """The names of the checks that lacked numbers."""
    return [check.name for check in checks if check.state == "not measured"]


def _check(run: RunReader, declared: Declared, found: Sequence[Finding], wrong: set[str], cuts: Cuts) -> Check:
    name = declared.check
    if failed := [finding for finding in found if finding.fingerprint in wrong]:
        return Check(name, "failed", "; ".join(finding.title for finding in failed), findings=found)
    if (reason := declared.unless(run)) is not None:
        return Check(name, "not applicable", reason, findings=found)
    if unknown := [part for part in declared.described if part not in run.manifest]:
        reason = f"run.json does not describe the {' and the '.join(part.removesuffix('s') for part in unknown)}"
        return Check(name, "not measured", reason, "ls.watch(model, optimizer)", found)
    least = getattr(cuts, declared.at_least) if isinstance(declared.at_least, str) else declared.at_least
    for need in declared.needs:
        options = need if isinstance(need, tuple) else (need,)
        if max(measured_steps(run, quantity) for quantity in options) < least:
            if (reason := _nothing_of_it(run, options)) is not None:
                return Check(name, "not applicable", reason, findings=found)
            return Check(name, "not measured", _missing(run, options, least), how_to_enable(need), found)
    rests = [f"{_named(q)} at {count(n, 'step')}" for q in _all(declared.needs) if (n := measured_steps(run, q))]
    return Check(name, "passed", ", ".join(rests) or "the run's own description", findings=found)


def measured_steps(run: RunReader, quantity: Quantity) -> int:
    """At how many steps a quantity was measured, of the kind that was measured most often; NaN was measured too."""
    return one_pass(run).remember(("measured steps", quantity), lambda: _measured_steps(run, quantity))


def _measured_steps(run: RunReader, quantity: Quantity) -> int:
    most = 0
    for kind in quantity.kinds:
        values = series(run, quantity, kind)
        known = np.isfinite(values.values)
        if len(broken := values.broken):
            known |= np.isin(values.steps, broken)
        steps = values.steps[known]  # in ascending order, where counting what differs is faster than sorting
        most = max(most, int((np.diff(steps) != 0).sum()) + 1 if len(steps) else 0)
    return most


def how_to_enable(need: Need) -> str:
    """
    >>> from learnscope.quantities.gradients import GradientFlow
    >>> how_to_enable(GradientFlow.norm)
    'ls.watch(..., probes=[..., ls.GradientFlow()])'
    """
    quantity = need[0] if isinstance(need, tuple) else need
    known = {
        "Holdout": "ls.watch(..., holdout=data)",
        "Loss": "w.log(loss=loss) after every step",
        "Objective": "call the loss function inside the watched loop; ls.watch(..., probes=[..., ls.Objective()])",
    }
    how = known.get(quantity.probe, f"ls.watch(..., probes=[..., ls.{quantity.probe}()])")
    return f"{how} ({quantity.when})" if quantity.when else how


def _nothing_of_it(run: RunReader, options: Sequence[Quantity]) -> str | None:
    """Why a quantity does not apply: its probe ran, and met nothing that it is a number of.

    A quantity that an option turns on, or that is due at few steps, was not measured instead.
    """
    heads = run.columns().heads
    for quantity in options:
        ran = any(len(records := heads.of(label)) and not heads.failed[records].all()
                  for label in heads.probes if class_of(label) == quantity.probe)  # fmt: skip
        recorded = any(len(series(run, quantity, kind)) for kind in quantity.kinds)
        if not ran or recorded or not quantity.when or quantity.when.startswith(("with ", "at ")):
            return None
    return f"{' or '.join(map(_named, options))} is recorded {options[0].when}, and there was no such thing"


def _missing(run: RunReader, options: Sequence[Quantity], least: int) -> str:
    names = " or ".join(map(_named, options))
    most = max(measured_steps(run, quantity) for quantity in options)
    if most:
        return f"{names} was measured at {count(most, 'step')}, and {least:,} are needed"
    for quantity in options:
        status = [text for kind in quantity.kinds for text in series(run, quantity, kind).status if text]
        if status:
            return f"{names}: {status[-1]}"
    return f"{names} was not recorded"


def _named(quantity: Quantity) -> str:
    """With what it is a number of, where that is less than all that it is declared for."""
    whole = quantity_of(quantity.probe, quantity.name)
    of = "" if whole is None or whole.kinds == quantity.kinds else f" of each {' or '.join(quantity.kinds)}"
    return f"{quantity.probe}.{quantity.name}{of}"


def _all(needs: Sequence[Need]) -> list[Quantity]:
    return [quantity for need in needs for quantity in (need if isinstance(need, tuple) else (need,))]
