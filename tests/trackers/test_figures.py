"""Figures of the trackers: everything that is measured is shown, and can be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure

from learnscope.core.moment import NotAvailable
from learnscope.report.style import BROKEN, ZERO
from learnscope.trackers import GradientFlowTracker, SpectralTracker
from model.adapters.adapted import Adapted, adapted
from report.legible import assert_legible
from seeds.tiny import language_model
from trackers.tracked import FIRST, train

SEVEN = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@pytest.fixture(scope="module")
def deep() -> tuple[SpectralTracker, GradientFlowTracker]:
    """28 layers of 7 modules."""
    torch.manual_seed(0)
    model: Any = peft.get_peft_model(language_model(num_hidden_layers=28), peft.LoraConfig(r=2, target_modules=SEVEN))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    spectral, gradients = SpectralTracker(model, 100), GradientFlowTracker(model, 100)
    one = Adapted("lora", model, optimizer, {}, {})
    train(one, range(4), lambda step: gradients.log_step(100 * step), lambda step: spectral.log_step(100 * step))
    return spectral, gradients


def panels(figure: Figure) -> list[Axes]:
    """Without the colour bar."""
    return [axes for axes in figure.axes if axes.get_title(loc="left")]


def colours(axes: Axes) -> set[str]:
    """Of cells that stand for no number."""
    from matplotlib.colors import ListedColormap, to_hex

    found = set()
    for mesh in axes.collections:
        if isinstance(mesh, QuadMesh) and isinstance(mesh.get_cmap(), ListedColormap) and mesh.get_cmap().N == 1:
            found.add(to_hex(mesh.get_cmap()(0)).upper())
    return found


def numbers(axes: Axes) -> np.ndarray[Any, Any]:
    """The cells of a panel that have a number, layers down."""
    mesh = next(one for one in axes.collections if isinstance(one, QuadMesh) and one.get_cmap().N > 1)
    return np.asarray(np.ma.asarray(mesh.get_array()).filled(np.nan))


def test_every_module_of_28_layers_can_be_read(deep: tuple[SpectralTracker, GradientFlowTracker]) -> None:
    _, tracker = deep
    figure = tracker.create_heatmap("B")
    drawn = panels(figure)
    assert [axes.get_title(loc="left") for axes in drawn] == SEVEN
    for axes, name in zip(drawn, SEVEN, strict=True):
        assert axes.get_ylim() == (28, 0)
        matrix, layers, steps = tracker.get_gradient_matrix("B", name)
        assert matrix.shape == (28, 4)
        np.testing.assert_allclose(numbers(axes).reshape(28, 4), matrix, rtol=1e-12)
        edges = axes.get_xlim()
        assert edges == (-50.0, 350.0)
        assert (len(layers), steps) == (28, [0, 100, 200, 300])
    named = [label.get_text() for label in drawn[0].get_yticklabels()]
    assert {"0", "27"} <= set(named)
    assert len(named) >= 14
    assert [len(axes.get_yticks()) > 0 for axes in drawn] == [True, False, False, False, True, False, False]
    assert_legible(figure)
    width, height = figure.get_size_inches()
    assert 5 < width < 13
    assert height < 14
    assert "196 modules in 28 layers of model.layers" in figure.texts[1].get_text().replace("\n", " ")


def test_zeros_of_the_first_step_are_shown_and_explained(deep: tuple[SpectralTracker, GradientFlowTracker]) -> None:
    _, tracker = deep
    figure = tracker.create_heatmap("A")
    for axes in panels(figure):
        assert colours(axes) == {ZERO.upper()}
        assert np.isnan(numbers(axes).reshape(28, 4)[:, 0]).all()  # no colour of a number
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["exactly zero"]
    assert "exactly zero at first" in figure.texts[1].get_text()
    assert_legible(figure)
    other = tracker.create_heatmap("B")
    assert not other.legends
    assert "zero" not in other.texts[1].get_text()


def test_what_is_not_finite_and_what_is_not_there_are_told_apart() -> None:
    one = adapted("lora")
    tracker = GradientFlowTracker(one.model, 1)
    parts = dict(one.model.named_parameters())

    def before_step(step: int) -> None:
        parameter = parts[f"base_model.model.{FIRST}.lora_B.default.weight"]
        if step == 1:
            parameter.grad[0, 0] = float("inf")
        if step == 2:
            parameter.grad = None
        tracker.log_step(step)
        one.optimizer.zero_grad()

    train(one, range(4), before_step)
    figure = tracker.create_heatmap("B", title="Mine")
    assert figure.texts[0].get_text() == "Mine"
    first = panels(figure)[0]
    assert colours(first) == {BROKEN.upper()}
    assert np.isnan(numbers(first).reshape(2, 4)[0]).tolist() == [False, True, True, False]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["NaN or infinite", "no value"]
    assert_legible(figure)
    comparison = tracker.create_layer_comparison_plot()
    assert "a layer's is NaN or infinite" in [text.get_text() for text in comparison.legends[0].get_texts()]
    assert_legible(comparison)


def test_one_type_of_module_has_one_panel(deep: tuple[SpectralTracker, GradientFlowTracker], tmp_path: Path) -> None:
    figure = deep[1].create_heatmap("lora_B", tmp_path / "deep" / "q.png", module_type="q_proj")
    assert [axes.get_title(loc="left") for axes in panels(figure)] == ["q_proj"]
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["q.png"]


def test_layers_compared_are_the_ends_and_the_middle(deep: tuple[SpectralTracker, GradientFlowTracker]) -> None:
    _, tracker = deep
    figure = tracker.create_layer_comparison_plot(component="A")
    (axes,) = panels(figure)
    shown = [text.get_text() for text in figure.legends[0].get_texts()]
    assert shown == ["layer 0", "layer 14", "layer 27", "other layers"]
    matrix, _, steps = tracker.get_gradient_matrix("A")
    lines = [line for line in axes.get_lines() if len(line.get_xdata()) == 4]  # type: ignore[arg-type]
    assert len(lines) == 28
    strong = [line for line in lines if line.get_linewidth() > 1]
    for line, layer in zip(strong, (0, 14, 27), strict=True):
        drawn = np.asarray(line.get_ydata())
        np.testing.assert_allclose(drawn[1:], matrix[layer, 1:])
        assert list(line.get_xdata()) == steps  # type: ignore[arg-type]
        # zero has a place of its own below all numbers
        assert 0 < drawn[0] < matrix[matrix > 0].min()
        assert axes.get_yticks()[0] == drawn[0]
    assert axes.get_yticklabels()[0].get_text() == "0"
    assert axes.get_yscale() == "log"
    assert_legible(figure)


def test_layers_can_be_chosen_and_every_part_drawn(deep: tuple[SpectralTracker, GradientFlowTracker]) -> None:
    figure = deep[1].create_layer_comparison_plot([3, "model.layers.5"], None, title="Two")
    assert [axes.get_title(loc="left") for axes in panels(figure)] == ["lora_A", "lora_B"]
    assert [text.get_text() for text in figure.legends[0].get_texts()][:2] == ["layer 3", "layer 5"]
    assert_legible(figure)
    alone = deep[1].create_layer_comparison_plot(4, "B")
    assert alone.legends[0].get_texts()[0].get_text() == "layer 4"


def test_norms_outside_the_blocks_have_a_panel_of_their_own() -> None:
    one = adapted("layernorm")
    tracker = GradientFlowTracker(one.model, 1)
    train(one, range(3), tracker.log_step)
    figure = tracker.create_heatmap("weight")
    assert [axes.get_title(loc="left") for axes in panels(figure)] == ["input_layernorm", "outside the blocks"]
    assert [label.get_text() for label in panels(figure)[1].get_yticklabels()] == ["model.norm"]
    assert_legible(figure)


@pytest.mark.parametrize(("steps", "scale"), [(1, 1), (3, 123_456), (12, 1_000)])
def test_steps_below_narrow_panels_do_not_touch(steps: int, scale: int) -> None:
    one = adapted("lora")
    spectral, gradients = SpectralTracker(one.model, 1), GradientFlowTracker(one.model, 1)
    train(one, range(steps), lambda s: gradients.log_step(scale * s), lambda s: spectral.log_step(scale * s))
    for component in gradients.components():
        assert_legible(gradients.create_heatmap(component))
    assert_legible(gradients.create_layer_comparison_plot(component=None))
    assert_legible(spectral.create_heatmap())
    assert_legible(spectral.create_spectrum_plot())


def test_spectra_of_all_modules(deep: tuple[SpectralTracker, GradientFlowTracker]) -> None:
    tracker, _ = deep
    figure = tracker.create_heatmap("effective_rank")
    for axes, name in zip(panels(figure), SEVEN, strict=True):
        found = numbers(axes).reshape(28, 4)
        for layer in (0, 13, 27):
            inside = "self_attn" if name in SEVEN[:4] else "mlp"
            history = tracker.get_layer_history(f"model.layers.{layer}.{inside}.{name}")
            np.testing.assert_allclose(found[layer], history["effective_rank"])
    assert_legible(figure)
    spectra = tracker.create_spectrum_plot()
    assert [len(axes.get_lines()) for axes in panels(spectra)] == [28] * 7
    line = panels(spectra)[0].get_lines()[27]
    last = tracker.get_layer_history("model.layers.27.self_attn.q_proj")["singular_values"][-1]
    np.testing.assert_allclose(np.asarray(line.get_ydata()), last)
    assert_legible(spectra)


def test_what_has_no_number_is_not_drawn() -> None:
    one = adapted("ia3")
    tracker = SpectralTracker(one.model, 1)
    with pytest.raises(NotAvailable, match="no spectrum has been logged"):
        tracker.create_heatmap()
    tracker.log_step(0)
    with pytest.raises(NotAvailable, match=r"no effective_rank to draw; .* adds no matrix"):
        tracker.create_heatmap()
    with pytest.raises(NotAvailable, match="no singular values to draw"):
        tracker.create_spectrum_plot()
    with pytest.raises(ValueError, match=r"metric 'efective_rank' is not known. Did you mean"):
        tracker.create_heatmap("efective_rank")
