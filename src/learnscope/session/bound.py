"""A probe in a session, and one measurement of it on its way to its record."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from learnscope.core.moment import Moment
from learnscope.core.probe import Probe
from learnscope.model.collector import no_collection
from learnscope.model.guard import preserve_rng
from learnscope.record import Measurement


@dataclass(slots=True)
class Bound:
    """A probe in a session: its label, its state, and counts of what happened to it."""

    probe: Probe
    label: str
    by_default: bool = False
    """Whether nobody has chosen it: a session without `probes=` has it."""
    share: float | None = None
    """Of the wall time that it alone may take; None: no limit of its own."""
    state: dict[str, Any] = field(default_factory=dict)
    fired: int = 0
    last_step: int | None = None
    """At which it last fired."""
    unfed: int = 0
    """Steps at which it was due, and the loop did not hand over what it needs."""
    waiting: int = 0
    """Hand-overs since it last fired, for a probe that collects them until the epoch ends."""
    skipped: int = 0
    warned: bool = False
    begun: set[str] = field(default_factory=set)
    """The parts of a measurement that have run at least once."""

    def first_time(self, part: str) -> AbstractContextManager[None]:
        """Holds the generators when a part runs for the first time: what it imports then may draw random numbers.

        Later the collector is off meanwhile: an object for each of thousands of tensors would have it look at all.
        """
        if part in self.begun:
            return no_collection()
        self.begun.add(part)
        return preserve_rng()

    def saved_state(self) -> dict[str, Any]:
        """The probe's state, without what it keeps only between the two halves of one measurement."""
        return {key: value for key, value in self.state.items() if not key.startswith("_")}


@dataclass(slots=True)
class Firing:
    """A measurement on its way to its record."""

    bound: Bound
    step: int
    epoch: int | None
    phase: str
    time: float
    started: float
    measured: Measurement | None = None
    moment: Moment | None = None
    """Of a measurement that is made only when its record is."""
    skipped: int = 0
    """Firings before it that the budget did not allow."""
    cost: float | None = None
    """Of the measuring, if it was left to be read later."""
