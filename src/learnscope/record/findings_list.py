"""A list of findings that shows itself."""

from __future__ import annotations

from collections import Counter

from learnscope.record.display import card
from learnscope.record.finding import Finding


class Findings(list[Finding]):
    """Findings in their order, the gravest first."""

    @property
    def counts(self) -> str:
        """
        >>> Findings().counts
        'no findings'
        """
        counts = Counter("acknowledged" if each.acknowledged is not None else each.severity for each in self)
        words = {"critical": "critical", "warning": "warning", "info": "note", "acknowledged": "acknowledged"}
        told = [f"{counts[name]} {word}{'s' if counts[name] > 1 and word in ('warning', 'note') else ''}"
                for name, word in words.items() if counts[name]]  # fmt: skip
        return ", ".join(told) or "no findings"

    def __repr__(self) -> str:
        return "\n".join([f"{self.counts}:" if self else "no findings", *(f"  {finding!r}" for finding in self)])

    def _repr_html_(self) -> str:
        return card(f"<b>{self.counts}</b>", *(finding.as_html() for finding in self))
