"""What an audit recommends of bit widths is worth following: on trained models, on data that the search never saw."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from learnscope.model.bits.packed import load_packed
from learnscope.model.data import cut
from learnscope.posttrain import ModelAnalyzer
from learnscope.posttrain.session import by_scope
from learnscope.probes.bits.bit_frontier import BitFrontier
from learnscope.probes.bits.bit_optimum import BitOptimum
from learnscope.probes.bits.tolerance import Tolerance
from learnscope.probes.bits.trials import Trials
from learnscope.tensor.bits.allocation import NoAllocation, Point
from learnscope.tensor.bits.frontier import dominates
from posttrain.trained import trained_gpt2, trained_llama

EXAMPLES, LENGTH = 64, 24
Found = tuple[ModelAnalyzer, Any, dict[str, Any], dict[str, Any]]


@pytest.fixture(scope="module", params=[trained_gpt2, trained_llama])
def found(request: pytest.FixtureRequest) -> Found:
    """The analyzer, its data, what the whole search says, and what was advised before: blocks alone, at 4 bits."""
    make: Callable[[], Path] = request.param
    analyzer = ModelAnalyzer(make(), progress=False)
    data = analyzer.data(None, split="validation", examples=EXAMPLES, length=LENGTH)
    with torch.no_grad():
        before = analyzer.session.measure(BitOptimum(examples=EXAMPLES), data)
        told = analyzer.bit_width_analyzer.find_frontier(data, examples=EXAMPLES)
    name = before.notes["recommended_name"]
    return analyzer, data, told, {**by_scope(before, "configuration")[name], "bits": before.notes["bits"][name]}


def points(told: dict[str, Any]) -> list[Point]:
    """Everything that was measured on held-out data."""
    return [Point(name, item["packed_bytes"], item["kl"]) for name, item in told["configurations"].items()]


def dominated_choices(told: dict[str, Any]) -> list[tuple[str, str]]:
    """Every answer, and what was measured that is as small and as good, and better in one of the two."""
    measured = {point.name: point for point in points(told)}
    chosen = {told["recommended_name"], *(choice["name"] for choice in told["choices"].values())}
    return [(n, other.name) for n in chosen for other in measured.values() if dominates(other, measured[n])]


def test_nothing_that_is_recommended_is_dominated_by_anything_measured(found: Found) -> None:
    _, _, told, _ = found
    measured = points(told)
    named = {point.name for point in measured}
    # all ways that were asked for are there
    assert {"original", "float16", "bfloat16", *(f"uniform_{bits}" for bits in (8, 6, 5, 4, 3, 2))} <= named
    for part in ("group_", "mixed_", "blocks_", "activations_8"):
        assert any(part in name for name in named | told["dropped"].keys()), (part, named)
    assert dominated_choices(told) == []
    for name, item in told["configurations"].items():
        own = Point(name, item["packed_bytes"], item["kl"])
        assert item["on_frontier"] == (not any(dominates(other, own) for other in measured)), name


def test_the_advice_is_smaller_and_better_than_what_was_advised_before(found: Found) -> None:
    """Blocks at 4 bits or the best mix in their bytes, with embeddings in float32, was advised for these models."""
    analyzer, data, told, old = found
    new = told["configurations"][told["recommended_name"]]
    assert told["recommended_name"] == told["choices"]["indistinguishable"]["name"]
    assert new["packed_bytes"] <= 0.6 * old["packed_bytes"]
    assert new["kl"] <= old["kl"]
    assert new["change_high"] <= 0.01
    assert new["change_low"] <= 0.001, "no loss that is more than chance and a tenth of what is accepted"
    assert new["kl_high"] <= 2 * 0.01**2, "and outputs that differ by 1 % at most"
    within = told["choices"]["within"]
    assert within["bytes"] <= told["choices"]["indistinguishable"]["bytes"]
    assert within["high"] <= 0.01
    # asked for no more damage than before
    near = analyzer.bit_width_analyzer.find_frontier(data, max_kl=old["kl"], examples=EXAMPLES)
    assert dominated_choices(near) == []
    best = near["configurations"][near["recommended_name"]]
    assert best["kl"] <= old["kl"]
    assert best["packed_bytes"] <= new["packed_bytes"], "more damage is allowed"
    assert best["packed_bytes"] == min(point.bytes for point in points(near) if point.damage <= old["kl"])


def test_outputs_that_count_as_the_same_differ_by_one_in_a_hundred(found: Found, tmp_path: Path) -> None:
    """The distance that the limit on KL stands for, computed from the probabilities themselves, in float64."""
    analyzer, data, _, _ = found
    told = analyzer.bit_width_analyzer.find_frontier(data, examples=EXAMPLES)
    analyzer.bit_width_analyzer.export(tmp_path / "m.safetensors")
    other = copy.deepcopy(analyzer.model)
    load_packed(tmp_path / "m.safetensors", other)
    apart: list[Tensor] = []
    for batch in data:
        with torch.no_grad():
            p, q = (m.eval()(input_ids=batch["input_ids"]).logits.double().softmax(-1) for m in (analyzer.model, other))
        counts = batch["labels"][:, 1:] != -100
        apart.append(((p - q).abs().sum(-1) / 2)[:, :-1][counts])
    assert 0 < torch.cat(apart).mean() <= told["allowed"] == 0.01


def test_its_numbers_are_those_of_the_file_on_the_examples_that_were_held_out(found: Found, tmp_path: Path) -> None:
    """Loaded from the packed file, in float64 and with no code of the search: bytes, KL and perplexity."""
    analyzer, data, _, _ = found
    told = analyzer.bit_width_analyzer.find_frontier(data, examples=EXAMPLES)  # what is exported is the last answer
    name = told["recommended_name"]
    item = told["configurations"][name]
    info = analyzer.bit_width_analyzer.export(tmp_path / "m.safetensors")
    assert info["tensor_bytes"] == item["packed_bytes"]
    assert info["file_bytes"] < 1.15 * item["packed_bytes"], "a header of names, for a model of 560 kB"
    other = copy.deepcopy(analyzer.model)
    load_packed(tmp_path / "m.safetensors", other)
    documents = compared(analyzer, data, other)
    searched, held_out = documents[::2], documents[1::2]  # they take turns
    assert [sum(part.examples for part in half) for half in (searched, held_out)] == [
        told["search_examples"], told["held_out_examples"],
    ]  # fmt: skip
    assert told["search_examples"] + told["held_out_examples"] == EXAMPLES
    kl, own, new = (torch.cat([part.each[k] for part in held_out]).mean().item() for k in range(3))
    assert item["kl"] == pytest.approx(kl, rel=1e-3)
    assert item["search_damage"] == pytest.approx(torch.cat([d.each[0] for d in searched]).mean().item(), rel=1e-3)
    assert item["change"] == pytest.approx(math.exp(new - own) - 1, abs=2e-5)


def test_it_holds_on_texts_that_neither_the_search_nor_the_choice_has_seen(found: Found, tmp_path: Path) -> None:
    """Other passages of the built-in text: the bytes of the files, and the divergence, in float64."""
    analyzer, data, _, old = found
    fresh = analyzer.data(None, split="validation[50%:]", examples=EXAMPLES, length=LENGTH)
    seen, new_texts = ({tuple(row) for batch in part for row in batch["input_ids"].tolist()} for part in (data, fresh))
    assert not seen & new_texts
    assert not any("embed" in unit or "wte" in unit or "lm_head" in unit for unit in old["bits"]), "in float32, before"
    analyzer.bit_width_analyzer.find_frontier(data, examples=EXAMPLES)
    sizes, kl, increase = [], [], []
    for number, bits in enumerate((None, old["bits"])):
        info = analyzer.bit_width_analyzer.export(tmp_path / f"{number}.safetensors", bits)
        other = copy.deepcopy(analyzer.model)
        load_packed(tmp_path / f"{number}.safetensors", other)
        documents = compared(analyzer, fresh, other)
        each, own, new = (torch.cat([document.each[k] for document in documents]).mean().item() for k in range(3))
        sizes.append(info["tensor_bytes"])
        kl.append(each)
        increase.append(math.expm1(new - own))
    assert sizes[0] <= 0.6 * sizes[1]
    assert kl[0] <= kl[1]
    assert increase[0] <= 0.01


@dataclass
class Document:
    """How many examples it has; for each position the KL, and the losses of the model and of the other."""

    examples: int
    each: list[Tensor]


def compared(analyzer: ModelAnalyzer, data: Any, other: nn.Module) -> list[Document]:
    task, found = analyzer.session.task_of(data), dict[int, Document]()
    for batch in data:
        identities = task.ids(batch)
        assert identities is not None
        for place, identity in enumerate(identities.tolist()):
            one = cut(task, batch, place, place + 1)
            with torch.no_grad():
                outputs = [m.eval()(input_ids=one["input_ids"]).logits for m in (analyzer.model, other)]
            logs = [logits.double().log_softmax(-1)[0, :-1] for logits in outputs]
            counts = one["labels"][0, 1:] != -100
            targets = one["labels"][0, 1:][counts, None]
            losses = [-log[counts].gather(1, targets)[:, 0] for log in logs]
            each = [(logs[0].exp() * (logs[0] - logs[1])).sum(-1)[counts], *losses]
            known = found.setdefault(identity, Document(0, [torch.zeros(0, dtype=torch.float64)] * 3))
            known.examples += 1
            known.each = [torch.cat(pair) for pair in zip(known.each, each, strict=True)]
    return list(found.values())


def test_the_best_in_a_size(found: Found) -> None:
    analyzer, data, told, old = found
    limit = int(0.6 * old["packed_bytes"])
    sized = analyzer.bit_width_analyzer.find_frontier(data, max_bytes=limit, examples=EXAMPLES)
    best = sized["configurations"][sized["recommended_name"]]
    assert dominated_choices(sized) == []
    fitting = [point for point in points(sized) if point.bytes <= limit]
    assert best["packed_bytes"] <= limit
    assert best["kl"] == min(point.damage for point in fitting)
    assert best["kl"] <= old["kl"]
    assert sized["choices"]["at_size"]["name"] == sized["recommended_name"]
    assert told["configurations"]["uniform_4"]["kl"] == sized["configurations"]["uniform_4"]["kl"]


def test_a_budget_that_nothing_keeps_is_refused_from_the_shapes(found: Found) -> None:
    analyzer, _, told, _ = found
    model = analyzer.model
    least = BitFrontier().least_bytes(model)
    assert least < told["configurations"]["uniform_2"]["packed_bytes"], "one scale for a tensor takes less"
    BitFrontier(max_bytes=least).check_fits(model)
    analyzer_data = found[1]
    kept = analyzer.bit_width_analyzer.find_frontier(analyzer_data, max_bytes=least, examples=EXAMPLES)
    assert kept["configurations"][kept["recommended_name"]]["packed_bytes"] == least, "what may be kept is kept"
    with pytest.raises(NoAllocation, match=f"max_bytes={least - 1} cannot be kept: the smallest .* {least} bytes"):
        BitFrontier(max_bytes=least - 1).check_fits(model)
    # without embeddings, and with fewer widths, less is possible
    assert BitFrontier(embeddings=False).least_bytes(model) > 1.5 * least
    assert BitFrontier(bits=(8, 4)).least_bytes(model) > 1.5 * least


def test_only_the_frontier_near_the_accepted_loss_is_judged_when_asked_for(found: Found) -> None:
    analyzer, data, whole, _ = found
    limits = {"judged": "frontier", "search_examples": 8, "methods": ("gptq",)}
    told = analyzer.bit_width_analyzer.find_frontier(data, examples=EXAMPLES, **limits)
    searched = told["search_examples"]
    assert 8 <= searched < 16 < told["held_out_examples"] == EXAMPLES - searched, "with the rest of the last document"
    judged, far = set(told["configurations"]), set(told["far"])
    assert not judged & far
    assert {"original", "float16", "uniform_8", "uniform_4"} <= judged, "which everybody knows, beside it"
    assert len(judged) <= 16 < len(judged | far), "and most of what the search has tried is left out"
    assert dominated_choices(told) == []
    # on other examples to search on, and more to judge on, what is recommended is about as good
    new, old = (each["configurations"][each["recommended_name"]] for each in (told, whole))
    assert new["packed_bytes"] <= 1.2 * old["packed_bytes"]
    assert new["kl_high"] <= 2 * 0.01**2
    sized = analyzer.bit_width_analyzer.find_frontier(
        data, examples=EXAMPLES, max_bytes=int(0.5 * old["packed_bytes"]), **limits
    )
    assert dominated_choices(sized) == []
    assert sized["configurations"][sized["recommended_name"]]["packed_bytes"] <= 0.5 * old["packed_bytes"]


def test_the_frontier_is_judged_where_no_damage_is_allowed(found: Found) -> None:
    analyzer, data, _, _ = found
    limits = {"judged": "frontier", "search_examples": 8, "methods": ()}
    none = analyzer.bit_width_analyzer.find_frontier(data, examples=16, max_kl=0.0, **limits)
    assert none["recommended_name"] == "original"


def test_outputs_that_are_not_finite_are_judged_beside_the_frontier() -> None:
    """As of a cast that overflows: nothing does less damage than NaN, and it is nearest to no limit."""
    damages, sizes = {"float16": math.nan, "uniform_8": 1e-4, "uniform_6": 2e-4}, [300, 200, 100]
    by_name = dict(zip(damages, sizes, strict=True))
    tried = {name: SimpleNamespace(packed_bytes=lambda _, size=size: size) for name, size in by_name.items()}
    trials = SimpleNamespace(judged="frontier", tried=tried, moment=None, damage=damages.__getitem__)
    for name in ("_better", "_distance"):
        setattr(trials, name, partial(getattr(Trials, name), trials))
    assert Trials.not_near(cast(Any, trials), [1e-4], None) == []
    assert trials._better("float16", by_name) == "float16"
    assert trials._distance("float16", 1e-4) == math.inf


def test_a_loss_of_a_tenth_of_what_is_accepted_does_not_tell_apart() -> None:
    """With enough examples any change is more than chance, and would advise twice the bytes."""
    size, rng = 4000, np.random.default_rng(0)
    original = rng.gamma(2.0, 1.0, size)

    def scores(losses: Any) -> dict[str, Any]:
        positions = [1.0] * size
        sums = {"loss": losses.tolist(), "kl": [1e-5] * size, "positions": positions}
        return {"loss": float(losses.mean()), "kl": 1e-5, "tokens": True, "regression": False, "sums": sums}

    for change, told_apart in ((0.0, False), (0.0008, False), (0.002, True), (-0.01, False)):
        loss = Tolerance(0.01).loss(scores(original), scores(original + change + rng.normal(0, 0.001, size)))
        assert loss.low < math.expm1(change) < loss.high
        assert loss.high - loss.low < 0.0002, "so that the examples could tell"
        assert (loss.told_apart, loss.same) == (told_apart, not told_apart)


@pytest.mark.parametrize("options", [{"judged": "some"}, {"search_examples": 0}, {"search_examples": 2.5}])
def test_what_cannot_be_judged_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError), match=next(iter(options))):
        BitFrontier(**options)
