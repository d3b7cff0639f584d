"""A finding: a statement about a run, its evidence, what it explains, and what to do about it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from learnscope.record.display import badge, card, folded, one_line, safe

Severity = Literal["info", "warning", "critical"]
SEVERITIES: tuple[Severity, ...] = ("info", "warning", "critical")
Against = Literal["new", "worse", "gone"]
"""What a finding is against a baseline run: not there before, graver than before, there before and not now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a finding is based on: which numbers, how many, between which steps, with which interval."""

    probe: str
    name: str
    n: int
    first_step: int | None = None
    last_step: int | None = None
    value: float | None = None
    interval: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Finding:
    """A statement about a run, its evidence, and what to do about it.

    A cause names the kinds of findings that it explains; `run.findings()` puts those that do not begin before it under
    `taken_in`. A cause of severity `info` is a candidate: by itself it is no problem, and it takes the severity of what
    it explains. See `learnscope.findings.explained`.
    """

    kind: str
    severity: Severity
    title: str
    detail: str
    advice: str
    evidence: Evidence
    scopes: Sequence[str] = ()
    cause: bool = False
    """Whether this is a cause rather than a symptom."""
    explains: Sequence[str] = ()
    """The kinds of findings that a cause takes in."""
    ruled_out: Sequence[str] = ()
    """Short sentences: what else could have been, and which number speaks against it."""
    alternatives: Sequence[str] = ()
    """Other causes that fit, and what would tell them apart."""
    since: int | None = None
    """The first step at which the records could tell."""
    taken_in: Sequence[Finding] = ()
    """The findings that this one explains; filled by the engine."""
    acknowledged: str | None = None
    """Why the project accepts it, from its file of acknowledged findings."""
    against: Against | None = None
    """What it is against the baseline run, if there is one and it was not the same there."""

    @property
    def fingerprint(self) -> str:
        """A stable hash of kind, scopes and probe: the same in another run with other numbers."""
        body = json.dumps([self.kind, sorted(self.scopes), self.evidence.probe], ensure_ascii=True)
        return hashlib.sha256(body.encode()).hexdigest()[:12]

    def __repr__(self) -> str:
        said = "" if self.acknowledged is None else "acknowledged"
        return one_line(f"{self.severity}: {self.title}", f"-> {self.advice}", said, f"fingerprint {self.fingerprint}")

    def as_html(self) -> str:
        """A line that opens, for a card."""
        inside = "".join(f"<br>{safe(each.title)}" for each in self.taken_in)
        return folded(
            f"{badge(self.severity)} {safe(self.title)}", safe(self.detail, 4000),
            f"<b>What to do.</b> {safe(self.advice, 4000)}", f"<b>This explains</b>{inside}" if inside else "",
            f"<b>Acknowledged.</b> {safe(self.acknowledged)}" if self.acknowledged is not None else "",
            f"<code>{self.fingerprint}</code>",
        )  # fmt: skip

    def _repr_html_(self) -> str:
        return card(self.as_html())

    @property
    def begins(self) -> int | None:
        """The step from which it holds; None if nothing says so."""
        return self.since if self.since is not None else self.evidence.first_step

    def to_json(self) -> dict[str, Any]:
        body = {field.name: getattr(self, field.name) for field in fields(self)}
        for name in ("scopes", "explains", "ruled_out", "alternatives"):
            body[name] = list(body[name])
        body |= {"evidence": asdict(self.evidence), "taken_in": [finding.to_json() for finding in self.taken_in]}
        return body | {"fingerprint": self.fingerprint}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Finding:
        """What `to_json` gave, of this version or of an earlier one, which had fewer fields."""
        known = {field.name: body[field.name] for field in fields(cls) if field.name in body}
        evidence = dict(body["evidence"])
        if evidence.get("interval") is not None:
            evidence["interval"] = tuple(evidence["interval"])
        inside = [cls.from_json(finding) for finding in body.get("taken_in") or ()]
        return cls(**known | {"evidence": Evidence(**evidence), "taken_in": inside})


def with_taken_in(findings: Sequence[Finding]) -> Iterator[Finding]:
    """All findings, each followed by what it took in."""
    for finding in findings:
        yield finding
        yield from with_taken_in(finding.taken_in)


def grave(severity: Severity) -> int:
    """
    >>> sorted(["critical", "info", "warning"], key=grave)
    ['info', 'warning', 'critical']
    """
    return SEVERITIES.index(severity)
