"""Causes before symptoms: what is taken in, by whom, and in which order."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from learnscope.findings.baseline import held_against
from learnscope.findings.explained import explained
from learnscope.record import Evidence, Finding, Severity
from learnscope.record.finding import with_taken_in


def finding(kind: str, severity: Severity = "warning", step: int | None = 1, probe: str = "P", **more: Any) -> Finding:
    evidence = Evidence(probe=probe, name="x", n=3, first_step=step, last_step=99)
    words: dict[str, Any] = {"title": f"T {kind}", "detail": f"D {kind}.", "advice": "A"}
    return Finding(kind=kind, severity=severity, evidence=evidence, **words, **more)


def cause(kind: str, *explains: str, severity: Severity = "warning", step: int | None = 1, **more: Any) -> Finding:
    return finding(kind, severity, step, cause=True, explains=explains, **more)


def kinds(findings: list[Finding]) -> list[Any]:
    return [(f.kind, kinds(list(f.taken_in))) if f.taken_in else f.kind for f in findings]


def test_a_cause_takes_in_what_it_explains() -> None:
    found = explained([finding("symptom", "critical", 5), finding("other"), cause("root", "symptom", step=3)])
    assert kinds(found) == [("root", ["symptom"]), "other"]
    assert found[0].severity == "critical"  # what it explains is critical
    assert found[0].taken_in[0].detail == "D symptom."


def test_what_begins_before_a_cause_is_not_its_symptom() -> None:
    symptom, root = finding("symptom", step=5), cause("root", "symptom", step=9)
    assert kinds(explained([symptom, root])) == ["root", "symptom"]
    assert kinds(explained([replace(symptom, since=9), root])) == [("root", ["symptom"])]
    assert kinds(explained([finding("symptom", step=None), root])) == [("root", ["symptom"])]


def test_a_cause_may_have_begun_since_the_last_measurement_that_did_not_show_it() -> None:
    root = cause("root", "symptom", step=20, probe="Rare")
    steps = {"Rare": [10, 20, 30]}
    for step, inside in ((10, False), (11, True), (20, True)):
        found = explained([finding("symptom", step=step), root], lambda probe: steps.get(probe, []))
        assert bool(found[0].taken_in) is inside, step
    first = cause("root", "symptom", step=10, probe="Rare")  # at the first measurement already
    assert explained([finding("symptom", step=1), first], lambda probe: steps.get(probe, []))[0].taken_in


def test_the_earlier_of_two_causes_takes_the_symptom_and_both_stay() -> None:
    found = explained([cause("late", "symptom", severity="critical", step=4), cause("early", "symptom", step=2),
                       finding("symptom", step=6)])  # fmt: skip
    assert kinds(found) == ["late", ("early", ["symptom"])]
    assert found[1].alternatives == []


def test_a_candidate_that_explains_nothing_more_becomes_an_alternative() -> None:
    candidate = cause("maybe", "symptom", severity="info", step=1)
    found = explained([candidate, cause("sure", "symptom", step=2), finding("symptom", step=6)])
    assert kinds(found) == [("sure", ["symptom"])]
    assert found[0].alternatives == ["T maybe. D maybe."]
    # alone it is the explanation, and as grave as what it explains
    [alone] = explained([candidate, finding("symptom", "critical", 6)])
    assert (alone.kind, alone.severity, kinds(list(alone.taken_in))) == ("maybe", "critical", ["symptom"])
    assert kinds(explained([candidate])) == ["maybe"]  # and without the symptom, information


def test_chains_and_circles() -> None:
    chain = [cause("a", "b"), cause("b", "c", step=2), finding("c", step=3)]
    assert kinds(explained(chain)) == [("a", [("b", ["c"])])]
    circle = [cause("a", "b", step=2), cause("b", "a", step=2)]
    assert kinds(explained(circle)) == [("a", ["b"])]
    assert kinds(explained([cause("a", "a")])) == ["a"]


def test_the_order() -> None:
    found = explained([finding("x"), finding("y", "critical"), cause("z"), finding("w", "info")])
    assert kinds(found) == ["y", "z", "x", "w"]


def test_fingerprints_are_of_kind_scopes_and_probe() -> None:
    first = finding("k", scopes=["a", "b"])
    assert first.fingerprint == "b5a9d23ff5ef"  # kept in files of projects: it must never change
    assert first.fingerprint == finding("k", "info", 77, scopes=["b", "a"], cause=True).fingerprint
    others = [finding("l", scopes=["a", "b"]), finding("k", scopes=["a"]), finding("k", probe="Q", scopes=["a", "b"])]
    assert len({first.fingerprint, *(other.fingerprint for other in others)}) == 4


def test_findings_come_back_from_json() -> None:
    [found] = explained(
        [cause("root", "symptom", scopes=["a"], ruled_out=["no."], since=4), finding("symptom", step=7)]
    )
    assert Finding.from_json(json.loads(json.dumps(found.to_json()))).to_json() == found.to_json()
    old = {key: found.to_json()[key] for key in ("kind", "severity", "title", "detail", "advice", "evidence", "scopes")}
    read = Finding.from_json(old)
    assert (read.kind, read.cause, list(read.taken_in), read.since) == ("root", False, [], None)
    assert [f.kind for f in with_taken_in([found])] == ["root", "symptom"]


@pytest.mark.parametrize(("before", "now", "mark"), [("warning", "critical", "worse"), ("critical", "warning", None)])
def test_a_baseline(before: Severity, now: Severity, mark: str | None) -> None:
    same, gone, new = finding("same", before), finding("gone", "critical"), finding("new")
    found = {f.kind: f for f in held_against([replace(same, severity=now), new], [same, gone])}
    assert list(found)[-1] == "gone"
    assert (found["same"].against, found["new"].against, found["gone"].against) == (mark, "new", "gone")
    assert found["gone"].severity == "info"


def test_what_a_cause_took_in_before_is_not_new() -> None:
    root, symptom = cause("root", "symptom"), finding("symptom", step=3)
    [now] = held_against([symptom], explained([root, symptom]))[:1]
    assert (now.kind, now.against) == ("symptom", None)
