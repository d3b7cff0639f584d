"""Holding the probes' share of wall time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Spending:
    wanted: int = 0
    fired: int = 0
    cost: float = 0.0

    @property
    def mean(self) -> float:
        return self.cost / self.fired if self.fired else 0.0


@dataclass(slots=True)
class Budget:
    """Spaces probes out until all of them together take at most `share` of the wall time.

    Every probe is stretched by the same factor, so that an expensive one is not starved by cheap ones:
    the factor is the share they would take if every due firing were granted, over `share`. A probe's first
    firing is always granted, since its cost is not known before.
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

    def grants(self, probe: str) -> bool:
        """Whether a due firing may go ahead. Each call counts as one due firing."""
        mine = self._probes.setdefault(probe, _Spending())
        mine.wanted += 1
        if self.share is None or mine.fired == 0:
            return True
        elapsed = max(self.clock() - self.started, 1e-9)
        demand = sum(probe.mean * probe.wanted for probe in self._probes.values()) / elapsed
        stretch = max(1.0, demand / self.share)
        in_turn = mine.fired + 1 <= mine.wanted / stretch
        return in_turn and self.spent + mine.mean <= self.share * elapsed

    def charge(self, probe: str, cost: float) -> None:
        """One firing and what it took."""
        self._probes.setdefault(probe, _Spending()).fired += 1
        self.add(probe, cost)

    def add(self, probe: str, cost: float) -> None:
        """What a firing took outside of it: preparing it, reading gradients before a clip, keeping the weights."""
        self._probes.setdefault(probe, _Spending()).cost += cost
        self.spent += cost

    def summary(self) -> dict[str, float | None]:
        elapsed = self.clock() - self.started
        return {"budget": self.share, "seconds": self.spent, "wall_seconds": elapsed}
