"""Every family of adapters, as real PEFT models trained ten steps, against updates built outright."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import peft
import pytest
import torch
from torch import Tensor, nn

from learnscope.model.adapters.extras import base_matrix, dora_direction
from learnscope.model.adapters.importance import ALLOCATOR, VALUES, adalora_allocations
from learnscope.model.adapters.inventory import Adapter, find_adapters
from learnscope.model.adapters.start import AdapterError, init_milora, remember_start
from learnscope.tensor.adapters.spectrum import decompose_factors
from model.adapters.adapted import ADDED, ALPHA, FAMILIES, RANK, TARGETS, Adapted, adapted, layer_at, scopes, update
from seeds.tiny import language_model, token_batches


@pytest.fixture(scope="module", params=FAMILIES)
def trained(request: pytest.FixtureRequest) -> Adapted:
    one = adapted(request.param)
    one.train()
    return one


def found_in(one: Adapted) -> dict[str, Adapter]:
    return {adapter.scope: adapter for adapter in find_adapters(one.model, [one.optimizer]).items}


def values_of(adapter: Adapter) -> np.ndarray:
    assert adapter.parts.factors is not None, adapter.parts.reason
    (found,) = decompose_factors([adapter.parts.factors])
    return found.values.numpy()


def make(family: str = "lora", **options: Any) -> Adapted:
    one = adapted(family, **options)
    one.train(3)
    return one


def test_the_family_is_recognised(trained: Adapted) -> None:
    found = find_adapters(trained.model, [trained.optimizer])
    assert {one.parts.family for one in found.items} == {trained.family}
    assert found.unknown == {}
    assert all(one.active and not one.merged and one.name == "default" for one in found.items)


@pytest.mark.parametrize("trained", [*ADDED, "dora"], indirect=True)
def test_spectra_are_those_of_the_built_product(trained: Adapted) -> None:
    adapters = found_in(trained)
    assert list(adapters) == scopes(trained)
    largest = []
    for scope, adapter in adapters.items():
        truth = torch.linalg.svdvals(update(trained, scope))
        found = values_of(adapter)
        largest.append(float(truth[0]))
        np.testing.assert_allclose(found, truth[: len(found)], rtol=1e-5, atol=1e-10 * float(truth[0]))
        assert float(truth[len(found) :].sum()) < 1e-10
    assert max(largest) > 1e-4  # they have learnt something; AdaLoRA may have given one up


@pytest.mark.parametrize("family", ADDED)
def test_merging_adds_the_product_to_the_weight(family: str) -> None:
    one = make(family)
    adapters, expected = found_in(one), {scope: update(one, scope) for scope in scopes(one)}
    merged = one.model.merge_and_unload().state_dict()
    for scope, adapter in adapters.items():
        difference = merged[f"{scope}.weight"].double() - one.base[f"{scope}.weight"]
        assert adapter.parts.factors is not None
        torch.testing.assert_close(difference, expected[scope], rtol=0, atol=1e-6)
        torch.testing.assert_close(adapter.parts.factors.product(), expected[scope], rtol=0, atol=1e-9)


@pytest.mark.parametrize(("family", "vector"), [("ia3", "ia3_l"), ("layernorm", "weight")])
def test_vectors_have_no_spectrum_and_say_why(family: str, vector: str) -> None:
    one = make(family)
    for adapter in found_in(one).values():
        assert adapter.parts.factors is None
        assert adapter.parts.reason is not None
        assert "vector" in adapter.parts.reason
        now, then = adapter.parts.vectors[vector]
        assert then is not None
        assert not torch.equal(now, then)
        torch.testing.assert_close(then, torch.ones_like(then))  # RMS norms of a fresh Llama are ones as well


def test_a_merged_layernorm_keeps_its_sides() -> None:
    one = make("layernorm")
    before = {scope: adapter.parts.vectors["weight"] for scope, adapter in found_in(one).items()}
    one.model.merge_adapter()
    after = found_in(one)
    for scope, (now, then) in before.items():
        assert after[scope].merged
        assert after[scope].parts.vectors["weight"][0] is now
        assert after[scope].parts.vectors["weight"][1] is then


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_doras_direction_and_what_merging_adds(scale: float) -> None:
    one = make("dora")
    for scope in scopes(one):
        layer_at(one, scope).lora_magnitude_vector["default"].weight.data *= scale
    adapters = found_in(one)
    found = {scope: dora_direction(adapter) for scope, adapter in adapters.items()}
    expected = {scope: update(one, scope) for scope in adapters}
    magnitudes = {scope: adapter.parts.vectors["magnitude"][0].detach().double() for scope, adapter in adapters.items()}
    merged = one.model.merge_and_unload().state_dict()
    for scope, direction in found.items():
        assert not isinstance(direction, str)
        base = one.base[f"{scope}.weight"]
        assert direction.direction_norm == pytest.approx(float((base + expected[scope]).norm()), rel=1e-9)
        assert direction.magnitude_norm == pytest.approx(float(magnitudes[scope].norm()), rel=1e-9)
        added = merged[f"{scope}.weight"].double() - base
        assert direction.merged_update_norm == pytest.approx(float(added.norm()), rel=1e-4)


def test_a_merged_dora_has_no_direction_and_says_why() -> None:
    one = make("dora")
    one.model.merge_adapter()
    for adapter in found_in(one).values():
        reason = dora_direction(adapter)
        assert isinstance(reason, str)
        assert "merged" in reason
        assert adapter.merged
        assert adapter.active


def test_plain_lora_is_not_dora_though_it_has_the_dictionary() -> None:
    one = make("lora")
    assert all(len(adapter.layer.lora_magnitude_vector) == 0 for adapter in found_in(one).values())
    assert {adapter.parts.family for adapter in found_in(one).values()} == {"lora"}


def reference_importance(allocator: Any, model: Any, name: str) -> Tensor:
    """What mask_to_budget ranks by, read off the smoothed sensitivities by the paper's formula, triplet by triplet."""
    s = {part: (allocator.exp_avg_ipt[name % part] * allocator.exp_avg_unc[name % part]).double() for part in
         ("lora_A", "lora_B", "lora_E")}  # fmt: skip
    return torch.stack([s["lora_E"][i, 0] + s["lora_A"][i].mean() + s["lora_B"][:, i].mean() for i in range(RANK)])


