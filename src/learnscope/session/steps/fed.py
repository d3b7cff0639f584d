"""The probes that a training loop hands something over for."""

from __future__ import annotations

import time
from typing import Any

from learnscope.core.handed import HandedOver
from learnscope.core.probe import Probe, is_due, prepares
from learnscope.probes.outputs.loss import Loss
from learnscope.session.bound import Bound
from learnscope.session.engine import FED, Engine
from learnscope.session.noted import Noted
from learnscope.session.unfired import unfed_message

UNFED_LIMIT = 20
"""Due steps without what a probe must be handed, after which there is a warning."""


class FedProbes:
    """Which probes are handed what, looked up once: another may be added while the loop runs."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._known = engine, -1
        self.epoch = 0
        self._at_steps: list[tuple[Bound, frozenset[str], bool]] = []
        self._collector: Bound | None = None
        self._noting: Bound | None = None

    @property
    def at_steps(self) -> list[tuple[Bound, frozenset[str], bool]]:
        """Those that are handed something at the loop's steps, what that is, and whether they collect it."""
        if self._known != len(self._engine.bound):
            self._look()
        return self._at_steps

    @property
    def collector(self) -> Bound | None:
        """The one probe that is handed examples, if it collects them until the epoch ends.

        None with data to evaluate on: the loop's loss is then looked for in what it hands over.
        """
        if self._known != len(self._engine.bound):
            self._look()
        return self._collector

    @property
    def notes(self) -> bool:
        """Whether numbers that a loop logs are kept by `note`."""
        if self._known != len(self._engine.bound):
            self._look()
        return self._noting is not None and not self._engine.passing.sinks

    def note(self, step: int, logged: dict[str, list[Any]], at: float) -> bool:
        """The loop has handed over nothing but numbers for `step`: True if no more than keeping them is to be done.

        The same as firing the probe that records them, for what comes at every step: without a moment, and without a
        record until it is written.
        """
        engine = self._engine
        try:
            if self._known != len(engine.bound):
                self._look()
            bound, started = self._noting, time.perf_counter()
            if bound is None or not logged or engine.passing.sinks or engine.inherited:
                return False
            if not engine.lines.takes(bound, logged):
                return False
            bound.fired += 1
            bound.last_step = step
            cost = time.perf_counter() - started
            engine.keep_noted(Noted(bound, step, self.epoch, at, logged, cost))
        except Exception:  # noqa: BLE001  (ours, and not the training's)
            engine.failed("note")
            return False
        return True

    def complete(self, step: int, handed: HandedOver) -> None:
        """The loop has handed over everything for `step`: fire the probes that need it."""
        engine, available = self._engine, handed.needs_met()
        moment = engine.moment("after_step", step, epoch=self.epoch, handed=handed)
        for bound, needs, collects in self.at_steps:
            if not collects and not is_due(bound.probe.every, step):
                continue
            if needs <= available:
                if collects:
                    bound.waiting += 1
                    engine.prepare(bound, moment)
                elif engine.granted(bound):
                    engine.fire(bound, moment)
            elif not bound.waiting:  # it is not waiting for what it was given at once, either
                bound.unfed += 1
                if bound.unfed == UNFED_LIMIT and not bound.fired:
                    engine.warn(f"{bound.label} unfed", unfed_message(bound))

    def _look(self) -> None:
        self._known = len(self._engine.bound)
        fed = [(b, b.probe.needs & FED, collects_until_epoch(b.probe)) for b in self._engine.bound]
        self._at_steps = [each for each in fed if each[1] and (each[2] or each[0].probe.at != "epoch")]
        given = [each for each in self._at_steps if "examples" in each[1]]
        alone = len(given) == 1 and given[0][1] == {"examples"} and given[0][2]
        only = self._at_steps[0][0] if len(self._at_steps) == 1 else None
        self._noting = only if only is not None and self._records_all(only) else None
        self._collector = given[0][0] if alone and self._engine.subject.holdout is None else None

    def _records_all(self, bound: Bound) -> bool:
        """Whether a probe records all that is logged, at every step and whatever it costs, some steps together."""
        limited = self._engine.budget.share is not None or bound.share is not None or self._engine.write_every == 1
        return type(bound.probe) is Loss and bound.probe.every == 1 and bound.probe.at == "after_step" and not limited


def collects_until_epoch(probe: Probe) -> bool:
    """Whether a probe collects what the loop hands over at every step (`prepare`) and measures once an epoch."""
    return probe.at == "epoch" and bool(probe.needs & FED) and prepares(probe)
