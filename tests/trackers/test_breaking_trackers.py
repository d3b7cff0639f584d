"""Trackers on what a training may do to them: adapters that come and go, damaged files, odd names and arguments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
from matplotlib.figure import Figure
from torch import nn

from learnscope.model.adapters.start import AdapterError
from learnscope.trackers import GradientFlowTracker, SpectralTracker, TrackerConfig, TrackerFileError
from model.adapters.adapted import adapted
from report.legible import assert_legible
from seeds.tiny import language_model
from trackers.tracked import FIRST, train

LATE = "model.layers.0.self_attn.k_proj"


def two_layers() -> Any:
    return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4))


def values_of(model: Any, module: str, adapter: str) -> np.ndarray[Any, Any]:
    """Singular values of scaling·B A, built outright."""
    layer = model.get_submodule(f"base_model.model.{module}")
    left, right = (getattr(layer, f"lora_{part}")[adapter].weight.detach().double().numpy() for part in "BA")
    return np.linalg.svd(layer.scaling[adapter] * left @ right, compute_uv=False)[: layer.r[adapter]]


def test_adapters_that_come_and_go_are_in_the_file_only_where_they_were(tmp_path: Path) -> None:
    one = adapted("lora")
    spectral, gradients = SpectralTracker(one.model, 1, tmp_path), GradientFlowTracker(one.model, 1, tmp_path)
    train(one, range(1), gradients.log_step, spectral.log_step)
    one.model.add_adapter("late", peft.LoraConfig(r=3, target_modules=["k_proj"], init_lora_weights=False))
    one.model.base_model.set_adapter(["default", "late"])
    train(one, range(1, 2), gradients.log_step, spectral.log_step)
    late = values_of(one.model, LATE, "late")
    one.model.delete_adapter("late")
    train(one, range(2, 3), gradients.log_step, spectral.log_step)
    for tracker in (spectral, gradients):
        kind: Any = type(tracker)
        path = tracker.save()
        loaded = kind.load(path)
        assert loaded.get_summary_stats() == tracker.get_summary_stats()
        assert loaded.get_summary_stats()["num_layers"] == 6
        assert loaded.get_summary_stats()["adapters"] == {"default": {"lora": 6}}
        assert loaded.get_layer_history(LATE) == tracker.get_layer_history(LATE)
        assert kind.load(path, one.model).steps == [0, 1, 2]  # the model that it was saved with
    history = SpectralTracker.load(tmp_path / "spectral_history.pt").get_layer_history(LATE)
    # before the optimizer's step, which does not know these parameters
    np.testing.assert_allclose(history["singular_values"][1], late, rtol=1e-9)
    assert [history["singular_values"][place] for place in (0, 2)] == [None, None]
    assert set(history["reasons"]["effective_rank"]) == {0, 2}


def test_an_adapter_under_an_old_name_is_another_one() -> None:
    torch.manual_seed(0)
    model: Any = peft.get_peft_model(
        language_model(), peft.LoraConfig(r=4, target_modules=["q_proj"], init_lora_weights="pissa")
    )
    tracker = SpectralTracker(model, 1)
    tracker.log_step(0)
    model.add_adapter("other", peft.LoraConfig(r=4, target_modules=["q_proj"]))
    model.set_adapter("other")
    model.delete_adapter("default")
    model.add_adapter("default", peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False))
    tracker.log_step(1)
    history = tracker.get_layer_history(FIRST, adapter="default")
    np.testing.assert_allclose(history["singular_values"][1], values_of(model, FIRST, "default"), rtol=1e-9)
    assert history["singular_values"][0] == [0.0] * 8  # PiSSA, which had not moved


def test_an_adapter_called_none_has_its_spectrum() -> None:
    torch.manual_seed(0)
    config = peft.LoraConfig(r=2, target_modules=["0", "1"], init_lora_weights=False)
    model: Any = peft.get_peft_model(two_layers(), config, adapter_name="none")
    tracker = SpectralTracker(model, 1)
    tracker.log_step(0)
    np.testing.assert_allclose(
        tracker.get_layer_history("0")["singular_values"][0], values_of(model, "0", "none"), rtol=1e-9
    )
    model.base_model.model[1].base_layer.weight.requires_grad_(True)
    both = SpectralTracker(model, 1, track_adapter_only=False)
    with pytest.raises(ValueError, match="no adapter may be called 'none'"):
        both.log_step(0)


def test_adapters_that_were_unloaded_are_not_called_unknown() -> None:
    one = adapted("lora")
    tracker = SpectralTracker(one.model, 1)
    one.model.unload()
    with pytest.raises(AdapterError, match=r"no adapted module left, though it is configured for LORA.*unloaded"):
        tracker.log_step(0)
    assert tracker.steps == []


def test_a_file_changed_on_disk_is_refused_or_reads_as_before(tmp_path: Path) -> None:
    one = adapted("lora")
    tracker = SpectralTracker(one.model, 1, tmp_path)
    train(one, range(2), after_step=tracker.log_step)
    whole, history = tracker.save().read_bytes(), tracker.get_layer_history(FIRST)
    number = np.float64(history["nuclear_norm"][1]).tobytes()
    places = [whole.index(number), *np.random.default_rng(0).integers(0, len(whole), 40).tolist()]
    path, refused = tmp_path / "changed.pt", []
    for place in places:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        try:
            assert SpectralTracker.load(path).get_layer_history(FIRST) == history  # a byte that nothing is read from
        except TrackerFileError:
            refused.append(place)
    assert places[0] in refused
    assert len(refused) > 20


def test_a_file_of_another_method_is_refused_with_its_name(tmp_path: Path) -> None:
    one = adapted("lora")
    tracker = SpectralTracker(one.model, 1, tmp_path)
    tracker.log_step(0)
    with pytest.raises(TrackerFileError, match=r"an adapter 'default' \(lora\), which this \w+ lacks"):
        SpectralTracker.load(tracker.save(), adapted("vera").model)
    # without the optimizer LoRA+ looks like LoRA, which it is
    faster = adapted("lora+")
    tracker = SpectralTracker(faster.model, 1, tmp_path, optimizer=faster.optimizer)
    tracker.log_step(0)
    assert tracker.get_summary_stats()["peft_type"] == "lora+"
    assert SpectralTracker.load(tracker.save(), faster.model).log_step(1)
    with pytest.raises(TypeError, match="the model is a str"):
        SpectralTracker.load(tracker.save(), "model")  # type: ignore[arg-type]


def test_folders_are_no_files(tmp_path: Path) -> None:
    one = adapted("lora")
    tracker = GradientFlowTracker(one.model, 1)
    train(one, range(1), tracker.log_step)
    with pytest.raises(IsADirectoryError, match=r"is a folder: name the file in it, such as .*gradient_flow\.pt"):
        tracker.save(tmp_path)
    with pytest.raises(IsADirectoryError, match=r"is a folder: name the picture in it"):
        tracker.create_heatmap("B", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_numbers_of_numpy_and_wrong_options() -> None:
    model = adapted("lora").model
    tracker = SpectralTracker(model, np.int64(2), max_layers_to_track=np.int64(1))  # type: ignore[arg-type]
    tracker.log_step(0)
    assert {name.split(".")[2] for name in tracker.modules["default"]} == {"0"}
    with pytest.raises(TypeError, match=r"no option 'gradient_frequency'\. Did you mean 'gradient_log_frequency'"):
        TrackerConfig(gradient_frequency=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"tracking_output_dir=3: the path of a folder"):
        TrackerConfig(tracking_output_dir=3)  # type: ignore[arg-type]


def test_weights_and_updates_have_summaries_of_their_own(tmp_path: Path) -> None:
    torch.manual_seed(0)
    options: dict[str, Any] = {"r": 2, "target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}
    model: Any = peft.get_peft_model(language_model(), peft.LoraConfig(**options, init_lora_weights=False))
    tracker = SpectralTracker(model, 1, tmp_path, track_adapter_only=False)
    tracker.log_step(0)
    found = json.loads(tracker.save().with_name("spectral_history_summary.json").read_text())
    norms = [np.linalg.norm(values_of(model, name, "default")) for name in tracker.modules["default"]]
    head = model.base_model.model.lm_head.modules_to_save["default"].weight.detach().double()
    assert found["metrics"]["frobenius_norm"]["n"] == 2
    assert found["metrics"]["frobenius_norm"]["mean"] == pytest.approx(np.mean(norms), rel=1e-9)
    outside = found["metrics_outside_adapters"]["frobenius_norm"]
    assert (outside["n"], outside["mean"]) == (1, pytest.approx(float(head.norm()), rel=1e-9))
    assert "metrics_outside_adapters" not in tracker.get_summary_stats(adapter="none")


class Named(nn.Module):
    """Long names, in blocks and outside them."""

    def __init__(self) -> None:
        super().__init__()
        long = "an_extremely_long_name_of_a_projection_that_someone_wrote"
        self.layers = nn.ModuleList(
            nn.ModuleDict({long: nn.Linear(6, 6), "b": nn.Linear(6, 6), long[3:]: nn.Linear(6, 6)}) for _ in range(2)
        )
        self.the_quite_long_name_of_a_classification_head = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.layers:
            for layer in block.values():  # type: ignore[operator]
                x = torch.tanh(layer(x))
        found: torch.Tensor = self.the_quite_long_name_of_a_classification_head(x)
        return found


def drawn(tracker: SpectralTracker, gradients: GradientFlowTracker, adapter: str) -> list[Figure]:
    return [
        tracker.create_heatmap(adapter=adapter), tracker.create_spectrum_plot(adapter=adapter),
        gradients.create_heatmap("B", adapter=adapter), gradients.create_layer_comparison_plot(adapter=adapter),
    ]  # fmt: skip


def test_figures_with_long_names_are_legible_and_say_whose_they_are() -> None:
    torch.manual_seed(0)
    model: Any = peft.get_peft_model(Named(), peft.LoraConfig(r=2, target_modules="all-linear"))
    model.add_adapter("second", peft.LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False))
    model.base_model.set_adapter(["default", "second"])
    tracker, gradients = SpectralTracker(model, 1), GradientFlowTracker(model, 1)
    for step in range(0, 4000, 1000):
        model.zero_grad()
        model(torch.randn(4, 6)).square().sum().backward()
        gradients.log_step(step)
        tracker.log_step(step)
    for figure in drawn(tracker, gradients, "second"):
        assert figure.texts[0].get_text().endswith("(second)")
        assert_legible(figure)


def test_condition_numbers_are_drawn_in_orders_of_magnitude_and_lists_not_at_all() -> None:
    torch.manual_seed(0)
    model: Any = peft.get_peft_model(
        two_layers(), peft.LoraConfig(r=2, target_modules=["0", "1"], init_lora_weights=False)
    )
    tracker = SpectralTracker(model, 1)
    model.base_model.model[0].lora_A["default"].weight.data[1] = model.base_model.model[0].lora_A["default"].weight[0]
    model.base_model.model[0].lora_A["default"].weight.data[1, 0] += 1e-3
    tracker.log_step(0)
    figure = tracker.create_heatmap("condition_number")
    assert type(figure.axes[0].collections[0].norm).__name__ == "LogNorm"
    with pytest.raises(ValueError, match=r"singular_values has several numbers for each module.*create_spectrum_plot"):
        tracker.create_heatmap("singular_values")


def test_a_figure_of_weights_does_not_speak_of_updates() -> None:
    torch.manual_seed(0)
    tracker = SpectralTracker(two_layers(), 1, track_adapter_only=False)
    tracker.log_step(0)
    for figure in (tracker.create_heatmap(), tracker.create_spectrum_plot()):
        told = " ".join(text.get_text() for text in figure.texts[:2])
        assert "of the weights" in told
        assert "of W" in told
        assert "ΔW" not in told