def test_adaloras_importance_decides_what_its_allocator_keeps() -> None:
    one = adapted("adalora")
    adapters = list(found_in(one).values())
    fresh = adalora_allocations(one.model, adapters)
    assert {(one.how, one.rank) for one in fresh} == {(VALUES, RANK)}
    one.train(8)
    allocator = one.model.base_model.rankallocator
    found = adalora_allocations(one.model, adapters)
    for adapter, allocation in zip(adapters, found, strict=True):
        truth = reference_importance(allocator, one.model, f"{adapter.scope}.%s.default")
        assert allocation.how == ALLOCATOR
        torch.testing.assert_close(allocation.scores.double(), truth, rtol=1e-5, atol=0)
    kept = {name: sum(mask) for name, mask in one.model.peft_config["default"].rank_pattern.items()}
    assert {f"{a.scope}.lora_E.default": own.rank for a, own in zip(adapters, found, strict=True)} == kept
    assert sum(kept.values()) < RANK * len(adapters)
    # the scores are those that decide: masking to a budget by them zeroes the least important triplets
    budget = RANK * len(adapters) - 5
    pattern = allocator.mask_to_budget(one.model.base_model.model, budget)
    threshold = torch.cat([allocation.scores for allocation in found]).sort().values[4]
    for adapter, allocation in zip(adapters, found, strict=True):
        assert pattern[f"{adapter.scope}.lora_E.default"] == (allocation.scores > threshold).tolist()


def test_adaloras_pruned_triplets_lower_the_rank() -> None:
    one = adapted("adalora")
    one.train(8)
    adapters = list(found_in(one).values())
    for adapter, allocation in zip(adapters, adalora_allocations(one.model, adapters), strict=True):
        assert (values_of(adapter) > 0).sum() == allocation.rank


