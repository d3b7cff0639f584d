"""The probes that a training loop hands something over for."""

from __future__ import annotations

from learnscope.core.probe import Probe, prepares
from learnscope.session.bound import Bound
from learnscope.session.engine import FED, Engine


class FedProbes:
    """Which probes are handed what, looked up once: another may be added while the loop runs."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._known = engine, -1
        self._at_steps: list[tuple[Bound, frozenset[str], bool]] = []
        self._collector: Bound | None = None

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

    def _look(self) -> None:
        self._known = len(self._engine.bound)
        fed = [(b, b.probe.needs & FED, collects_until_epoch(b.probe)) for b in self._engine.bound]
        self._at_steps = [each for each in fed if each[1] and (each[2] or each[0].probe.at != "epoch")]
        given = [each for each in self._at_steps if "examples" in each[1]]
        alone = len(given) == 1 and given[0][1] == {"examples"} and given[0][2]
        self._collector = given[0][0] if alone and self._engine.subject.holdout is None else None


def collects_until_epoch(probe: Probe) -> bool:
    """Whether a probe collects what the loop hands over at every step (`prepare`) and measures once an epoch."""
    return probe.at == "epoch" and bool(probe.needs & FED) and prepares(probe)
