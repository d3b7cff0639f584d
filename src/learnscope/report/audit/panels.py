"""The figures of an audit: their files, and the parts that each is drawn from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from matplotlib.figure import Figure

from learnscope.reading.cuts import Cuts
from learnscope.report.audit.dashboard import dashboard_figure
from learnscope.report.bits.configurations import accuracy_figure, configurations_figure
from learnscope.report.bits.sensitivity import sensitivity_figure
from learnscope.report.cost.speed import memory_figure, speed_figure
from learnscope.report.layout import Panel
from learnscope.report.robustness.damage import attack_figure, noise_figure, perturbation_figure
from learnscope.store.reader import RunReader


@dataclass(frozen=True)
class AuditFigure:
    """A panel, the parts of an audit any of which it needs, and how to draw it with other thresholds."""

    panel: Panel
    parts: tuple[str, ...]
    draw: Callable[[RunReader, Cuts | None], Figure | None]


def _made(
    file: str, title: str, reading: str, parts: tuple[str, ...], draw: Callable[[RunReader, Cuts | None], Figure | None]
) -> AuditFigure:
    return AuditFigure(Panel(file, title, reading, lambda reader: draw(reader, None)), parts, draw)


FIGURES = (
    _made(
        "performance_speed.png", "Speed of the model",
        "Latency and throughput of every setting that was timed, beside the throughput that is asked for, and the time "
        "that each layer takes.",
        ("speed", "layers"), speed_figure,
    ),
    _made(
        "performance_memory.png", "Memory of the model",
        "What the weights are for, and what the model takes, beside what is asked for.",
        ("memory",), memory_figure,
    ),
    _made(
        "bit_width_configurations.png", "Configurations of bit widths",
        "The size of every configuration, how far its outputs are from the model's own, and what the loss makes of it. "
        "A configuration on the Pareto frontier has none that is smaller and better.",
        ("configurations", "optimum"), configurations_figure,
    ),
    _made(
        "accuracy_vs_bits.png", "Accuracy over bits",
        "Bits a weight are of the whole model, scales and unquantised weights included.",
        ("configurations", "optimum"), accuracy_figure,
    ),
    _made(
        "layer_sensitivity.png", "Sensitivity of layers to bits",
        "How far the outputs move when one unit alone is quantised, on a logarithmic scale: bright cells need bits.",
        ("sensitivity",), sensitivity_figure,
    ),
    _made(
        "adversarial_robustness.png", "Robustness to attacks",
        "Accuracy over the size of the attacks. Attacks by gradients say something only where they do more than random "
        "noise of the same size, and where the flags above the figure hold.",
        ("attacks", "transfer"), attack_figure,
    ),
    _made(
        "noise_robustness.png", "Robustness to noise on the weights",
        "Noise grows from left to right; a level is drawn again for every seed.",
        ("noise",), noise_figure,
    ),
    _made(
        "perturbation_robustness.png", "Robustness to damaged inputs",
        "Inputs that are dropped or replaced at random, beside the clean ones.",
        ("perturbations",), perturbation_figure,
    ),
    _made(
        "analysis_summary_dashboard.png", "Audit at a glance",
        "The most important numbers and the other figures in small.",
        ("quality", "speed", "memory", "layers", "sensitivity", "configurations", "optimum", "attacks", "noise",
         "perturbations", "transfer"),
        dashboard_figure,
    ),
)  # fmt: skip

AUDIT_PANELS = tuple(one.panel for one in FIGURES)
