"""Figures of audits: they show the numbers of the records, and can be read."""

from __future__ import annotations

import math

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from learnscope.findings import Cuts
from learnscope.record import Table
from learnscope.report.audit.dashboard import dashboard_figure
from learnscope.report.audit.panels import FIGURES
from learnscope.report.bits.configurations import accuracy_figure, configurations_figure
from learnscope.report.bits.sensitivity import sensitivity_figure
from learnscope.report.cost.speed import memory_figure, speed_figure
from learnscope.report.robustness.damage import attack_figure, noise_figure, perturbation_figure
from learnscope.report.style import BROKEN
from report.audit.audit_runs import AuditRun, columns, made
from report.legible import assert_legible


@pytest.fixture(scope="module")
def deep() -> AuditRun:
    return made(28)


def said(figure: Figure) -> str:
    """All text outside the ticks."""
    legends = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    inside = [text.get_text() for axes in figure.axes for text in axes.texts]
    return " | ".join([text.get_text().replace("\n", " ") for text in figure.texts] + legends + inside)


def points(axes: Axes) -> list[tuple[float, float]]:
    """Single marks, such as the dot of a row."""
    found = [np.asarray(line.get_xydata(), dtype=float) for line in axes.lines if len(line.get_xydata()) == 1]
    return [(float(one[0][0]), float(one[0][1])) for one in found]


def test_every_configuration_has_its_row(deep: AuditRun) -> None:
    figure = configurations_figure(deep.reader)
    assert figure is not None
    sizes, cost, change = figure.axes
    names = [label.get_text() for label in sizes.get_yticklabels()]
    assert names[0] == "original"
    assert names[-1] == "uniform_2"
    rows = {row: x for x, row in points(cost)}
    assert rows[names.index("uniform_4")] == 0.06
    assert names.index("original") not in rows  # exactly 0 has no place on a logarithmic scale
    assert "exactly 0" in said(figure)
    assert {row: x for x, row in points(change)}[names.index("uniform_4")] == pytest.approx(0.066)
    ends = [line.get_xdata() for line in cost.lines if list(line.get_ydata()) == [names.index("uniform_4")] * 2]
    assert np.asarray(ends[0], dtype=float).tolist() == pytest.approx([0.054, 0.066])
    assert_legible(figure)


def test_the_frontier_is_drawn_and_named(deep: AuditRun) -> None:
    figure = accuracy_figure(deep.reader)
    assert figure is not None
    left, right = figure.axes
    frontier = next(line for line in right.lines if len(line.get_xdata()) == 5)  # the original's KL is exactly 0
    assert np.asarray(frontier.get_ydata(), dtype=float).tolist() == [1e-7, 3e-4, 0.012, 0.06, 4.1]
    assert {"mixed_4_8", "uniform_2"} <= set(said(figure).split(" | "))
    assert (pytest.approx(0.7 * 4.2 + 9.6), pytest.approx(0.41 * math.exp(-0.06))) in points(left)
    assert_legible(figure)


def test_sensitivity_of_28_layers_and_of_one(deep: AuditRun) -> None:
    figure = sensitivity_figure(deep.reader)
    assert figure is not None
    panels = {axes.get_title(loc="left"): axes for axes in figure.axes if axes.get_title(loc="left")}
    assert list(panels) == ["attention", "MLP"]
    mesh = next(m for m in panels["MLP"].collections if isinstance(m, QuadMesh) and m.get_cmap().N > 1)
    shown = np.ma.asarray(mesh.get_array()).reshape(28, 4)
    np.testing.assert_allclose(shown[:, 3], deep.fragile[1::2] * 2.0**-4 * 0.5)
    assert shown.mask[:, 0].all()  # exactly zero at 16 bits, grey
    assert [label.get_text() for label in panels["attention"].get_xticklabels()] == ["16", "8", "4", "2"]
    assert "exactly zero" in said(figure)
    assert_legible(figure)
    one = AuditRun(1)
    one.sensitivity((4,), broken="h.0.mlp")
    small = sensitivity_figure(one.reader)
    assert small is not None
    assert "NaN or infinite" in said(small)
    maps = [m.get_cmap() for axes in small.axes for m in axes.collections if isinstance(m, QuadMesh)]
    assert any(isinstance(m, ListedColormap) and m.colors == [BROKEN] for m in maps)
    assert_legible(small)


def test_units_that_are_in_no_block_have_a_panel_of_their_own() -> None:
    run = AuditRun(2)
    run.units += ["wte", "an.encoder.with.a.very.long.name.indeed.of.a.unit"]
    run.fragile = np.arange(1.0, 7.0)
    run.sensitivity()
    figure = sensitivity_figure(run.reader)
    assert figure is not None
    panels = {axes.get_title(loc="left"): axes for axes in figure.axes if axes.get_title(loc="left")}
    assert list(panels) == ["attention", "MLP", "other units"]
    assert panels["other units"].get_yticklabels()[0].get_text() == "wte"
    assert_legible(figure)


