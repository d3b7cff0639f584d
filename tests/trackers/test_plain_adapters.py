"""Adapters that PEFT did not make: found by `lora_A` and `lora_B`, in whatever form a module holds them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from learnscope.core.moment import NotAvailable
from learnscope.model.adapters.start import AdapterError
from learnscope.trackers import GradientFlowTracker, SpectralTracker

INPUTS, OUTPUTS, RANK = 7, 5, 3


class Adapted(nn.Module):
    """A layer with factors of its own; `form` says how it holds them."""

    def __init__(self, form: str, outputs: int = OUTPUTS, **numbers: Any) -> None:
        super().__init__()
        self.lora_A: Any
        self.lora_B: Any
        a, b = torch.randn(RANK, INPUTS), torch.randn(outputs, RANK)
        self.base = nn.Linear(INPUTS, outputs)
        self.base.requires_grad_(False)
        if form == "turned":
            self.lora_A, self.lora_B = nn.Parameter(a.T.contiguous()), nn.Parameter(b.T.contiguous())
        elif form == "parameters":
            self.lora_A, self.lora_B = nn.Parameter(a), nn.Parameter(b)
        else:
            layers = nn.Linear(INPUTS, RANK, bias=False), nn.Linear(RANK, outputs, bias=False)
            layers[0].weight.data.copy_(a)
            layers[1].weight.data.copy_(b)
            if form == "layers":
                self.lora_A, self.lora_B = layers
            else:
                self.lora_A, self.lora_B = (nn.ModuleDict({"default": layer}) for layer in layers)
        self.form, self.a, self.b = form, a.double(), b.double()
        for name, number in numbers.items():
            setattr(self, name, number)

    def forward(self, x: Tensor) -> Any:
        a, b = (next(part.parameters()) if isinstance(part, nn.Module) else part for part in (self.lora_A, self.lora_B))
        return self.base(x) + (x @ a @ b if self.form == "turned" else x @ a.T @ b.T)


FORMS = ("parameters", "turned", "layers", "dictionaries")
SCALES: dict[str, tuple[dict[str, Any], float]] = {
    "none": ({}, 1.0),
    "scaling": ({"scaling": 2.5}, 2.5),
    "of each adapter": ({"scaling": {"default": 0.5}}, 0.5),
    "alpha and r": ({"alpha": 12, "r": RANK}, 4.0),
    "lora_alpha": ({"lora_alpha": 6}, 2.0),
    "rank-stabilised": ({"lora_alpha": 6, "r": 4, "use_rslora": True}, 3.0),
}


def blocks(*layers: nn.Module) -> Any:
    model: Any = nn.Module()
    model.layers = nn.ModuleList()
    for layer in layers:
        block: Any = nn.Module()
        block.q_proj = layer
        model.layers.append(block)
    return model


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("scale", SCALES)
def test_spectra_of_every_form(form: str, scale: str) -> None:
    numbers, scaling = SCALES[scale]
    torch.manual_seed(0)
    adapted = Adapted(form, **numbers)
    tracker = SpectralTracker(blocks(adapted), log_frequency=1)
    tracker.log_step(1)
    history = tracker.get_layer_history("layers.0.q_proj")
    truth = torch.linalg.svdvals(scaling * adapted.b @ adapted.a)[:RANK]
    assert history["singular_values"][0] == pytest.approx(truth.tolist(), rel=1e-6)
    assert history["scaling"] == [scaling]
    assert history["rank"] == [RANK]
    norm = float(adapted.base.weight.double().norm())
    assert history["relative_norm"][0] == pytest.approx(float(truth.norm()) / norm, rel=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_gradients_of_every_form(form: str) -> None:
    torch.manual_seed(0)
    adapted = Adapted(form)
    model = blocks(adapted)
    tracker = GradientFlowTracker(model, log_frequency=1)
    adapted(torch.randn(4, INPUTS)).square().sum().backward()
    tracker.log_step(1)
    parts: dict[str, Any] = {name: p for name, p in adapted.named_parameters() if p.requires_grad}
    history = tracker.get_layer_history("layers.0.q_proj")
    for component in ("lora_A", "lora_B"):
        (parameter,) = (p for name, p in parts.items() if component in name)
        assert history[component] == [pytest.approx(float(parameter.grad.double().norm()), rel=1e-6)]


def test_a_square_layer_is_read_the_way_in_which_the_rank_is_small() -> None:
    for form in FORMS:
        torch.manual_seed(1)
        adapted = Adapted(form, outputs=INPUTS)
        tracker = SpectralTracker(blocks(adapted), log_frequency=1)
        tracker.log_step(0)
        values = tracker.get_layer_history("layers.0.q_proj")["singular_values"][0]
        assert values == pytest.approx(torch.linalg.svdvals(adapted.b @ adapted.a)[:RANK].tolist(), rel=1e-6)


class Mock(nn.Module):
    """A layer with nothing but factors, as integration tests of trackers have it."""

    def __init__(self) -> None:
        super().__init__()
        self.lora_A = nn.ModuleDict({"default": nn.Linear(16, 4, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(4, 16, bias=False)})

    def forward(self, x: Tensor) -> Any:
        return x + self.lora_B["default"](self.lora_A["default"](x))


def test_both_trackers_together_with_their_documented_arguments(
    tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    model = nn.Sequential(Mock(), Mock())
    places: dict[str, Any] = {"save_dir": tmp_path, "peft_type": "lora", "log_frequency": 5}
    spectral = SpectralTracker(model=model, verbose=False, **places)
    gradients = GradientFlowTracker(model=model, verbose=False, **places)
    for step in range(20):
        model(torch.randn(2, 16)).sum().backward()
        gradients.log_step(step)
        model.zero_grad()
        spectral.log_step(step)
    assert SpectralTracker.load(spectral.save()).steps == GradientFlowTracker.load(gradients.save()).steps
    assert spectral.steps == [0, 5, 10, 15]
    assert spectral.get_summary_stats()["peft_type"] == "lora"
    history = spectral.get_layer_history("0")
    assert "not known" in history["reasons"]["relative_norm"][0], "there is no weight to compare with"
    assert capsys.readouterr().out == ""
    SpectralTracker(model, 1, verbose=True).log_step(3)
    assert capsys.readouterr().out.splitlines()[0] == "SpectralTracker: lora in 2 modules, every 1 step"


def test_a_type_that_the_model_does_not_have() -> None:
    for wrong in ("adalora", "IA3", "LN_TUNING"):
        with pytest.raises(ValueError, match=f"peft_type='{wrong}', but the adapters of Sequential are lora"):
            SpectralTracker(nn.Sequential(Mock()), peft_type=wrong)
    with pytest.raises(ValueError, match=r"peft_type 'lorra' is not known\. Did you mean 'lora'"):
        GradientFlowTracker(nn.Sequential(Mock()), peft_type="lorra")
    for right in ("LORA", "dora", "LoRA+", "lora-fa", "PiSSA", "rslora"):
        SpectralTracker(nn.Sequential(Mock()), peft_type=right)


def parameters(shape: Callable[[], tuple[Tensor, Tensor]]) -> nn.Module:
    layer: Any = nn.Module()
    layer.lora_A, layer.lora_B = (nn.Parameter(value) for value in shape())
    return layer


def test_factors_that_do_not_fit_have_the_reason() -> None:
    model = blocks(parameters(lambda: (torch.ones(4, 6), torch.ones(5, 2))), Adapted("layers"))
    tracker = SpectralTracker(model, 1)
    tracker.log_step(0)
    history = tracker.get_layer_history("layers.0.q_proj")
    assert history["singular_values"] == [None]
    assert "(4, 6) and (5, 2), do not fit each other" in history["reasons"]["singular_values"][0]
    assert tracker.get_layer_history("layers.1.q_proj")["singular_values"] != [None]


def test_a_magnitude_makes_it_dora() -> None:
    torch.manual_seed(0)
    adapted: Any = Adapted("layers")
    adapted.magnitude = nn.Parameter(torch.rand(OUTPUTS) + 1)
    tracker = SpectralTracker(blocks(adapted), 1)
    tracker.log_step(0)
    history = tracker.get_layer_history("layers.0.q_proj")
    merged = adapted.base.weight.double() + adapted.b @ adapted.a
    assert history["magnitude_norm"][0] == pytest.approx(float(adapted.magnitude.detach().norm()), rel=1e-6)
    assert history["direction_norm"][0] == pytest.approx(float(merged.norm()), rel=1e-6)


def test_a_model_without_factors_is_still_refused() -> None:
    plain = nn.Sequential(nn.Linear(4, 4))
    with pytest.raises(AdapterError, match=r"has no adapters: .*or give its modules factors lora_A and lora_B"):
        SpectralTracker(plain)
    tracker = GradientFlowTracker(nn.Sequential(Mock()), 1)
    with pytest.raises(NotAvailable, match="no parameter of an adapter has a gradient"):
        tracker.log_step(0)