def test_milora_begins_with_the_smallest_components_and_changes_no_output() -> None:
    torch.manual_seed(4)
    plain = language_model(attention_dropout=0.0).eval()
    (batch,) = token_batches(1)
    before, weights = plain(**batch).logits, copy.deepcopy(plain.state_dict())
    model = peft.get_peft_model(plain, peft.LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=TARGETS)).eval()
    assert init_milora(model) == 6
    torch.testing.assert_close(model(**batch).logits, before, rtol=1e-4, atol=1e-5)
    for adapter in find_adapters(model).items:
        whole = torch.linalg.svdvals(weights[f"{adapter.scope}.weight"].double())
        layer = adapter.layer
        product = ALPHA / RANK * layer.lora_B["default"].weight.double() @ layer.lora_A["default"].weight.double()
        torch.testing.assert_close(torch.linalg.svdvals(product)[:RANK], whole[-RANK:], rtol=1e-4, atol=1e-6)
        rest = torch.linalg.svdvals(layer.get_base_layer().weight.double())
        torch.testing.assert_close(rest[:-RANK], whole[:-RANK], rtol=1e-4, atol=1e-6)
        assert values_of(adapter).tolist() == [0.0] * 2 * RANK  # nothing has been learnt yet


def refuse(model: nn.Module, message: str) -> None:
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(AdapterError, match=message):
        init_milora(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_milora_refuses_what_it_cannot_begin_and_changes_nothing() -> None:
    refuse(make("lora").model, "before training")
    refuse(adapted("dora").model, "Dora")
    refuse(adapted("lora", r=17).model, "r=17 is more than the 16")
    refuse(adapted("lora", target_modules=["q_proj", "embed_tokens"]).model, "Embedding is no linear layer")
    refuse(adapted("ia3").model, "no LoRA adapter")
    shared = language_model()
    shared.model.layers[1].self_attn.q_proj.weight = shared.model.layers[0].self_attn.q_proj.weight
    refuse(peft.get_peft_model(shared, peft.LoraConfig(r=2, target_modules=["q_proj"])), "lose its minor components")


def test_pissa_without_its_start_says_how_to_keep_it() -> None:
    model = peft.get_peft_model(language_model(), peft.LoraConfig(init_lora_weights="pissa", target_modules=TARGETS))
    for adapter in find_adapters(model).items:
        assert adapter.parts.factors is None
        assert adapter.parts.reason is not None
        assert "remember_start" in adapter.parts.reason
    assert remember_start(model) == 6
    assert remember_start(adapted("lora").model) == 0  # it begins with zero: nothing to keep
    assert all(values_of(adapter).max() == 0 for adapter in find_adapters(model).items)
    with pytest.raises(AdapterError, match="no LoRA adapter"):
        remember_start(nn.Linear(2, 2))


def test_ranks_and_scalings_by_pattern() -> None:
    one = make("lora", rank_pattern={"q_proj": 1}, alpha_pattern={"v_proj": 20})
    for scope, adapter in found_in(one).items():
        rank, alpha = (1 if "q_proj" in scope else RANK), (20 if "v_proj" in scope else ALPHA)
        assert adapter.parts.rank == rank
        layer = adapter.layer
        product = layer.lora_B["default"].weight.double() @ layer.lora_A["default"].weight.double()
        truth = torch.linalg.svdvals(alpha / rank * product.detach())
        np.testing.assert_allclose(values_of(adapter), truth[:rank], rtol=1e-5)


def test_a_fresh_lora_adds_nothing() -> None:
    assert all(values_of(adapter).tolist() == [0.0] * RANK for adapter in found_in(adapted("lora")).values())


def test_several_adapters_disabled_and_merged() -> None:
    one = make("lora")
    one.model.add_adapter("second", peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False))
    found = find_adapters(one.model).items
    assert [(a.name, a.active) for a in found if a.scope.endswith("0.self_attn.q_proj")] == [
        ("default", True), ("second", False),
    ]  # fmt: skip
    assert sum(a.name == "second" for a in found) == 2
    values = {(a.scope, a.name): values_of(a) for a in found}
    one.model.merge_adapter(["default"])
    assert all(a.merged == (a.name == "default") for a in find_adapters(one.model).items)
    with one.model.disable_adapter():
        assert not any(a.active for a in find_adapters(one.model).items)
    one.model.unmerge_adapter()
    with one.model.disable_adapter():
        disabled = find_adapters(one.model).items
        assert not any(a.active for a in disabled)
        for a in disabled:
            np.testing.assert_array_equal(values_of(a), values[a.scope, a.name])


