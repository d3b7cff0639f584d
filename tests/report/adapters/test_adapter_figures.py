"""Adapters in a report: panels by type of module, parts of gradients, and what lower ranks would cost."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from matplotlib.collections import QuadMesh

import learnscope as ls
from findings.adapters.test_adapters import LABELS, MODULES, spectrum, truncation
from findings.made_run import MadeRun
from learnscope.record import Column, Table
from learnscope.report.adapters.panels import cut_figure, gradient_figure, rank_figure, update_figure
from model.adapters.adapted import adapted, token_batches


def meshes(axes: object) -> list[QuadMesh]:
    return [one for one in axes.collections if isinstance(one, QuadMesh)]  # type: ignore[attr-defined]


def test_a_panel_for_every_type_with_its_layers_as_rows() -> None:
    run = MadeRun()
    for step in (10, 20, 30):
        spectrum(run, step, {module: step + place for place, module in enumerate(MODULES)})
    figure = update_figure(run.reader)
    assert figure is not None
    panels = {axes.get_title(loc="left"): axes for axes in figure.axes if meshes(axes)}
    assert {"q_proj", "v_proj"} <= panels.keys()
    shown = meshes(panels["v_proj"])[0].get_array()
    assert shown.shape == (6, 3)
    # v_proj of layer 5 is the last of the twelve modules
    assert float(shown[5, 2]) == pytest.approx(30 + 11)
    assert [label.get_text() for label in panels["q_proj"].get_yticklabels()] == [str(i) for i in range(6)]


def test_modules_without_layers_have_a_panel_with_their_names() -> None:
    run = MadeRun()
    for step in (10, 20):
        spectrum(run, step, {"0": 1.0, "head": 2.0})
    figure = update_figure(run.reader)
    assert figure is not None
    axes = next(axes for axes in figure.axes if meshes(axes))
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0", "head"]


def test_families_without_a_spectrum_have_no_figure() -> None:
    run = MadeRun()
    columns = [Column("effective_rank", [None] * 12, LABELS, dict.fromkeys(range(12), "a vector"))]
    run.write("AdapterSpectrum", 10, [Table("module", MODULES, columns)])
    assert rank_figure(run.reader) is None
    assert gradient_figure(run.reader) is None
    assert cut_figure(run.reader) is None


def test_gradients_have_a_panel_for_each_part() -> None:
    run = MadeRun()
    for step in (1, 2):
        columns = [
            Column("norm", [0.0 if part == "lora_A" and step == 1 else 0.5, 0.25],
                   {**LABELS, "component": part, "stage": "stepped"})
            for part in ("lora_A", "lora_B")
        ]  # fmt: skip
        run.write("AdapterGradients", step, [Table("layer", ["model.layers.0", "model.layers.1"], columns)])
    figure = gradient_figure(run.reader)
    assert figure is not None
    assert {"lora_A", "lora_B"} <= {axes.get_title(loc="left") for axes in figure.axes}
    assert "exactly zero" in {text.get_text() for legend in figure.legends for text in legend.get_texts()}


def test_what_lower_ranks_cost() -> None:
    run = MadeRun()
    truncation(run, 40, dict.fromkeys(MODULES, 2), kept=0.25, kl=0.004, scale=0.4)
    kept = [Column("parameters_kept", [share], {"cut": cut, "energy": energy})
            for cut, energy, share in (("each", 0.0, 0.0), ("each", 0.9, 0.25), ("all", 0.9, 0.2))]  # fmt: skip
    run.write("AdapterTruncation", 40, [Table("model", ["model"], kept)])
    figure = cut_figure(run.reader)
    assert figure is not None
    lines = {line.get_label(): line for line in figure.axes[0].lines}
    assert lines["the same share of every update"].get_xydata().tolist() == [[25.0, pytest.approx(1.0)]]
    assert lines["the largest directions of all updates"].get_xydata().tolist() == [[20.0, pytest.approx(75.0)]]
    assert lines["recommended: 25 %"].get_xydata().tolist() == [[25.0, pytest.approx(1.0)]]


def test_a_report_of_a_watched_adapter(tmp_path: Path) -> None:
    one = adapted("lora")
    probes = [ls.AdapterSpectrum(every=2), ls.AdapterGradients(every=2), ls.AdapterTruncation()]
    with ls.watch(one.model, one.optimizer, run=tmp_path / "run", probes=probes, holdout=token_batches(2),
                  strict=True) as w:  # fmt: skip
        losses = one.train(6)
    assert all(math.isfinite(float(loss)) for loss in losses)
    w.run.report()
    made = {path.name for path in (tmp_path / "run" / "report").glob("*.png")}
    assert made == {"adapter_gradients.png", "adapter_updates.png", "adapter_ranks.png", "adapter_cuts.png"}