def test_attacks_with_their_gap_and_flags(deep: AuditRun) -> None:
    figure = attack_figure(deep.reader, Cuts(audit_robustness_gap=0.2))
    assert figure is not None
    curves, gap, transfer = figure.axes
    lines = {line.get_label(): line for line in curves.lines}
    assert np.asarray(lines["PGD"].get_ydata(), dtype=float)[-1] == pytest.approx(0.41 - 0.23)
    assert np.asarray(lines["PGD"].get_xdata(), dtype=float).tolist() == [0.01, 0.03, 0.1, 0.3]
    assert (0.23, 0.0) in points(gap)
    assert any(list(line.get_xdata()) == [0.2, 0.2] for line in gap.lines)
    assert [text.get_text() for text in transfer.texts][:3] == ["0.18", "0.24", "0.41"]
    assert "more damage with more steps: not measured" in said(figure)
    assert_legible(figure)


def test_noise_and_damage(deep: AuditRun) -> None:
    noise = noise_figure(deep.reader)
    assert noise is not None
    # from weak to strong: fewer bits are more noise
    assert [label.get_text() for label in noise.axes[1].get_xticklabels()] == ["8", "6", "4", "2"]
    kl = np.asarray(noise.axes[0].lines[0].get_ydata(), dtype=float)
    np.testing.assert_allclose(kl, [3e-4, 1.2e-3, 7.5e-3, 0.03, 0.12])
    assert "over 5 seeds on 64 examples" in said(noise)
    damage = perturbation_figure(deep.reader)
    assert damage is not None
    assert {"clean", "dropped tokens", "replaced tokens"} <= set(said(damage).split(" | "))
    assert_legible(noise)
    assert_legible(damage)


def test_speed_and_memory_beside_what_is_asked_for(deep: AuditRun) -> None:
    figure = speed_figure(deep.reader, Cuts(audit_tokens_per_second=4000.0))
    assert figure is not None
    latency, rate, prefill, decode, layers = figure.axes
    lines = {tuple(line.get_xdata()): list(line.get_ydata()) for line in decode.lines if len(line.get_xdata()) == 2}
    assert lines[1, 4] == pytest.approx([1 / 0.015, 4 / 0.018])
    assert any(list(line.get_ydata())[-1:] == pytest.approx([512 / 0.133]) for line in prefill.lines)
    assert {"32 tokens", "128 tokens"} <= set(said(figure).split(" | "))
    assert any(list(line.get_xdata()) == [4000, 4000] for line in rate.lines)
    assert (pytest.approx(4 * 128 / 0.092), 1.0) in points(rate)
    assert (pytest.approx(0.98 * 92), 1.0) in points(latency)
    assert [patch.get_height() for patch in layers.patches][:3] == pytest.approx([4.0, 4.2, 4.4])
    assert "too few for P99 of 11 of 11" in said(figure)
    assert_legible(figure)
    memory = memory_figure(deep.reader)
    assert memory is not None
    assert [label.get_text() for label in memory.axes[1].get_yticklabels()] == [
        "weights", "cache", "activations", "all of it", "weights as optimal",
    ]  # fmt: skip
    assert memory.axes[1].get_title(loc="left") == "What it takes, batch 1, 128 tokens"
    assert any(list(line.get_xdata()) == [100, 100] for line in memory.axes[1].lines)
    assert_legible(memory)


def test_the_dashboard_of_a_whole_audit_and_of_one_part(deep: AuditRun) -> None:
    figure = dashboard_figure(deep.reader)
    assert figure is not None
    text = said(figure)
    for number in (
        "24.5",
        "66.7 tokens/s",
        "decode, batch 1",
        "497 MB",
        "12.7 bits a weight",
        "0.23",
        "Real time: no",
        "Edge: no",
    ):
        assert number in text, number
    assert_legible(figure)
    run = AuditRun(1)
    run.performance(math.nan, accuracy=math.nan)
    part = dashboard_figure(run.reader)
    assert part is not None
    assert "1 of 14 parts ran" in said(part)
    assert said(part).count("was not run") == 10
    assert "Real time: not judged" in said(part)
    assert_legible(part)


def test_odd_numbers_leave_readable_figures() -> None:
    run = AuditRun(3)
    run.widths(broken=("uniform_2", "uniform_4"))
    run.attacks(-0.01, 0.02, zeros=0.9)
    run.noise(0.0)
    run.memory("no pass fitted", scale=0.001)
    values = {"latency_mean": 3e-6, "latency_p50": 3e-6, "latency_n": 1, "examples_per_second": 2e8,
              "tokens_per_second": "inputs have no tokens"}  # fmt: skip
    fast = Table("model", ["model"], columns(values, phase="forward", batch=64, length=0, main=True))
    run.once("InferenceSpeed", [fast])
    drawn = {one.panel.file: one.draw(run.reader, None) for one in FIGURES[:7]}
    assert drawn["layer_sensitivity.png"] is None
    broken, noise = drawn["bit_width_configurations.png"], drawn["noise_robustness.png"]
    assert broken is not None
    assert "NaN" in said(broken)
    assert noise is not None
    assert said(noise).count("| 0") >= 5  # exactly 0 is written where a logarithm has none
    for figure in drawn.values():
        if figure is not None:
            assert_legible(figure)


def test_nothing_is_drawn_of_nothing() -> None:
    assert [one.draw(AuditRun(1).reader, None) for one in FIGURES] == [None] * 9
