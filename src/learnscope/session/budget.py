"""Limits the share of wall time that probes take."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

UNNOTICED = 2.0
"""Seconds that a probe with a limit of its own may take in any case: a short run must be measured often enough."""


@dataclass(slots=True)
class _Spending:
    due: int = 0
    fired: int = 0
    cost: float = 0.0

    @property
    def mean(self) -> float:
        return self.cost / self.fired if self.fired else 0.0


@dataclass(slots=True)
class Budget:
    """Lets probes fire less often, so that together they take at most `share` of the wall time.

    The intervals of all probes are stretched by the same factor, so that cheap probes do not starve an expensive one:
    the share they would take if every due firing were granted, over `share`. A probe's first firing is always granted,
    since its cost is not known before.
    """

    share: float | None = None
    clock: Callable[[], float] = lambda: time.perf_counter()
    spent: float = 0.0
    started: float = field(init=False)
    _probes: dict[str, _Spending] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.share is not None and not 0 < self.share <= 1:
            raise ValueError(f"budget={self.share!r}: a share of wall time between 0 and 1, such as 0.02")
        self.started = self.clock()

    def grants(self, probe: str, own_share: float | None = None) -> bool:
        """Whether a due firing may go ahead, also by a limit of the probe's own. Each call counts as one due firing."""
        spending = self._spending(probe)
        spending.due += 1
        if spending.fired == 0 or (self.share is None and own_share is None):
            return True
        elapsed = max(self.clock() - self.started, 1e-9)
        if own_share is not None and spending.cost + spending.mean > max(own_share * elapsed, UNNOTICED):
            return False
        if self.share is None:
            return True
        demand = sum(each.mean * each.due for each in self._probes.values()) / elapsed
        stretch = max(1.0, demand / self.share)
        in_turn = spending.fired + 1 <= spending.due / stretch
        return in_turn and self.spent + spending.mean <= self.share * elapsed

    def charge(self, probe: str, cost: float) -> None:
        spending = self._probes.get(probe) or self._spending(probe)  # called at every step: no call for what is known
        spending.fired += 1
        spending.cost += cost
        self.spent += cost

    def add(self, probe: str, cost: float) -> None:
        """Add a cost outside of firing: preparing, reading gradients before a clip, copying weights."""
        self._spending(probe).cost += cost
        self.spent += cost

    def _spending(self, probe: str) -> _Spending:
        known = self._probes.get(probe)
        if known is None:
            known = self._probes[probe] = _Spending()
        return known

    def summary(self) -> dict[str, float | None]:
        elapsed = self.clock() - self.started
        return {"budget": self.share, "seconds": self.spent, "wall_seconds": elapsed}
