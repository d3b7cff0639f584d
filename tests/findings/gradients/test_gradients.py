"""Vanishing, exploding, zero and missing gradients, and the healthy layers that look like them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from findings.made_run import MadeRun
from learnscope.findings import Cuts, find
from learnscope.findings.gradients.absent import absent
from learnscope.findings.gradients.exploding import exploding
from learnscope.findings.gradients.vanishing import vanishing
from learnscope.quantities.gradients import GradientFlow
from learnscope.reading.gather import series
from learnscope.record import Finding

GPT = ["wte", "wpe", *[f"h.{i}" for i in range(8)], "ln_f"]


def make(layers: list[str]) -> MadeRun:
    return MadeRun(layers=layers)


def found(run: MadeRun, **cuts: float) -> list[Finding]:
    chosen = Cuts(**cuts)  # type: ignore[arg-type]
    return [*vanishing(run.reader, chosen), *exploding(run.reader, chosen)]


def healthy(seed: int, steps: int = 40) -> MadeRun:
    """A transformer as measured on small real ones: norms within a factor of 50, weights within 100."""
    random = np.random.default_rng(seed)
    run = make(GPT)
    norm = {layer: float(10 ** random.normal(-0.5, 0.35)) for layer in GPT}
    weight = {layer: float(10 ** random.normal(1.2, 0.4)) for layer in GPT}
    for step in range(1, steps + 1):
        noise = 10 ** random.normal(0, 0.15, len(GPT))
        run.gradients(step, {k: v * n for (k, v), n in zip(norm.items(), noise, strict=True)}, weight, clip=1.0)
        run.loss(step, 4.0 / step**0.3)
    return run


@pytest.mark.parametrize("seed", range(5))
def test_healthy_runs_have_no_finding(seed: int) -> None:
    assert find(healthy(seed).reader) == []


def test_a_large_embedding_of_which_few_rows_are_touched_is_healthy() -> None:
    run = make(["emb", "fc1", "fc2", "out"])
    for step in range(1, 11):
        # 300,000 × 64 entries: the ratio is 10,000 times below the median layer's, the norm only 12 times
        run.gradients(step, {"emb": 0.006, "fc1": 0.08, "fc2": 0.07, "out": 0.1},
                      {"emb": 4380.0, "fc1": 4.7, "fc2": 4.7, "out": 0.7})  # fmt: skip
    assert found(run) == []


def test_a_head_that_starts_at_zero_is_healthy() -> None:
    run = make(["emb", "fc1", "fc2", "out"])
    for step in range(1, 31):
        body = 1e-6 * step
        # the probe gives null at first (‖W‖ = 0), then a ratio that falls as the weights grow
        run.gradients(step, {"emb": body, "fc1": body, "fc2": body, "out": 0.1},
                      {"emb": 5.0, "fc1": 4.7, "fc2": 4.7, "out": 1e-5 * (step - 1)})  # fmt: skip
    assert found(run) == []


def test_a_gradient_lost_on_its_way_back() -> None:
    names = [f"layers.{i}" for i in range(9)]
    run = make(names)
    for step in range(10, 110, 10):
        run.gradients(step, {name: 8.0 ** (i - 9) for i, name in enumerate(names)}, 2.0)
    findings = found(run)
    assert [f.kind for f in findings] == ["vanishing"]
    [finding] = findings
    # the median layer is layers.4 with 8⁻⁵/2; 0 and 1 are 4,096 and 512 times below, 2 only 64 times
    assert finding.scopes == ["layers.0", "layers.1"]
    assert finding.severity == "warning"
    assert "2 of 9 layers since step 10" in finding.title
    for said in ("3.7e-09 to 3.0e-08", "the median layer's 1.5e-05", "4,100 times below", "over 10 consecutive"):
        assert said in finding.detail
    assert "layers.7, layers.8" not in finding.title
    assert "other end" in finding.detail  # the output's end is said, and not accused of exploding
    assert "first 2 layers, before layers.2" in finding.advice
    assert finding.evidence.value == pytest.approx(8.0**-9 / 2)
    assert (finding.evidence.n, finding.evidence.first_step, finding.evidence.last_step) == (10, 10, 100)


def test_a_gradient_that_grows_on_its_way_back() -> None:
    names = [f"layers.{i}" for i in range(9)]
    run = make(names)
    for step in range(1, 6):
        run.gradients(step, {name: 0.01 * 8.0 ** (8 - i) for i, name in enumerate(names)}, 1.0)
    findings = found(run)
    assert [f.kind for f in findings] == ["exploding"]
    assert findings[0].severity == "warning"  # neither the loss nor the updates were recorded
    # the median is 0.01·8⁴; 0 and 1 are 8⁴ and 8³ times above it, 2 only 64 times
    assert findings[0].scopes == names[:2]
    assert "4,100 times above" in findings[0].detail


def test_only_the_output_end_stands_out() -> None:
    names = ["a", "b", "c", "d", "head"]
    run = make(names)
    for step in range(1, 6):
        run.gradients(step, {"a": 1e-5, "b": 1e-5, "c": 1e-5, "d": 1e-5, "head": 0.1})
    [finding] = found(run)
    assert finding.kind == "vanishing"
    assert finding.scopes == ["head"]
    assert "lost before it reaches d" in finding.title
    assert "10,000 times above" in finding.detail


def test_one_layer_in_the_middle() -> None:
    run = make(GPT)
    for step in range(1, 6):
        run.gradients(step, {layer: 1e-4 if layer == "h.3" else 0.1 for layer in GPT})
    [finding] = found(run)
    assert finding.scopes == ["h.3"]
    assert "branch of h.3" in finding.advice
    assert absent(run.reader, Cuts()) == []  # small is not zero


def test_four_measurements_are_not_five_and_nulls_do_not_count() -> None:
    run = make(GPT)
    for step in range(1, 6):
        value = None if step == 2 else 1e-4
        run.gradients(step, {layer: value if layer == "h.3" else 0.1 for layer in GPT})
    assert found(run) == []
    run.gradients(6, {layer: 1e-4 if layer == "h.3" else 0.1 for layer in GPT})
    [finding] = found(run)  # all but step 2: a step without a value neither counts nor interrupts
    assert finding.evidence.n == 5
    assert found(run, vanishing_measurements=6) == []


def test_an_interrupted_streak_does_not_count() -> None:
    run = make(GPT)
    for step in range(1, 12):
        run.gradients(step, {layer: 1e-4 if layer == "h.3" and step % 3 else 0.1 for layer in GPT})
    assert found(run) == []


def test_what_has_passed_is_only_information() -> None:
    run = make(GPT)
    for step in range(1, 21):
        run.gradients(step, {layer: 1e-4 if layer == "h.3" and step <= 5 else 0.1 for layer in GPT})
    [finding] = found(run)
    assert finding.severity == "info"
    assert "in steps 1 to 5, not after" in finding.title


def test_two_layers_are_too_few_for_a_median() -> None:
    run = make(["a", "b"])
    for step in range(1, 6):
        run.gradients(step, {"a": 1e-4, "b": 1.0})
    assert found(run) == []


def test_a_streak_runs_through_a_resume_and_superseded_steps_are_left_out() -> None:
    run = make(GPT)
    low = {layer: 1e-4 if layer == "h.3" else 0.1 for layer in GPT}
    fine = dict.fromkeys(GPT, 0.1)
    for step, norms in ((1, fine), (2, low), (3, fine)):
        run.gradients(step, norms)
    run.resume(2)
    for step in range(3, 7):
        run.gradients(step, low)
    [finding] = found(run)
    assert (finding.evidence.first_step, finding.evidence.last_step, finding.evidence.n) == (2, 6, 5)


def test_exactly_zero_is_a_statement_of_its_own() -> None:
    run = make(GPT)
    for step in range(1, 7):
        run.gradients(step, {layer: 0.0 if layer in ("wte", "wpe", "h.0") and step > 2 else 0.1 for layer in GPT})
    assert found(run) == []
    [finding] = absent(run.reader, Cuts())
    assert finding.kind == "zero_gradients"
    assert finding.scopes == ["wte", "wpe", "h.0"]
    assert finding.since == 3
    assert "since step 3" in finding.title
    assert "4 consecutive measurements of 6" in finding.detail
    assert "between h.0 and h.1" in finding.advice


def test_layers_without_a_gradient_do_not_pull_the_median_down() -> None:
    run = make(GPT)
    for step in range(1, 7):
        run.gradients(step, {layer: 0.0 if i < 8 else 0.1 for i, layer in enumerate(GPT)})
    assert found(run) == []  # the three that have one are not far above a median of 0


def test_zero_at_the_first_step_only_is_nothing() -> None:
    run = make(GPT)
    for step in range(1, 7):
        run.gradients(step, {layer: 0.0 if layer == "wte" and step == 1 else 0.1 for layer in GPT})
    assert absent(run.reader, Cuts()) == []


def test_layers_that_no_gradient_reaches() -> None:
    run = MadeRun(layers=[*GPT, "aux", "base"], frozen=["base.weight"])
    for step in range(1, 5):
        run.gradients(step, dict.fromkeys(GPT, 0.1), without=2)
    [finding] = absent(run.reader, Cuts())
    assert finding.kind == "no_gradient"
    assert finding.scopes == ["aux"]  # base is frozen on purpose
    assert "In 4 measurements, steps 1 to 4, none reached aux." in finding.detail
    assert "2 had none" in finding.detail


def sparse(moved: float | None) -> MadeRun:
    """Every tenth step is looked at, and no gradient reaches the expert then; it may have moved in between."""
    run = MadeRun(layers=[*GPT, "expert"])
    for step in range(10, 80, 10):
        run.gradients(step, dict.fromkeys(GPT, 0.1), without=2)
        if moved is not None:
            tensors = {f"{layer}.weight": 0.5 for layer in GPT} | {"expert.weight": float(moved > 0)}
            run.change((step - 10, step), tensors, layers=dict.fromkeys(GPT, 1e-2) | {"expert": moved})
    return run


def test_an_expert_that_is_trained_at_other_steps_is_healthy() -> None:
    assert absent(sparse(moved=1e-2).reader, Cuts()) == []


def test_never_is_not_said_of_steps_that_nobody_looked_at() -> None:
    [still] = absent(sparse(moved=0.0).reader, Cuts())
    assert still.severity == "warning"
    assert still.title == "No gradient reached expert at any of the 7 steps looked at"
    assert still.detail.endswith("The weights did not move either.")
    [unknown] = absent(sparse(moved=None).reader, Cuts())
    assert unknown.severity == "info"
    assert "ever" not in unknown.title


@pytest.mark.parametrize(("every", "update", "said"), [(10, 1e-2, 0), (10, 1e-5, 1), (1, 1e-2, 1)])
def test_zero_at_the_steps_looked_at_only(every: int, update: float, said: int) -> None:
    run = make(GPT)
    for step in range(every, 10 * every, every):
        run.gradients(step, {layer: 0.0 if layer == "h.3" else 0.1 for layer in GPT})
        layers = dict.fromkeys(GPT, 1e-2) | {"h.3": update}
        run.change((step - every, step), {f"{layer}.weight": 0.5 for layer in GPT}, layers=layers)
    assert len(absent(run.reader, Cuts())) == said


def test_no_layer_is_missing_if_every_trainable_tensor_had_a_gradient() -> None:
    run = MadeRun(layers=[*GPT, "adapter_only"])
    for step in range(1, 5):
        run.gradients(step, dict.fromkeys(GPT, 0.1), without=0)
    assert absent(run.reader, Cuts()) == []


def test_broken_gradients_are_neither_vanishing_nor_missing() -> None:
    run = make(GPT)
    for step in range(1, 6):
        run.gradients(step, dict.fromkeys(GPT, math.nan), nan=3)
    assert found(run) == []
    assert absent(run.reader, Cuts()) == []


def test_two_probes_of_one_class_count_each_step_once() -> None:
    run = make(GPT)
    for step in range(1, 5):
        for probe in ("GradientFlow", "GradientFlow_2"):
            run.gradients(step, {layer: 1e-4 if layer == "h.3" else 0.1 for layer in GPT}, probe=probe)
    assert found(run) == []  # four steps, though eight records
    assert series(run.reader, GradientFlow.norm, stage="stepped").steps.tolist() == [1, 2, 3, 4]


def test_a_run_without_gradients() -> None:
    assert found(MadeRun()) == []
    assert absent(MadeRun().reader, Cuts()) == []