def test_modules_that_share_an_adapter_are_named() -> None:
    one = make("lora")
    first, second = (layer_at(one, f"model.layers.{i}.self_attn.q_proj") for i in (0, 1))
    second.lora_A["default"].weight, second.lora_B["default"].weight = (
        first.lora_A["default"].weight, first.lora_B["default"].weight,
    )  # fmt: skip
    tied = {a.scope: a.tied_to for a in find_adapters(one.model).items if a.tied_to}
    assert tied == {"model.layers.1.self_attn.q_proj": "model.layers.0.self_attn.q_proj"}


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(11, 6)
        self.picture = nn.Conv2d(3, 8, 3)
        self.groups = nn.Conv2d(8, 8, 3, groups=4)

    def forward(self, x: Tensor) -> Tensor:
        return self.groups(self.picture(x))


@pytest.mark.parametrize("target", ["tokens", "picture"])
@pytest.mark.parametrize("dora", [False, True])
def test_embeddings_and_convolutions(target: str, dora: bool) -> None:
    torch.manual_seed(0)
    config = peft.LoraConfig(r=2, lora_alpha=3, target_modules=[target], init_lora_weights=False, use_dora=dora)
    model = peft.get_peft_model(Small(), config)
    (adapter,) = find_adapters(model).items
    layer: Any = adapter.layer
    delta = layer.get_delta_weight("default").detach().double()
    flat = delta.mT if target == "tokens" else delta.flatten(1)
    np.testing.assert_allclose(values_of(adapter), torch.linalg.svdvals(flat)[:2], rtol=1e-5)
    assert adapter.parts.factors is not None
    torch.testing.assert_close(adapter.parts.factors.product(), flat, rtol=0, atol=1e-5)
    assert adapter.parts.family == ("dora" if dora else "lora")
    if dora:
        direction = dora_direction(adapter)
        assert not isinstance(direction, str)
        whole = layer.get_base_layer().weight.detach().double() + delta
        assert direction.direction_norm == pytest.approx(float(whole.norm()), rel=1e-5)


def test_a_grouped_convolution_says_why_it_has_none() -> None:
    model = peft.get_peft_model(Small(), peft.LoraConfig(r=4, target_modules=["groups"]))
    (adapter,) = find_adapters(model).items
    assert adapter.parts.factors is None
    assert "groups" in (adapter.parts.reason or "")


def test_unknown_families_are_named() -> None:
    model = peft.get_peft_model(language_model(), peft.LoHaConfig(r=2, target_modules=["q_proj"]))
    found = find_adapters(model)
    assert found.items == []
    assert found.unknown == {"loha": ["model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.q_proj"]}
    prompted = peft.get_peft_model(
        language_model(), peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    )
    assert find_adapters(prompted).unknown == {"PROMPT_TUNING": ["model"]}


def test_a_model_without_adapters_is_refused() -> None:
    with pytest.raises(AdapterError, match="get_peft_model"):
        find_adapters(language_model())


def test_a_packed_weight_that_cannot_be_unpacked_is_named() -> None:
    one = make("dora")
    (layer, *_) = [layer_at(one, scope) for scope in scopes(one)]
    base = layer.get_base_layer()
    base.weight = nn.Parameter(torch.zeros(16, 16, dtype=torch.uint8), requires_grad=False)
    reason = base_matrix(layer)
    assert isinstance(reason, str)
    assert "uint8" in reason
