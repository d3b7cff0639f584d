"""The gradient tracker: its numbers, how it is asked, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
from torch import nn

import learnscope as ls
from dynamics.traces import watched
from learnscope.core.moment import NotAvailable
from learnscope.trackers import GradientFlowTracker, SpectralTracker
from model.adapters.adapted import FAMILIES, adapted
from seeds.tiny import language_model, token_batches
from trackers.tracked import FIRST, MODULES, gradient_truth, train

PREFIX = "base_model.model."
LAYERS = ["model.layers.0", "model.layers.1"]


def tracked(family: str, steps: int = 3) -> tuple[Any, GradientFlowTracker, list[dict[tuple[str, str], float]]]:
    one = adapted(family)
    tracker = GradientFlowTracker(one.model, 1, optimizer=one.optimizer)
    truths: list[dict[tuple[str, str], float]] = []

    def before_step(step: int) -> None:
        tracker.log_step(step)
        truths.append(gradient_truth(one.model))

    train(one, range(steps), before_step)
    return one, tracker, truths


@pytest.mark.parametrize("family", FAMILIES)
def test_norms_are_those_of_the_gradients_that_stand(family: str) -> None:
    _, tracker, truths = tracked(family)
    assert len(truths[0]) >= 3
    for place, truth in enumerate(truths):
        for (module, component), norm in truth.items():
            history = tracker.get_layer_history(module)
            assert history["steps"] == [0, 1, 2]
            assert history[component][place] == pytest.approx(norm, rel=1e-6, abs=0)
    known = {component for _, component in truths[0]} | ({"lora_A"} if family == "lora-fa" else set())
    assert set(tracker.components()) == known
    assert tracker.get_summary_stats()["peft_type"] == family


def test_a_frozen_part_has_no_norm_and_a_reason() -> None:
    _, tracker, _ = tracked("lora-fa")
    history = tracker.get_layer_history(FIRST)
    assert history["lora_A"] == [None] * 3
    assert history["reasons"]["lora_A"] == dict.fromkeys(range(3), "frozen")
    matrix, _, _ = tracker.get_gradient_matrix("A")
    assert np.isnan(matrix).all()
    assert tracker.get_summary_stats()["metrics"]["lora_A"]["missing"] == len(MODULES)
    with pytest.raises(NotAvailable, match=r"no gradient of lora_A to draw; .*: frozen"):
        tracker.create_heatmap("A")


@pytest.mark.parametrize(("short", "component"), [("A", "lora_A"), ("B", "lora_B"), ("lora_B", "lora_B")])
def test_a_layers_norm_is_the_root_of_the_sum_of_its_modules_squares(short: str, component: str) -> None:
    _, tracker, truths = tracked("lora")
    matrix, layers, steps = tracker.get_gradient_matrix(short)
    assert matrix.dtype == np.float64
    assert (layers, steps) == (LAYERS, [0, 1, 2])
    wanted = [
        [np.sqrt(sum(t[m, component] ** 2 for m in MODULES if m.startswith(layer))) for t in truths] for layer in LAYERS
    ]
    np.testing.assert_allclose(matrix, wanted, rtol=1e-6)
    for number, layer in enumerate(LAYERS):
        assert tracker.get_layer_history(number)[component] == matrix[number].tolist()
        assert tracker.get_layer_history(layer) == tracker.get_layer_history(PREFIX + layer)
        assert tracker.get_layer_history(layer) == tracker.get_layer_history(number)
    of_type, _, _ = tracker.get_gradient_matrix(short, "v_proj")
    alone = [[t[f"{layer}.self_attn.v_proj", component] for t in truths] for layer in LAYERS]
    np.testing.assert_allclose(of_type, alone, rtol=1e-6)


def test_the_first_gradient_of_a_is_exactly_zero_and_stays_so_in_the_matrix() -> None:
    _, tracker, _ = tracked("lora")
    matrix, _, _ = tracker.get_gradient_matrix("A")
    assert (matrix[:, 0] == 0).all()
    assert (matrix[:, 1:] > 0).all()


def test_layers_agree_with_what_a_watched_run_records_of_them(tmp_path: Path) -> None:
    one = adapted("dora")
    probe = ls.AdapterGradients(every=1)
    with ls.watch(one.model, one.optimizer, run=tmp_path / "run", probes=[probe], strict=True):
        train(one, range(3))
    tracker = GradientFlowTracker.from_run(tmp_path / "run")
    frame = ls.open_run(tmp_path / "run").frame("AdapterGradients", "norm", "layer")
    for component in ("lora_A", "lora_B", "magnitude"):
        matrix, layers, steps = tracker.get_gradient_matrix(component)
        rows = frame[(frame.component == component) & (frame.stage == "stepped")]
        wanted = rows.pivot_table(index="scope", columns="step", values="value", dropna=False)
        np.testing.assert_allclose(matrix, wanted.loc[layers, steps].to_numpy(), rtol=1e-12)
        assert steps == [1, 2, 3]


def test_a_clip_that_the_run_saw_has_both_norms() -> None:
    one = adapted("lora")

    def clip(step: int) -> None:
        torch.nn.utils.clip_grad_norm_(one.model.parameters(), 1e-3)

    with ls.watch(one.model, one.optimizer, probes=[ls.AdapterGradients(every=1)], strict=True) as w:
        train(one, range(2), clip)
    tracker = GradientFlowTracker.from_run(w.run)
    history = tracker.get_layer_history(FIRST)
    assert all(after < before for after, before in zip(history["lora_B"], history["lora_B/before_clip"], strict=True))
    assert tracker.components() == ["lora_A", "lora_B"]
    total = sum(row["lora_B"][0] ** 2 for row in (tracker.get_layer_history(name) for name in MODULES))
    assert total**0.5 == pytest.approx(1e-3, rel=1e-3)  # A's are zero


def test_gradients_that_are_not_there_are_refused_and_change_nothing() -> None:
    one = adapted("lora")
    tracker = GradientFlowTracker(one.model, 2)
    with pytest.raises(NotAvailable, match=r"after loss\.backward\(\) and before optimizer\.step\(\)"):
        tracker.log_step(0)
    assert tracker.steps == []
    train(one, range(1, 3), tracker.log_step)
    with pytest.raises(NotAvailable, match="no parameter of an adapter has a gradient"):
        tracker.log_step(4)  # the loop has cleared them
    assert tracker.log_step(5) is False  # not due, so nothing is missing
    assert tracker.steps == [2]


def test_gradients_of_other_parameters_alone_are_refused() -> None:
    torch.manual_seed(0)
    options: dict[str, Any] = {"r": 2, "target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}
    model: Any = peft.get_peft_model(language_model(), peft.LoraConfig(**options))
    model(**token_batches(1)[0]).loss.backward()
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.grad = None
    with pytest.raises(NotAvailable, match="no parameter of an adapter has a gradient"):
        GradientFlowTracker(model, 1).log_step(1)
    whole = GradientFlowTracker(model, 1, track_adapter_only=False)
    assert whole.log_step(1)
    head = model.base_model.model.lm_head.modules_to_save["default"].weight.grad
    assert whole.get_layer_history("lm_head")["weight"][0] == pytest.approx(float(head.double().norm()), rel=1e-6)


def test_a_gradient_that_is_not_finite_and_one_that_is_missing() -> None:
    one = adapted("lora")
    tracker = GradientFlowTracker(one.model, 1)
    one.model(**token_batches(1)[0]).loss.backward()
    parts = dict(one.model.named_parameters())
    parts[f"{PREFIX}{FIRST}.lora_B.default.weight"].grad = None
    bad = parts[f"{PREFIX}model.layers.1.self_attn.q_proj.lora_B.default.weight"].grad
    assert bad is not None
    bad[0, 0] = float("nan")
    truth = gradient_truth(one.model)
    tracker.log_step(0)
    matrix, _, _ = tracker.get_gradient_matrix("B")
    there = [truth[m, "lora_B"] for m in MODULES if m.startswith("model.layers.0") and m != FIRST]
    assert len(there) == 2  # what has none is left out, as an optimizer leaves it out
    assert matrix[0, 0] == pytest.approx(np.linalg.norm(there), rel=1e-6)
    assert np.isnan(matrix[1, 0])
    assert tracker.get_layer_history(1)["reasons"]["lora_B"] == {0: "nan"}
    assert tracker.get_layer_history(FIRST)["reasons"]["lora_B"] == {0: "no backward has reached it"}
    found = tracker.get_summary_stats()["metrics"]["lora_B"]
    assert (found["n"], found["missing"]) == (4, 2)


def test_unknown_names_are_refused_with_what_there_is() -> None:
    _, tracker, _ = tracked("lora", 1)
    with pytest.raises(ValueError, match=r"component 'magnitude' is not known.*Known: lora_A, lora_B"):
        tracker.get_gradient_matrix("magnitude")
    with pytest.raises(ValueError, match=r"module type 'q_prj' is not known. Did you mean 'q_proj'"):
        tracker.get_gradient_matrix("B", "q_prj")
    with pytest.raises(ValueError, match=r"there is no layer 7: numbered are 0, 1"):
        tracker.get_layer_history(7)
    with pytest.raises(ValueError, match=r"'model.layers.9' is not known"):
        tracker.get_layer_history("model.layers.9")
    with pytest.raises(ValueError, match="layer 'nowhere' is not known"):
        tracker.create_layer_comparison_plot(["nowhere"])
    with pytest.raises(ValueError, match="layer=-1"):
        tracker.get_layer_history(-1)
    with pytest.raises(TypeError, match=r"GradientFlowTracker has no option 'compute_full_svd'"):
        GradientFlowTracker(adapted("lora").model, compute_full_svd=False)  # type: ignore[call-arg]


def test_before_the_first_step_there_is_nothing_to_show() -> None:
    tracker = GradientFlowTracker(adapted("lora").model)
    assert "no step has been logged" in tracker.get_summary_stats()["note"]
    assert tracker.get_summary_stats()["metrics"] == {}
    for ask in (tracker.get_gradient_matrix, tracker.create_heatmap, tracker.create_layer_comparison_plot):
        with pytest.raises(NotAvailable, match="no gradient has been logged yet"):
            ask()


def test_a_model_without_adapters_is_refused_unless_all_parameters_count() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    with pytest.raises(ls.AdapterError, match="no adapters"):
        GradientFlowTracker(model)
    tracker = GradientFlowTracker(model, 1, track_adapter_only=False)
    model(torch.ones(2, 4)).square().sum().backward()
    tracker.log_step(1)
    grad = model.get_parameter("0.weight").grad
    assert grad is not None
    assert tracker.get_layer_history("0")["weight"][0] == pytest.approx(float(grad.double().norm()), rel=1e-6)
    assert set(tracker.components()) == {"weight", "bias"}
    with pytest.raises(ValueError, match="there is no layer 0: none has a number; known are 0, 1"):
        tracker.get_layer_history(0)


def test_several_adapters_are_told_apart() -> None:
    torch.manual_seed(0)
    model: Any = peft.get_peft_model(language_model(), peft.LoraConfig(r=2, target_modules=["q_proj"]))
    model.add_adapter("other", peft.LoraConfig(r=2, target_modules=["q_proj"]))
    tracker = GradientFlowTracker(model, 1)
    model(**token_batches(1)[0]).loss.backward()
    tracker.log_step(1)
    for ask in (tracker.get_gradient_matrix, tracker.create_heatmap, lambda: tracker.get_layer_history(0)):
        with pytest.raises(ValueError, match="the adapters default and other: say which"):
            ask()
    assert (tracker.get_gradient_matrix("B", adapter="default")[0] > 0).all()
    assert np.isnan(tracker.get_gradient_matrix("B", adapter="other")[0]).all()
    reasons = tracker.get_layer_history(FIRST, adapter="other")["reasons"]["lora_B"]
    assert reasons == {1: "the adapter other is not active"}


def test_gradients_of_a_family_whose_update_is_not_known(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model: Any = peft.get_peft_model(language_model(), peft.LoHaConfig(r=2, target_modules=["q_proj"]))
    with pytest.raises(ls.AdapterError, match=r"not known here \(loha\).*GradientFlowTracker"):
        SpectralTracker(model)
    tracker = GradientFlowTracker(model, 1, tmp_path)
    model(**token_batches(1)[0]).loss.backward()
    tracker.log_step(1)
    grad = model.get_submodule(PREFIX + FIRST).hada_w1_b["default"].grad
    assert tracker.get_layer_history(FIRST)["hada_w1_b"] == [pytest.approx(float(grad.double().norm()), rel=1e-6)]
    going = GradientFlowTracker.load(tracker.save(), model)
    assert going.log_step(2)
    assert going.get_layer_history(FIRST)["hada_w1_b"][0] == going.get_layer_history(FIRST)["hada_w1_b"][1]


def test_reading_leaves_no_trace() -> None:
    one = adapted("vera")
    one.model(**token_batches(1)[0]).loss.backward()
    seen = watched(one.model)
    tracker = GradientFlowTracker(one.model, 1, optimizer=one.optimizer)
    tracker.log_step(0)
    tracker.create_heatmap("lambda_b")
    assert watched(one.model) == seen


def test_a_step_walks_no_model_and_makes_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a log_step needs is planned once; cells are made when somebody asks."""
    one = adapted("lora")
    tracker = GradientFlowTracker(one.model, 1)
    truths: dict[int, dict[tuple[str, str], float]] = {}

    def logged(step: int) -> None:
        with monkeypatch.context() as patch:
            if step:
                for name in ("named_modules", "named_parameters"):
                    patch.setattr(nn.Module, name, None)
                patch.setattr("learnscope.trackers.unread.read_measured", None)
            tracker.log_step(step)
        truths[step] = gradient_truth(one.model)

    train(one, range(4), logged)
    for step, truth in truths.items():
        for (module, component), norm in truth.items():
            assert tracker.get_layer_history(module)[component][step] == pytest.approx(norm, rel=1e-6, abs=0)


def test_an_adapter_added_between_two_steps_is_tracked() -> None:
    one = adapted("lora")
    tracker = GradientFlowTracker(one.model, 1)
    train(one, range(1), tracker.log_step)
    one.model.add_adapter("second", peft.LoraConfig(r=2, target_modules=["q_proj"]))
    one.model.set_adapter("second")
    one.model(**token_batches(1)[0]).logits.sum().backward()
    tracker.log_step(1)
    assert set(tracker.modules) == {"default", "second"}


def test_a_step_logged_again_replaces_the_earlier_one() -> None:
    one = adapted("lora")
    tracker = GradientFlowTracker(one.model, 1)
    truths: list[dict[tuple[str, str], float]] = []

    def logged(_: int) -> None:
        tracker.log_step(7)
        truths.append(gradient_truth(one.model))

    train(one, range(2), logged)
    assert tracker.steps == [7]
    for (module, component), norm in truths[-1].items():
        assert tracker.get_layer_history(module)[component] == [pytest.approx(norm, rel=1e-6, abs=0)]
