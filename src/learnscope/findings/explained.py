"""One ordered explanation of a run: symptoms inside their causes, the gravest first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from learnscope.record import SEVERITIES, Finding
from learnscope.record.finding import grave

Measured = Callable[[str], Any]
"""The steps at which a probe recorded, in order."""


def explained(findings: Sequence[Finding], measured: Measured = lambda _probe: ()) -> list[Finding]:
    """The findings with symptoms inside their causes: by severity, then causes first, then as they were given.

    A cause takes in the findings of the kinds that it `explains` and that do not begin before it could have begun: its
    own beginning lies after the last measurement that did not show it. Of two causes for one finding, one that stands
    on its own goes before a candidate (severity `info`), the earlier before the later, then the graver one. A candidate
    that is left with nothing, because another cause took what it explains, becomes an alternative of that cause.
    """
    family = _Family(findings, measured)
    roots = [place for place in range(len(findings)) if place not in family.parent and place not in family.dropped]
    return in_order([family.built(place) for place in roots])


def in_order(findings: Sequence[Finding]) -> list[Finding]:
    """The acknowledged last, and what is gone; the gravest first, causes before symptoms; else as they are."""

    def place(finding: Finding) -> tuple[bool, bool, int, bool]:
        settled = finding.acknowledged is not None
        return finding.against == "gone", settled, -grave(finding.severity), not finding.cause

    return sorted(findings, key=place)


@dataclass
class _Family:
    """Who explains whom, by place among the findings."""

    findings: Sequence[Finding]
    measured: Measured

    def __post_init__(self) -> None:
        self.parent: dict[int, int] = {}
        causes = [place for place, finding in enumerate(self.findings) if finding.cause and finding.explains]
        for cause in sorted(causes, key=self._claim):
            for place in self._explained_by(cause):
                if place not in self.parent and place not in self._ancestors(cause):
                    self.parent[place] = cause
        self.others: dict[int, list[Finding]] = {}
        self.dropped = {place for place in causes if self._is_alternative(place)}

    def _claim(self, place: int) -> tuple[bool, int, int, int]:
        finding = self.findings[place]
        return finding.severity == "info", self._earliest(place), -grave(finding.severity), place

    def _earliest(self, place: int) -> int:
        """The first step at which a cause may have begun."""
        finding = self.findings[place]
        if finding.begins is None:
            return 0
        steps = [int(step) for step in self.measured(finding.evidence.probe)]
        if not steps:
            return finding.begins
        return max((step + 1 for step in steps if step < finding.begins), default=0)

    def _explained_by(self, cause: int) -> Iterator[int]:
        kinds, earliest = set(self.findings[cause].explains), self._earliest(cause)
        for place, finding in enumerate(self.findings):
            later = finding.begins is None or finding.begins >= earliest
            if place != cause and finding.kind in kinds and later:
                yield place

    def _ancestors(self, place: int) -> set[int]:
        found = {place}
        while place in self.parent:
            place = self.parent[place]
            found.add(place)
        return found

    def _is_alternative(self, place: int) -> bool:
        """Whether a candidate is left with nothing; the cause that took its part is told."""
        if self.findings[place].severity != "info" or place in self.parent or place in self.parent.values():
            return False
        takers = {self.parent[taken] for taken in self._explained_by(place) if taken in self.parent}
        for taker in takers:
            self.others.setdefault(taker, []).append(self.findings[place])
        return bool(takers)

    def built(self, place: int) -> Finding:
        finding = self.findings[place]
        inside = [self.built(child) for child, parent in self.parent.items() if parent == place]
        others = [f"{other.title}. {other.detail}" for other in self.others.get(place, [])]
        if not inside and not others:
            return finding
        severity = SEVERITIES[max(grave(each.severity) for each in (finding, *inside))]
        return replace(
            finding, severity=severity, taken_in=in_order(inside), alternatives=[*finding.alternatives, *others]
        )
