"""How findings read: names as they are spelt, and no sentence that begins with one."""

from __future__ import annotations

import math
import re

import pytest

from findings.made_run import MadeRun
from learnscope.findings import find
from learnscope.reading.words import listed
from learnscope.record.finding import with_taken_in

LAYERS = [f"layers.{i}" for i in range(9)]


def vanishing(run: MadeRun, step: int) -> None:
    run.gradients(step, {name: 8.0 ** (i - 9) for i, name in enumerate(LAYERS)}, 2.0)


def exploding(run: MadeRun, step: int) -> None:
    run.gradients(step, {name: 0.01 * 8.0 ** (8 - i) for i, name in enumerate(LAYERS)}, 1.0)


def starved(run: MadeRun, step: int) -> None:
    run.gradients(step, {name: 0.1 if name == LAYERS[-1] else 1e-5 for name in LAYERS})


def zero(run: MadeRun, step: int) -> None:
    run.gradients(step, {name: 0.0 if name in LAYERS[:2] else 0.1 for name in LAYERS})


def absent(run: MadeRun, step: int) -> None:
    run.gradients(step, dict.fromkeys(LAYERS[2:], 0.1), without=2)


def still(run: MadeRun, step: int) -> None:
    run.gradients(step, dict.fromkeys(LAYERS, 0.1))
    run.change((step - 1, step), {f"{name}.weight": 0.0 if name in LAYERS[:2] else 0.9 for name in LAYERS})


def thawed(run: MadeRun, step: int) -> None:
    run.manifest["model"]["frozen"] = ["layers.0.weight"]
    run.change((step - 1, step), {"layers.0.weight": 0.5, "layers.1.weight": 0.5})


def outside(run: MadeRun, step: int) -> None:
    run.manifest["model"]["trainable_outside_optimizer"] = ["layers.0.weight", "layers.1.weight"]
    run.change((step - 1, step), {"layers.0.weight": 0.0, "layers.1.weight": 0.5, "layers.2.weight": 0.5})


def broken(run: MadeRun, step: int) -> None:
    run.loss(step, 1.0)
    run.gradients(step, dict.fromkeys(LAYERS, math.nan), nan=1, first="layers.1.weight", bad_tensors=1)


def dead(run: MadeRun, step: int) -> None:
    run.activations(step, {name: 0.9 if name in LAYERS[:2] else 0.0 for name in LAYERS})


def saturated(run: MadeRun, step: int) -> None:
    run.activations(step, dict.fromkeys(LAYERS, 0.1), dict.fromkeys(LAYERS[3:5], 0.8))


def absorbed(run: MadeRun, step: int) -> None:
    run.manifest["model"]["dtypes"] = {"bfloat16": 1000}
    run.absorbed(step, {name: 0.9 if name in LAYERS[:2] else 0.1 for name in LAYERS})


def decay_absorbed(run: MadeRun, step: int) -> None:
    run.manifest["model"]["dtypes"] = {"bfloat16": 500, "float16": 500}
    run.absorbed(step, dict.fromkeys(LAYERS, 0.8), dict.fromkeys(LAYERS, 1.0))


KINDS = {
    vanishing: "vanishing", exploding: "exploding", starved: "vanishing",
    zero: "zero_gradients", absent: "no_gradient", still: "not_moving", thawed: "frozen_but_moving",
    outside: "not_optimised", broken: "nonfinite", dead: "dead_units", saturated: "saturated_units",
}  # fmt: skip


@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
def test_no_sentence_begins_with_a_name_and_no_name_is_capitalised(make) -> None:
    run = MadeRun(layers=LAYERS)
    for step in range(1, 6):
        make(run, step)
    found = list(with_taken_in(find(run.reader)))
    assert KINDS[make] in [finding.kind for finding in found]
    for finding in found:
        assert finding.scopes
        for text in (finding.title, finding.detail, finding.advice):
            assert not re.search(r"Layers\.\d", text), text
            assert not re.search(r"(^|[.!?] )layers\.", text), text
            assert "  " not in text
        assert finding.detail.endswith(".")
        assert finding.advice.endswith(".")
        assert any(scope in finding.detail for scope in finding.scopes)


def test_lists_read_as_english() -> None:
    assert listed(["a", "b"], 6) == "a and b"
    assert listed(list("abcd"), 6) == "a, b, c and d"
    assert listed(list("abcd"), 2) == "a, b and 2 more"


def test_steps_and_counts_carry_their_thousands() -> None:
    run = MadeRun(layers=LAYERS)
    for step in range(10_000, 60_000, 10_000):
        vanishing(run, step)
    [finding] = find(run.reader)
    assert "since step 10,000" in finding.title


def test_the_holdout_says_how_many_positions_were_lost() -> None:
    run = MadeRun()
    run.model("Holdout", 10, holdout_loss=1.0, holdout_nonfinite=0, holdout_positions=8)
    run.model("Holdout", 20, holdout_loss=math.nan, holdout_nonfinite=6, holdout_positions=8)
    [finding] = find(run.reader)
    assert "first at step 20 (clean at step 10): logits not finite at 6 of 8 positions." in finding.detail


def test_masked_logits_alone_are_no_finding() -> None:
    run = MadeRun()
    run.model("Holdout", 10, holdout_loss=1.0, holdout_nonfinite=8, holdout_positions=8)
    assert find(run.reader) == []
