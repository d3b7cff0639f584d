"""The spectral tracker: its numbers, how it is asked, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import peft
import pytest
import torch
from torch import nn

from dynamics.traces import watched
from learnscope import AdapterError
from learnscope.trackers import SpectralTracker
from model.adapters.adapted import ADDED, RANK, TARGETS, adapted, update
from seeds.tiny import language_model, token_batches
from trackers.tracked import FIRST, MODULES, spectral_truth, train

PREFIX = "base_model.model."


@pytest.mark.parametrize("family", [*ADDED, "dora"])
def test_documented_metrics_are_those_of_the_update_at_every_step(family: str) -> None:
    one = adapted(family)
    tracker = SpectralTracker(one.model, log_frequency=2, optimizer=one.optimizer)
    truths: list[dict[str, dict[str, Any]]] = []

    def after_step(step: int) -> None:
        # PiSSA and MiLoRA have as many again from what they began with
        count = 2 * RANK if family in ("pissa", "milora", "milora+") else RANK
        if tracker.log_step(step):
            truths.append({name: spectral_truth(update(one, name), count) for name in MODULES})

    train(one, range(5), after_step=after_step)
    for name in MODULES:
        history = tracker.get_layer_history(name)
        assert history["steps"] == [0, 2, 4]
        assert history["rank"] == [RANK] * 3
        for place, truth in enumerate(truths):
            s = truth[name]["singular_values"]
            np.testing.assert_allclose(history["singular_values"][place], s, rtol=1e-5, atol=1e-7 * s[0])
            for metric, wanted in truth[name].items():
                if metric == "singular_values":
                    continue
                if wanted is None:
                    assert history[metric][place] is None
                    assert "infinite" in history["reasons"][metric][2 * place]
                else:
                    assert history[metric][place] == pytest.approx(wanted, rel=2e-4), (metric, place)
    assert tracker.get_summary_stats()["peft_type"] == family


def test_a_module_is_found_with_and_without_the_prefix_of_peft() -> None:
    one = adapted("lora")
    tracker = SpectralTracker(one.model, 1)
    train(one, range(2), after_step=tracker.log_step)
    short = tracker.get_layer_history(FIRST)
    assert short == tracker.get_layer_history(PREFIX + FIRST) == tracker.get_layer_history(layer_name=FIRST)
    assert len(short["steps"]) == 2
    assert tracker.modules == {"default": MODULES}
    with pytest.raises(ValueError, match=r"model\.layers\.0\.self_attn\.q_prj.*Did you mean .*q_proj'\?"):
        tracker.get_layer_history("model.layers.0.self_attn.q_prj")
    for wrong in (7, "", None):
        with pytest.raises(ValueError, match="is not known"):
            tracker.get_layer_history(wrong)  # type: ignore[arg-type]


def test_every_list_is_as_long_as_the_steps_and_none_has_a_reason() -> None:
    one = adapted("lora")
    tracker = SpectralTracker(one.model, 1)
    tracker.log_step(0)  # ΔW is still zero
    train(one, range(1, 3), after_step=tracker.log_step)
    history = tracker.get_layer_history(FIRST)
    reasons = history.pop("reasons")
    assert {len(values) for values in history.values()} == {3}
    for metric, values in history.items():
        assert {step for step, value in zip(history["steps"], values, strict=True) if value is None} == set(
            reasons.get(metric, {})
        ), metric
    assert history["nuclear_norm"][0] == 0.0
    assert history["singular_values"][0] == [0.0] * RANK
    assert history["effective_rank"][0] is None
    assert reasons["effective_rank"] == {0: "the update is zero"}
    assert history["left_drift/first"][1] is None  # a zero update has no directions
    assert 0 < history["left_drift/previous"][2] < 1


@pytest.mark.parametrize("family", ["ia3", "layernorm"])
def test_families_without_a_matrix_have_no_spectrum_and_say_so(family: str) -> None:
    one = adapted(family)
    tracker = SpectralTracker(one.model, 1)
    train(one, range(2), after_step=tracker.log_step)
    name = tracker.modules["default"][0]
    history = tracker.get_layer_history(name)
    assert history["singular_values"] == history["effective_rank"] == [None, None]
    assert "adds no matrix" in history["reasons"]["singular_values"][1]
    vector = "ia3_l" if family == "ia3" else "weight"
    parameter = next(p for n, p in one.model.named_parameters() if n.startswith(f"{PREFIX}{name}.") and p.requires_grad)
    assert history[f"vector_norm/{vector}"][-1] == pytest.approx(float(parameter.detach().double().norm()), rel=1e-12)
    summary = tracker.get_summary_stats()
    assert summary["metrics"]["effective_rank"] == {
        "mean": None, "std": None, "min": None, "max": None, "n": 0, "missing": len(tracker.modules["default"]),
    }  # fmt: skip


def test_dora_has_its_magnitude_and_direction() -> None:
    one = adapted("dora")
    tracker = SpectralTracker(one.model, 1)
    train(one, range(2), after_step=tracker.log_step)
    history = tracker.get_layer_history(FIRST)
    layer = one.model.get_submodule(PREFIX + FIRST)
    magnitude = layer.lora_magnitude_vector["default"].weight.detach().double()
    direction = one.base[f"{FIRST}.weight"] + update(one, FIRST)
    assert history["magnitude_norm"][-1] == pytest.approx(float(magnitude.norm()), rel=1e-9)
    assert history["direction_norm"][-1] == pytest.approx(float(direction.norm()), rel=1e-6)
    ratio = float(magnitude.norm() / direction.norm())
    assert history["magnitude_direction_ratio"][-1] == pytest.approx(ratio, rel=1e-6)
    assert tracker.get_summary_stats()["metrics"]["direction_norm"]["n"] == len(MODULES)


def test_adalora_has_the_importance_of_every_triplet() -> None:
    one = adapted("adalora")
    tracker = SpectralTracker(one.model, 1)
    tracker.log_step(0)
    train(one, range(1, 3), after_step=tracker.log_step)
    allocator = one.model.base_model.rankallocator
    history = tracker.get_layer_history(FIRST)
    assert history["importance_scores"][0] == [0.0] * RANK, "before the first gradient |E|, which starts at 0"
    assert history["importance_sum"][0] is None
    assert "|E|" in history["reasons"]["importance_sum"][0]
    own = {part: f"{FIRST}.lora_{part}.default" for part in "EAB"}
    score = {part: (allocator.exp_avg_ipt[key] * allocator.exp_avg_unc[key]).double() for part, key in own.items()}
    wanted = score["E"].flatten() + torch.stack([score["A"].mean(1), score["B"].mean(0)], 1).sum(1)
    np.testing.assert_allclose(history["importance_scores"][-1], wanted.numpy(), rtol=1e-5)
    assert len(wanted) == RANK


def test_only_multiples_are_measured_and_a_step_logged_again_replaces_itself() -> None:
    one = adapted("lora")
    tracker = SpectralTracker(one.model, log_frequency=10)
    assert [step for step in range(31) if tracker.log_step(step)] == [0, 10, 20, 30]
    assert tracker.steps == [0, 10, 20, 30]
    before = tracker.get_layer_history(FIRST)["nuclear_norm"]
    train(one, range(2))
    assert tracker.log_step(np.int64(20)) is True  # type: ignore[arg-type]
    after = tracker.get_layer_history(FIRST)["nuclear_norm"]
    assert tracker.steps == [0, 10, 20, 30]
    assert [now != then for now, then in zip(after, before, strict=True)] == [False, False, True, False]
    assert after[2] == pytest.approx(float(torch.linalg.svdvals(update(one, FIRST)).sum()), rel=1e-5)
    for wrong, error in ((-10, ValueError), (2.0, TypeError), ("10", TypeError), (True, ValueError), (None, TypeError)):
        with pytest.raises(error, match="step="):
            tracker.log_step(wrong)  # type: ignore[arg-type]
    assert tracker.steps == [0, 10, 20, 30]


def two_adapters() -> Any:
    torch.manual_seed(3)
    model: Any = peft.get_peft_model(
        language_model(), peft.LoraConfig(r=2, target_modules=["q_proj"]), adapter_name="first"
    )
    model.add_adapter("other", peft.LoraConfig(r=3, target_modules=["q_proj", "v_proj"], init_lora_weights=False))
    return model


def test_several_adapters_are_told_apart() -> None:
    model = two_adapters()
    tracker = SpectralTracker(model, 1)
    tracker.log_step(1)
    with pytest.raises(ValueError, match="the adapters first and other: say which, adapter='first'"):
        tracker.get_layer_history(FIRST)
    with pytest.raises(ValueError, match="the adapters first and other: say which"):
        tracker.get_metric_across_layers("rank")
    assert tracker.get_layer_history(FIRST, adapter="first")["rank"] == [2]
    assert tracker.get_layer_history(FIRST, adapter="other")["rank"] == [3]
    only = "model.layers.0.self_attn.v_proj"
    assert tracker.get_layer_history(only)["rank"] == [3]  # of which there is one
    assert set(tracker.get_metric_across_layers("rank", adapter="first").values()) == {2}
    assert len(tracker.get_metric_across_layers("rank", adapter="other")) == 4
    with pytest.raises(ValueError, match=r"adapter 'othr' is not known. Did you mean 'other'"):
        tracker.get_layer_history(FIRST, adapter="othr")
    assert tracker.get_summary_stats()["metrics"]["nuclear_norm"]["n"] == 6
    summary = tracker.get_summary_stats(adapter="other")
    assert summary["adapters"] == {"other": {"lora": 4}}
    assert summary["metrics"]["nuclear_norm"]["n"] == summary["num_layers"] == 4


def test_a_metric_across_layers() -> None:
    one = adapted("lora")
    tracker = SpectralTracker(one.model, 1)
    train(one, range(3), after_step=tracker.log_step)
    for index, place in ((-1, 2), (0, 0), (-3, 0), (1, 1)):
        found = tracker.get_metric_across_layers("effective_rank", index)
        assert list(found) == MODULES
        assert found == {name: tracker.get_layer_history(name)["effective_rank"][place] for name in MODULES}
    assert len(tracker.get_metric_across_layers("singular_values")[FIRST]) == RANK
    with pytest.raises(ValueError, match=r"metric 'efective_rank' is not known. Did you mean 'effective_rank'"):
        tracker.get_metric_across_layers("efective_rank")
    for index in (3, -4):
        with pytest.raises(IndexError, match=f"step_idx={index}: there are 3 logged steps"):
            tracker.get_metric_across_layers("rank", index)
    with pytest.raises(TypeError, match="step_idx="):
        tracker.get_metric_across_layers("rank", 1.5)  # type: ignore[arg-type]


def test_the_summary_is_over_all_modules_at_the_latest_step() -> None:
    one = adapted("lora")
    tracker = SpectralTracker(one.model, 5)
    tracker.log_step(0)
    train(one, range(1, 11), after_step=tracker.log_step)
    summary = tracker.get_summary_stats()
    assert (summary["total_steps_logged"], summary["step_range"], summary["num_layers"]) == (3, [0, 10], 6)
    assert summary["latest_step"] == 10
    for metric in ("nuclear_norm", "condition_number", "rank", "top1_sv_ratio"):
        values = np.array(list(tracker.get_metric_across_layers(metric).values()), dtype=np.float64)
        wanted = {"mean": values.mean(), "std": np.sqrt(((values - values.mean()) ** 2).mean()), "min": values.min(),
                  "max": values.max(), "n": 6, "missing": 0}  # fmt: skip
        assert summary["metrics"][metric] == pytest.approx(wanted, rel=1e-12)
    assert summary["cost_seconds"]["total"] == pytest.approx(3 * summary["cost_seconds"]["per_step"])
    assert summary["cost_seconds"]["total"] > 0
    assert summary["note"] is None


def test_nulls_are_left_out_of_the_summary_and_counted() -> None:
    one = adapted("lora")
    tracker = SpectralTracker(one.model, 1)
    with torch.no_grad():  # one of six is no longer zero
        one.model.get_submodule(PREFIX + FIRST).lora_B["default"].weight.fill_(0.5)
    tracker.log_step(0)
    found = tracker.get_summary_stats()["metrics"]["effective_rank"]
    assert (found["n"], found["missing"], found["std"]) == (1, 5, 0.0)
    assert found["mean"] == tracker.get_layer_history(FIRST)["effective_rank"][0]


def test_before_the_first_step_the_summary_is_empty_and_says_so() -> None:
    tracker = SpectralTracker(adapted("lora").model)
    summary = tracker.get_summary_stats()
    assert summary["total_steps_logged"] == 0
    assert summary["step_range"] is summary["peft_type"] is summary["num_layers"] is summary["latest_step"] is None
    assert summary["metrics"]["rank"]["mean"] is None
    assert summary["cost_seconds"] == {"total": None, "per_step": None}
    assert "no step has been logged" in summary["note"]
    with pytest.raises(ValueError, match=r"is not known. Known: none"):
        tracker.get_layer_history(FIRST)
    with pytest.raises(IndexError, match="no step has been logged"):
        tracker.get_metric_across_layers("rank")


def test_a_model_without_adapters_is_refused_unless_all_matrices_count() -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4))
    with pytest.raises(AdapterError, match=r"no adapters: wrap it with peft.get_peft_model"):
        SpectralTracker(model)
    tracker = SpectralTracker(model, 1, track_adapter_only=False)
    tracker.log_step(3)
    for name in ("0.weight", "1.weight"):
        history = tracker.get_layer_history(name)
        truth = np.linalg.svd(model.get_parameter(name).detach().double().numpy(), compute_uv=False)
        np.testing.assert_allclose(history["singular_values"][0], truth, rtol=1e-9)
        assert history["nuclear_norm"][0] == pytest.approx(truth.sum(), rel=1e-9)
    assert tracker.modules == {"none": ["0.weight", "1.weight"]}
    assert set(tracker.get_metric_across_layers("effective_rank")) == {"0.weight", "1.weight"}


def test_matrices_outside_the_adapters_are_tracked_when_asked_for() -> None:
    torch.manual_seed(0)
    options: dict[str, Any] = {"r": 2, "target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}
    model: Any = peft.get_peft_model(language_model(), peft.LoraConfig(**options))
    tracker = SpectralTracker(model, 1, track_adapter_only=False, compute_full_svd=False)
    tracker.log_step(0)
    assert tracker.modules["none"] == ["lm_head.weight"]
    head = model.base_model.model.lm_head.modules_to_save["default"].weight.detach().double()
    history = tracker.get_layer_history("lm_head.weight")
    assert history["largest_sv"][0] == pytest.approx(float(torch.linalg.matrix_norm(head, 2)), rel=1e-9)
    assert set(tracker.get_metric_across_layers("largest_sv")) == {
        FIRST, FIRST.replace("0", "1", 1), "lm_head.weight",
    }  # fmt: skip
    assert list(tracker.get_metric_across_layers("rank")) == [FIRST, FIRST.replace("0", "1", 1)]
    only = SpectralTracker(model, 1)
    only.log_step(0)
    assert list(only.modules) == ["default"]
    # where adapters are all that is trained, there is nothing more to look at
    plain = SpectralTracker(adapted("lora").model, 1, track_adapter_only=False)
    plain.log_step(0)
    assert list(plain.modules) == ["default"]


def test_few_layers_of_many() -> None:
    torch.manual_seed(0)
    model: Any = peft.get_peft_model(
        language_model(num_hidden_layers=5), peft.LoraConfig(r=2, target_modules=["q_proj"])
    )
    tracker = SpectralTracker(model, 1, max_layers_to_track=2)
    tracker.log_step(0)
    assert tracker.modules == {"default": [FIRST, FIRST.replace("0", "4", 1)]}


def test_what_an_adapter_begins_with_is_taken_off_also_without_a_word() -> None:
    torch.manual_seed(4)
    config = peft.LoraConfig(r=RANK, lora_alpha=6, target_modules=TARGETS, init_lora_weights="pissa")
    model: Any = peft.get_peft_model(language_model(), config)
    layer: Any = model.get_submodule(PREFIX + FIRST)
    began = layer.get_delta_weight("default").detach().double()
    tracker = SpectralTracker(model, 1)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.5)
    model(**token_batches(1)[0]).loss.backward()
    optimizer.step()
    tracker.log_step(1)
    truth = torch.linalg.svdvals(layer.get_delta_weight("default").detach().double() - began)
    assert tracker.get_layer_history(FIRST)["largest_sv"][0] == pytest.approx(float(truth[0]), rel=1e-3)
    assert float(began.norm()) > 10 * float(truth[0])  # which would have hidden it


def test_options_are_checked_when_the_tracker_is_made() -> None:
    model = adapted("lora").model
    with pytest.raises(TypeError, match=r"SpectralTracker has no option 'log_freqency'. Did you mean 'log_frequency'"):
        SpectralTracker(model, log_freqency=10)  # type: ignore[call-arg]
    values: list[dict[str, Any]] = [{"log_frequency": 0}, {"log_frequency": True}, {"max_layers_to_track": 0}]
    for options in values:
        with pytest.raises(ValueError, match=next(iter(options))):
            SpectralTracker(model, **options)
    types: list[dict[str, Any]] = [{"log_frequency": 1.5}, {"track_adapter_only": 1}, {"compute_full_svd": "no"}]
    for options in types:
        with pytest.raises(TypeError, match=next(iter(options))):
            SpectralTracker(model, **options)
    with pytest.raises(TypeError, match=r"not a torch.nn.Module"):
        SpectralTracker("model")  # type: ignore[arg-type]


def test_looking_leaves_no_trace() -> None:
    one = adapted("dora")
    one.model(**token_batches(1)[0]).loss.backward()
    seen = watched(one.model)
    tracker = SpectralTracker(one.model, 1, optimizer=one.optimizer)
    tracker.log_step(0)
    tracker.get_summary_stats()
    assert watched(one.model) == seen
