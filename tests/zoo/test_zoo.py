"""A handful of the zoo, and that its judge judges; `make zoo` runs all of it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from zoo.judge import judge
from zoo.keeper import run_in
from zoo.registry import CASES, Case, Check, above, collect, worse_than
from zoo.table import BEGIN, END, as_json, as_text, as_verdict, figures, write_page

ALL = collect()
FAULTS = [case for case in ALL.values() if not case.healthy]
HEALTHY = [case for case in ALL.values() if case.healthy]
SOME_FAULTS = (
    "clipped to a thousandth, MLP", "learning rate zero, MLP", "one bad batch, MLP", "optimizer misses a layer, MLP",
    "training in eval mode, MLP", "two steps a backward, MLP", "weight decay of 20, MLP", "zero_grad forgotten, MLP",
)  # fmt: skip
SOME_HEALTHY = (
    "SGD with momentum, CNN", "adversarial pair, GAN", "batch norm, CNN", "classification, MLP on wine", "dropout, MLP",
    "one cycle, MLP", "regression, targets × 100", "variational autoencoder, summed loss",
)  # fmt: skip


def finding(kind: str, *, cause: bool = True, severity: str = "warning", since: int | None = None, **more: Any) -> Any:
    return SimpleNamespace(kind=kind, cause=cause, severity=severity, since=since, title=kind, scopes=(), **more)


def case(**facts: Any) -> Case:
    return Case("a fault, MLP", lambda watch, seed: None, **{"causes": frozenset({"right"}), "since": 20, **facts})


@pytest.mark.parametrize(
    ("findings", "outcome"),
    [
        ([], "silent"),
        ([finding("right", severity="info")], "silent"),
        ([finding("right")], "right"),
        ([finding("right", cause=False)], "right"),
        ([finding("flat", cause=False), finding("right")], "right"),
        ([finding("flat", cause=False), finding("right", cause=False)], "symptom"),
        ([finding("flat", cause=False)], "symptom"),
        ([finding("misleading", cause=False)], "wrong"),
        ([finding("other")], "wrong"),
        ([finding("flat", cause=False), finding("other")], "wrong"),
    ],
)
def test_a_fault_is_right_wrong_a_symptom_or_silent(findings: list[Any], outcome: str) -> None:
    assert judge(case(wrong=frozenset({"misleading"})), 0, findings, None).outcome == outcome


def test_a_cause_listed_before_the_right_one_is_counted() -> None:
    verdict = judge(case(), 0, [finding("other"), finding("right", since=55)], None)
    assert (verdict.outcome, verdict.first, verdict.beside, verdict.late) == ("right", False, ("other",), 4)


@pytest.mark.parametrize(("since", "late"), [(None, None), (10, 0), (20, 0), (21, 1), (30, 1), (31, 2)])
def test_late_is_counted_in_measurements(since: int | None, late: int | None) -> None:
    assert judge(case(), 0, [finding("right", since=since)], None).late == late


def test_a_script_that_did_not_do_what_it_claims_counts_nowhere() -> None:
    ill, well = case(), Case("well, MLP", lambda watch, seed: None)
    failed = Check(0.2, "> 0.9", holds=False)
    verdicts = [judge(ill, 0, [], failed), judge(well, 0, [finding("false")], failed)]
    assert {one.outcome for one in verdicts} == {"broken"}
    assert {row[-1] for row in figures([ill, well], verdicts)} == {"none"}
    assert "broken: well, MLP, seed 0: 0.2 > 0.9" in as_text([ill, well], verdicts)


def test_checks_hold_only_where_the_claim_does() -> None:
    assert above(0.95, 0.9).holds
    assert not above(math.nan, 0.9).holds
    assert worse_than(math.nan, 2.0).holds
    assert not worse_than(1.0, 2.0).holds


def test_the_page_keeps_what_stands_around_the_table(tmp_path: Path) -> None:
    page, well = tmp_path / "diagnosis.md", Case("well, MLP", lambda watch, seed: None)
    page.write_text(f"before\n{BEGIN}old\n{END}after\n")
    verdicts = [judge(well, 0, [finding("false")], None), judge(well, 1, [], None)]
    for _ in range(2):
        write_page(page, [well], verdicts)
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "| healthy runs with an alarm |" in text
    assert [as_verdict(row) for row in json.loads(as_json(verdicts))] == verdicts


def test_both_halves_hold_kinds_and_no_kind_is_in_both() -> None:
    for cases in (FAULTS, HEALTHY):
        halves = {half: {one.kind for one in cases if one.half == half} for half in ("tuning", "judged")}
        assert all(len(kinds) >= 5 for kinds in halves.values())
        assert not halves["tuning"] & halves["judged"]
    assert CASES


@pytest.mark.parametrize("name", SOME_FAULTS)
def test_a_fault_is_named(name: str, tmp_path: Path) -> None:
    verdict = run_in(ALL[name], 0, tmp_path / "run")
    assert verdict.outcome == "right", verdict


@pytest.mark.parametrize("name", SOME_HEALTHY)
def test_a_healthy_run_learns_and_raises_no_alarm(name: str, tmp_path: Path) -> None:
    verdict = run_in(ALL[name], 0, tmp_path / "run")
    assert verdict.outcome == "quiet", verdict


@pytest.mark.soak
@pytest.mark.parametrize("name", list(ALL))
def test_every_script_does_what_its_case_claims(name: str, tmp_path: Path) -> None:
    verdict = run_in(ALL[name], ALL[name].seeds[0], tmp_path / "run")
    assert verdict.outcome != "broken", verdict
