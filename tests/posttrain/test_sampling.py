"""Samples that grow until the interval is narrow, and nothing else decides how many examples are used."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from learnscope.intervals import ratio_interval
from learnscope.model.bits.mixes import uniform
from learnscope.model.bits.quantise import quantised
from learnscope.model.bits.quantised_units import find_units
from learnscope.posttrain import ModelAnalyzer
from learnscope.posttrain.errors import PosttrainError
from learnscope.posttrain.planning.depth import WANTED, Share
from learnscope.posttrain.planning.sampling import SMALLEST, Sample, enough_examples
from learnscope.task import HuggingFaceTask, TupleTask
from probes.reference import mlp, tiny_gpt2

TASK = HuggingFaceTask()


def batches(examples: int, length: int = 8) -> list[dict[str, Any]]:
    ids = torch.randint(0, 40, (examples, length), generator=torch.Generator().manual_seed(1))
    return [{"input_ids": part, "labels": part} for part in ids.split(8)]


def half_width(model: Any, examples: int) -> float:
    """By torch's own functions, in float64: KL of each position summed over each example."""
    ids = torch.cat([batch["input_ids"] for batch in batches(128)])[:examples]
    with torch.no_grad():
        p = model(ids).logits[:, :-1].double().log_softmax(-1)
        with quantised(model, uniform(find_units(model), 4)):
            q = model(ids).logits[:, :-1].double().log_softmax(-1)
    each = torch.nn.functional.kl_div(q, p, log_target=True, reduction="none").sum((1, 2)).numpy()
    low, high, _ = ratio_interval(each, np.full(examples, 7.0))
    return float(high - low) / 2 / (each.sum() / (7 * examples))


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    return tiny_gpt2().eval()


@pytest.mark.parametrize("narrow", [10.0, 0.12, 0.06])
def test_the_first_size_whose_interval_is_narrow_is_taken(model: Any, narrow: float) -> None:
    found = enough_examples(model, TASK, batches(128), 128, narrow)
    assert found is not None
    halves = {size: half_width(model, size) for size in (32, 64, 128)}
    expected = next((size for size, half in halves.items() if half <= narrow), 128)
    assert found.examples == expected
    assert found.half == pytest.approx(halves[expected], rel=1e-3)
    assert found.is_enough == (halves[expected] <= narrow)
    assert found == enough_examples(model, TASK, batches(128), 128, narrow), "no clock, no chance"


def test_no_more_than_may_be_used(model: Any) -> None:
    found = enough_examples(model, TASK, batches(128), 50, 1e-9)
    assert found is not None
    assert (found.examples, found.given, found.is_enough) == (50, 128, False)
    assert "are wanted: give more" in Sample(128, 128, found.half, 1e-9).words()


def test_regression_is_judged_by_the_squared_error() -> None:
    data = [(torch.randn(40, 3), torch.randn(40, 2))]
    found = enough_examples(mlp(3, 5, 2), TupleTask(), data, 40, 100.0)
    assert found is not None
    assert found.half is not None
    assert found.half > 0


def test_a_model_without_units_is_not_asked() -> None:
    data = [(torch.randn(4, 3), torch.randint(0, 3, (4,)))]
    assert enough_examples(torch.nn.Sequential(torch.nn.ReLU()), TupleTask(), data, 4, 0.1) is None


def test_the_bit_widths_use_as_many_as_are_enough_and_say_so(model: Any) -> None:
    analyzer = ModelAnalyzer(model, progress=False)
    data = analyzer.planner.fixed(batches(128))
    sample = analyzer.planner.sample(data)
    assert sample is not None
    assert analyzer.planner.depth(data).bits == Share(sample.examples)
    assert SMALLEST == WANTED <= sample.examples, "never on fewer than before"
    assert analyzer.planner.depth(data).attacks == Share(WANTED)
    few = analyzer.planner.fixed(batches(16))
    assert analyzer.planner.sample(few) is None, "all of so few are used anyway"
    assert analyzer.planner.depth(few).bits == Share(16)


def test_effort_is_a_choice_of_three(model: Any) -> None:
    seconds = [ModelAnalyzer(model, progress=False, **given).planner.level.seconds
               for given in ({"quick": True}, {}, {"thorough": True})]  # fmt: skip
    assert seconds == sorted(seconds)
    assert math.prod(seconds) > 0
    with pytest.raises(PosttrainError, match="exclude each other"):
        ModelAnalyzer(model, progress=False, quick=True, thorough=True)
