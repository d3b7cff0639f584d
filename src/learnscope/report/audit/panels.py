"""The figures of an audit: their files, and the parts that each is drawn from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from matplotlib.figure import Figure

from learnscope.reading.audit import PARTS
from learnscope.reading.cuts import Cuts
from learnscope.report.audit.dashboard import dashboard_figure
from learnscope.report.bits.configurations import accuracy_figure, configurations_figure
from learnscope.report.bits.sensitivity import sensitivity_figure
from learnscope.report.cost.speed import memory_figure, speed_figure
from learnscope.report.layout import Panel
from learnscope.report.robustness.damage import attack_figure, noise_figure, perturbation_figure
from learnscope.store.reader import RunReader

Draw = Callable[[RunReader, Cuts | None], Figure | None]


@dataclass(frozen=True)
class AuditFigure:
    """A panel, how to draw it with other thresholds, and the parts of an audit it shows."""

    panel: Panel
    draw: Draw
    parts: tuple[str, ...]


def _figure(draw: Draw, parts: tuple[str, ...], file: str, title: str, reading: str) -> AuditFigure:
    return AuditFigure(Panel(file, title, reading, lambda reader: draw(reader, None)), draw, parts)


FIGURES = (
    _figure(
        speed_figure, ("speed", "layers"), "performance_speed.png", "Speed of the model",
        "Latency and throughput of every setting that was timed, beside the throughput that is asked for, and the time "
        "that each layer takes.",
    ),
    _figure(
        memory_figure, ("memory",), "performance_memory.png", "Memory of the model",
        "What the weights are for, and what the model takes, beside what is asked for.",
    ),
    _figure(
        configurations_figure, ("configurations", "optimum"), "bit_width_configurations.png",
        "Configurations of bit widths",
        "The size of every configuration, how far its outputs are from the model's own, and what the loss makes of it. "
        "A configuration on the Pareto frontier has none that is smaller and better.",
    ),
    _figure(
        accuracy_figure, ("configurations", "optimum"), "accuracy_vs_bits.png", "Accuracy over bits",
        "Bits a weight are of the whole model, scales and unquantised weights included.",
    ),
    _figure(
        sensitivity_figure, ("sensitivity",), "layer_sensitivity.png", "Sensitivity of layers to bits",
        "How far the outputs move when one unit alone is quantised, on a logarithmic scale: bright cells need bits.",
    ),
    _figure(
        attack_figure, ("attacks", "transfer"), "adversarial_robustness.png", "Robustness to attacks",
        "Accuracy over the size of the attacks. Attacks by gradients say something only where they do more than random "
        "noise of the same size, and where the flags above the figure hold.",
    ),
    _figure(
        noise_figure, ("noise",), "noise_robustness.png", "Robustness to noise on the weights",
        "Noise grows from left to right; a level is drawn again for every seed.",
    ),
    _figure(
        perturbation_figure, ("perturbations",), "perturbation_robustness.png", "Robustness to damaged inputs",
        "Inputs that are dropped or replaced at random, beside the clean ones.",
    ),
    _figure(
        dashboard_figure, tuple(part for part in PARTS if part != "exported"), "analysis_summary_dashboard.png",
        "Audit at a glance", "The most important numbers and the other figures in small.",
    ),
)  # fmt: skip

AUDIT_PANELS = tuple(figure.panel for figure in FIGURES)
