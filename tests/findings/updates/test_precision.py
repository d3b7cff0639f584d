"""Updates and weight decay that rounding takes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import learnscope as ls
from findings.made_run import MadeRun
from learnscope.findings import Cuts
from learnscope.findings.updates.precision import precision


def made(dtypes: dict[str, int] | None = None, **more: Any) -> MadeRun:
    run = MadeRun(dtypes=dtypes or {"bfloat16": 1000}, layers=["a", "b", "c"])
    run.manifest["optimizers"] = [
        {"class": "AdamW", "groups": [{"lr": 1e-5, "weight_decay": 0.1, "tensors": 10, **more}]}
    ]
    return run


def test_most_of_the_updates_of_the_model() -> None:
    run = made()
    for step in (10, 20, 30, 40):
        run.absorbed(step, {"a": 0.95, "b": 0.9, "c": 0.85})
    [finding] = precision(run.reader, Cuts())
    assert (finding.kind, finding.severity) == ("updates_absorbed", "warning")
    assert finding.title == "Rounding to bfloat16 takes 90 % of the updates of the model, since step 10"
    assert "In 4 consecutive measurements, steps 10 to 40, 90 % of the sampled entries" in finding.detail
    assert "95 % interval 89 % to 91 %" in finding.detail
    assert "85 % to 95 % in a, b and c" in finding.detail
    assert finding.scopes == ["a", "b", "c"]
    evidence = finding.evidence
    assert (evidence.n, evidence.first_step, evidence.last_step) == (4, 10, 40)
    assert evidence.value == pytest.approx(0.9)
    assert evidence.interval == pytest.approx((0.89, 0.91))
    assert "float32 and compute in bfloat16 under torch.autocast:" in finding.advice
    assert "larger learning rate than 1.0e-05" in finding.advice
    assert "optimizer whose update is not known" not in finding.detail


def test_some_layers_only() -> None:
    run = made()
    for step in (10, 20, 30):
        run.absorbed(step, {"a": 0.1, "b": 0.9, "c": 0.1})
    [finding] = precision(run.reader, Cuts())
    assert finding.title == "Rounding to bfloat16 takes 90 % of the updates of 1 of 3 layers, since step 10"
    assert finding.scopes == ["b"]
    assert ", in b." in finding.detail


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        ([0.9, 0.9], False),  # too few
        ([0.9, 0.9, 0.2, 0.9], False),  # not consecutive
        ([0.9, 0.9, 0.9, 0.2], True),
        ([0.505, 0.505, 0.505], False),  # the interval reaches below the cut
        ([0.52, 0.52, 0.52], True),
        ([None, 0.9, None, 0.9, 0.9], True),  # what was not measured neither counts nor breaks
        ([None, None, None, None], False),
    ],
)
def test_what_it_takes(shares: list[float | None], said: bool) -> None:
    run = made()
    for step, share in enumerate(shares, 1):
        run.absorbed(step, {"a": share})
    assert bool(precision(run.reader, Cuts())) is said


def test_what_has_passed_is_said_to_have_passed() -> None:
    run = made()
    for step, share in enumerate([0.9, 0.9, 0.9, 0.2], 1):
        run.absorbed(step, {"a": share})
    assert precision(run.reader, Cuts())[0].title.endswith("in steps 1 to 3, not after")


def test_the_cuts_are_options() -> None:
    run = made()
    for step in (1, 2, 3):
        run.absorbed(step, {"a": 0.4}, {"a": 0.95})
    assert precision(run.reader, Cuts()) == []
    found = precision(run.reader, Cuts(absorbed_share=0.3, decay_absorbed_share=0.9))
    assert [finding.kind for finding in found] == ["updates_absorbed", "weight_decay_absorbed"]
    assert precision(run.reader, Cuts(absorbed_share=0.3, measurements=4)) == []


def test_a_part_of_the_entries_is_said_to_be_a_part() -> None:
    run = made()
    for step in (1, 2, 3):
        run.absorbed(step, {"a": 0.9}, coverage=0.25)
    assert "known for 25 % of the updated entries" in precision(run.reader, Cuts())[0].detail


@pytest.mark.parametrize(
    ("dtype", "limits"),
    [("bfloat16", "2^-9 to 2^-8 (0.00195 to 0.00391)"), ("float16", "2^-12 to 2^-11 (2.4e-04 to 4.9e-04)")],
)
def test_decay_that_never_lands(dtype: str, limits: str) -> None:
    run = made({dtype: 1000})
    for step in (10, 20, 30):
        run.absorbed(step, {"a": 0.1, "b": 0.1}, {"a": 1.0, "b": 0.5})
    [finding] = precision(run.reader, Cuts())
    assert finding.kind == "weight_decay_absorbed"
    assert finding.title == (
        "Weight decay has no effect on 100 % of the entries of 1 of 2 layers, since step 10: "
        f"rounding to {dtype} takes it"
    )
    assert finding.scopes == ["a"]
    assert f"{limits} in {dtype}; here it is at most 1.0e-06." in finding.detail
    assert finding.evidence.interval == pytest.approx((0.99, 1.0))
    assert "added to the gradient" not in finding.detail


def test_half_of_the_spacing_is_what_torch_needs() -> None:
    """The limits of the sentence, held against the arithmetic itself."""
    for dtype, bits in ((torch.bfloat16, 7), (torch.float16, 10)):
        octave = 1 + torch.arange(2**bits, dtype=torch.float64) / 2**bits
        weights = octave.to(dtype)
        assert torch.equal(weights.double(), octave), "all numbers of an octave"
        least, most = 2.0 ** -(bits + 2), 2.0 ** -(bits + 1)
        assert torch.equal(weights * (1 - 0.99 * least), weights)
        assert not (weights * (1 - 1.01 * most) == weights).any()
        some = (weights * (1 - 1.4 * least) == weights).double().mean()
        assert 0 < some < 1


def test_the_rate_of_the_schedule_counts_where_it_was_recorded() -> None:
    run = made()
    for step in (10, 20, 30):
        run.absorbed(step, {"a": 0.1}, {"a": 1.0})
        run.write("LearningRate", step, [ls.Table("group", ["group_0"], [ls.Column("learning_rate", [step * 1e-4])])])
    assert "at most 3.0e-04" in precision(run.reader, Cuts())[0].detail


def test_decay_through_the_gradient_has_another_limit() -> None:
    run = made()
    run.manifest["optimizers"][0]["class"] = "SGD"
    for step in (10, 20, 30):
        run.absorbed(step, {"a": 0.1}, {"a": 1.0})
    detail = precision(run.reader, Cuts())[0].detail
    assert "weight_decay·|w| exceeds 2^-9 to 2^-8 of |g|" in detail
    assert "lr·weight_decay" not in detail


def test_decay_that_is_rounded_with_the_update_is_no_finding_of_its_own() -> None:
    run = made()
    for step in (10, 20, 30):
        run.absorbed(step, {"a": 0.1}, {"a": 1.0}, rounding="together")
    assert precision(run.reader, Cuts()) == []


def test_float32_runs_have_neither() -> None:
    run = made({"float32": 1000})
    for step in (10, 20, 30):
        run.absorbed(step, {"a": 0.9}, {"a": 1.0})
    assert precision(run.reader, Cuts()) == []


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [(torch.bfloat16, {"updates_absorbed", "weight_decay_absorbed"}), (torch.float32, set())],
)
@pytest.mark.parametrize("absorbed", [None, True])
def test_a_real_run(dtype: torch.dtype, expected: set[str], absorbed: bool | None) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 4)).to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.1)
    probe = ls.ParameterChange(every=4, absorbed=absorbed)
    with ls.watch(model, optimizer, probes=[probe, ls.LearningRate()], strict=True) as w:
        for _ in range(16):
            x, y = torch.randn(16, 32).to(dtype), torch.randint(4, (16,))
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x).float(), y).backward()
            optimizer.step()
    found = {finding.kind: finding for finding in w.run.findings()}
    assert {kind for kind in found if "absorbed" in kind} == expected
    for kind in expected:
        assert found[kind].evidence.n == 4
        assert found[kind].evidence.value > 0.9  # type: ignore[operator]
        assert set(found[kind].scopes) == {"0", "2"}
