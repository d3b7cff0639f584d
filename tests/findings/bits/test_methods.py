"""What is said of methods of rounding: beside rounding to the nearest in the same bits and the same way, or nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from learnscope.findings import find
from learnscope.findings.bits.frontier import compared_methods
from learnscope.reading.audit import Frontier, read_audit
from learnscope.record import Column, Finding, Table
from report.audit.audit_runs import AuditRun

CHANNEL = {"granularity": "channel", "symmetric": None}
GROUP = {"granularity": "group", "symmetric": None, "group_size": 32, "scales": "float16"}


def run_with(tried: Mapping[str, tuple[int, float, Mapping[str, Any]]]) -> AuditRun:
    """A search that tried these: name → (bits of all units, KL, the way in which they are rounded)."""
    run = AuditRun(2)
    sizes = [1000.0 * bits for bits, _, _ in tried.values()]
    table = Table(
        "configuration", ["original", *tried],
        [
            Column("kl", [0.0, *(kl for _, kl, _ in tried.values())]),
            Column("packed_bytes", [32_000.0, *sizes]),
            Column("original_bytes", [32_000.0] * (1 + len(tried))),
        ],
    )  # fmt: skip
    run.once(
        "BitFrontier", [table], recommended_name="original", recommended={}, choices={}, scheme=dict(CHANNEL),
        bits={"original": {}, **{name: dict.fromkeys(run.units, bits) for name, (bits, _, _) in tried.items()}},
        schemes={name: dict(way) for name, (_, _, way) in tried.items()}, held_out_examples=12,
    )  # fmt: skip
    return run


def said(tried: Mapping[str, tuple[int, float, Mapping[str, Any]]]) -> Finding | None:
    part = read_audit(run_with(tried).reader).optimum
    assert isinstance(part, Frontier)
    return compared_methods(part)


def test_a_better_method_is_named_with_both_damages() -> None:
    tried = {
        "uniform_4": (4, 0.02, CHANNEL),
        "uniform_4_gptq": (4, 0.005, {**CHANNEL, "method": "gptq"}),
        "uniform_3": (3, 0.3, CHANNEL),
        "uniform_3_mse": (3, 0.2, {**CHANNEL, "method": "mse"}),
    }
    finding = said(tried)
    assert finding is not None
    assert finding.title == "gptq does 4 times less damage than rounding to the nearest, at 4 bits"
    assert "gptq 0.005 at 4 bits, where rounding to the nearest has 0.02" in finding.detail
    assert "mse 0.2 at 3 bits, where rounding to the nearest has 0.3" in finding.detail
    assert "--method gptq" in finding.advice
    assert [found.title for found in find(run_with(tried).reader) if found.kind == finding.kind] == [finding.title]


@pytest.mark.parametrize("theirs", [0.02, 0.0201, 0.0219])
def test_a_method_that_gains_less_than_a_tenth_is_not_called_better(theirs: float) -> None:
    finding = said({"uniform_4": (4, theirs, CHANNEL), "uniform_4_awq": (4, 0.02, {**CHANNEL, "method": "awq"})})
    assert finding is not None
    assert finding.title == "No other method of rounding is better than rounding to the nearest here"
    assert f"awq 0.02 at 4 bits, where rounding to the nearest has {theirs:.3g}" in finding.detail
    assert "--method" not in finding.advice


def test_only_the_same_bits_in_the_same_way_are_compared() -> None:
    """A method in groups gains by the groups too: without its rival in groups, nothing can be said of the method."""
    by_channel = {"uniform_4": (4, 0.02, CHANNEL), "uniform_3": (3, 0.3, CHANNEL)}
    alone = {**by_channel, "uniform_4_group_32_gptq": (4, 0.005, {**GROUP, "method": "gptq"})}
    assert said(alone) is None
    finding = said({**alone, "uniform_4_group_32": (4, 0.01, GROUP)})
    assert finding is not None
    assert finding.title == "gptq does 2 times less damage than rounding to the nearest, at 4 bits"


def test_nothing_is_said_where_none_was_tried() -> None:
    tried = {"uniform_4": (4, 0.02, CHANNEL), "uniform_4_group_32": (4, 0.01, GROUP)}
    assert said(tried) is None
    assert "audit_rounding_method" not in {finding.kind for finding in find(run_with(tried).reader)}
