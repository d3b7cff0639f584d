"""Gradients of adapters while they train: a tracker to call in one's own loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor, nn

from learnscope.core.gradients import Gradients, current_tensors, missing_names
from learnscope.core.moment import NotAvailable
from learnscope.core.probe import Probe
from learnscope.core.subject import Subject
from learnscope.names import resolve
from learnscope.options import explain_options, known_name
from learnscope.probes.adapters.adapter_gradients import AdapterGradients
from learnscope.quantities.adapters import AdapterGradients as Q
from learnscope.reading.gather import Floats
from learnscope.record import Label
from learnscope.report.adapters.heatmaps import Scale, draw_heatmap
from learnscope.report.adapters.lines import draw_comparison
from learnscope.report.features.evolution import file_part
from learnscope.tensor.gradients.gradient import GradientTable, sum_squares
from learnscope.trackers.history import MetricName
from learnscope.trackers.naming import (
    LETTERS,
    choose_adapters,
    find_component,
    find_layer,
    find_module,
    layer_of,
    title_ending,
    type_of,
)  # fmt: skip
from learnscope.trackers.panels import by_layer, combined, comparison_panels, grid, heatmap_panels, saved
from learnscope.trackers.tracker import Options, Tracker

NAME = "GradientFlowTracker"


def gradient_probes(options: Options, model: nn.Module | None = None) -> list[Probe]:  # noqa: ARG001  (the same for every model)
    return [
        AdapterGradients(
            every=options.log_frequency or 1,
            adapters_only=options.track_adapter_only,
            max_layers=options.max_layers_to_track,
        )
    ]


def component_name(kind: str, name: str, labels: Mapping[str, Label]) -> str | None:
    """A module's norm by the part of the adapter, with its stage unless it is what the optimizer got."""
    if name != Q.norm.name or kind != "module":
        return None
    part, stage = str(labels["component"]), str(labels["stage"])
    return part if stage == "stepped" else f"{part}/{stage}"


class GradientFlowTracker(Tracker):
    """The gradient norm of every adapter's parts over the steps of a training.

    >>> import peft, torch
    >>> base = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4))
    >>> model = peft.get_peft_model(base, peft.LoraConfig(r=2, target_modules=["0", "1"]))
    >>> tracker = GradientFlowTracker(model, log_frequency=1)
    >>> model(torch.ones(3, 8)).square().sum().backward()
    >>> tracker.log_step(1)
    True
    >>> norms, layers, steps = tracker.get_gradient_matrix("A")  # exactly 0, since B is 0
    >>> norms.tolist(), layers, steps
    ([[0.0], [0.0]], ['0', '1'], [1])

    Gradients are read as they stand: call `log_step` after `loss.backward()` and before `optimizer.step()`; after
    `scaler.unscale_(optimizer)` under a `GradScaler`. Where they are clipped, the place of the call says whether they
    are read before or after. With `track_adapter_only=False` all other trained parameters have rows as well.
    """

    _name, file, folder = NAME, "gradient_flow.pt", "gradient_logs"
    _metric_names: ClassVar[Mapping[str, MetricName]] = {"AdapterGradients": component_name}
    _probes = staticmethod(gradient_probes)
    _parameters: Sequence[Tensor] | None = None
    _awaited: Sequence[Tensor] = ()
    """Of these parameters, at least one has to have a gradient."""
    _present: tuple[list[str], tuple[bool, ...], list[str], list[int], list[str]] | None = None
    """All names, which parameters have gradients and are trained; and for these the fields of `Gradients`."""

    @partial(explain_options, owner=NAME)
    def __init__(
        self, model: nn.Module, log_frequency: int = 100, save_dir: str | Path | None = None, *,
        track_adapter_only: bool = True, max_layers_to_track: int | None = None, optimizer: Any = None,
        peft_type: str | None = None, verbose: bool = False,
    ) -> None:  # fmt: skip
        self._start(
            model, optimizer, save_dir, peft_type, verbose, log_frequency=log_frequency,
            track_adapter_only=track_adapter_only, max_layers_to_track=max_layers_to_track,
        )  # fmt: skip

    def log_step(self, step: int) -> bool:
        """Read the gradients if `step` is a multiple of `log_frequency`; returns whether it did.

        A later log of a step replaces it. Raises `NotAvailable` if nothing that is tracked has a gradient.
        """
        return super().log_step(step)

    def _check_ready(self, subject: Subject) -> None:
        only = self._options.track_adapter_only
        if self._parameters is not subject.parameters:  # the model has others than when it was last looked at
            named = zip(subject.names, subject.parameters, strict=True)
            owned = [(p, resolve(name).adapter) for name, p in named]
            self._awaited = [p for p, adapter in owned if not only or adapter not in (None, "modules_to_save")]
            self._parameters = subject.parameters
        if all(p.grad is None for p in self._awaited):
            raise NotAvailable(
                f"no {'parameter of an adapter' if only else 'parameter'} has a gradient: call log_step after "
                "loss.backward() and before optimizer.step() and optimizer.zero_grad()"
            )

    def _gradients(self, subject: Subject) -> Gradients:
        """Without the counts of zeros, NaN and Inf, which nothing here asks for."""
        grads = [p.grad for p in subject.parameters]
        key = (*[grad is None for grad in grads], *[p.requires_grad for p in subject.parameters])
        if self._present is None or self._present[:2] != (subject.names, key):
            present = current_tensors(subject)
            names = [subject.names[position] for position in present]
            self._present = subject.names, key, names, list(present), missing_names(subject, present)
        _, _, names, positions, missing = self._present
        tensors = [grad for grad in grads if grad is not None]
        return Gradients(names, positions, tensors, missing, GradientTable.uncounted(sum_squares(tensors)))

    def components(self, *, adapter: str | None = None) -> list[str]:
        """The parts whose gradients were recorded: `lora_A`, `lora_B`, …"""
        return self._components(choose_adapters(self._history, adapter))

    def get_layer_history(self, layer: str | int, *, adapter: str | None = None) -> dict[str, Any]:
        """The norms of a module's parts over the logged `steps`, or of a layer's, by its number or name.

        A layer's norm is √Σ of its modules' squares. None where there is no number; `reasons` say why, by step.
        `lora_A/before_clip` stands beside `lora_A` where the run has seen a clip.
        """
        history = self._history
        modules = dict.fromkeys(module for members in self.modules.values() for module in members)
        name = find_layer(layer, list(dict.fromkeys(map(layer_of, modules))))
        if name is None or (name in modules and isinstance(layer, str)):
            owner, module = find_module(history, str(layer), adapter)
            return history.of_module(owner, module, history.metrics(owner, module))
        adapters = choose_adapters(history, adapter)
        metrics = dict.fromkeys(metric for owner in adapters for metric in history.metrics(owner))
        layers = {metric: by_layer(history.modules_with(adapters, metric)) for metric in metrics}
        groups = {metric: members[name] for metric, members in layers.items() if name in members}
        return history.over_steps(lambda step, metric: combined(history, step, groups[metric], metric), list(groups))

    def get_gradient_matrix(
        self, component: str = "B", module_type: str | None = None, *, adapter: str | None = None
    ) -> tuple[Floats, list[str], list[int]]:
        """Norms of one part, [layers, steps], NaN where there is none; with the layers' names and the steps.

        A layer's norm is √Σ of the squares of its modules, or of those of one type (`q_proj`).
        """
        part, modules = self._modules(component, module_type, adapter)
        norms = grid(self._history, by_layer(modules), part)
        return norms.values.T.copy(), norms.scopes, self.steps

    def create_heatmap(
        self, component: str = "B", save_path: str | Path | None = None, *, title: str | None = None,
        module_type: str | None = None, adapter: str | None = None,
    ) -> Figure:  # fmt: skip
        """Layers down, steps across, a panel for each type of module: the norm of every module in colour."""
        part, modules = self._modules(component, module_type, adapter)
        figure = draw_heatmap(
            heatmap_panels(self._history, modules, part, f"gradient of {part}"),
            Scale("‖g‖", f"‖g‖, norm of the gradient of {part}"),
            title or f"Gradient norm of {part}{title_ending(self._history, adapter)}",
        )
        return saved(figure, save_path)

    def create_layer_comparison_plot(
        self, layers: Iterable[str | int] | str | int | None = None, component: str | None = "B",
        save_path: str | Path | None = None, *, title: str | None = None, module_type: str | None = None,
        adapter: str | None = None,
    ) -> Figure:  # fmt: skip
        """The norms of some layers over the steps, the others in grey: by default the first, the middle and the last.

        With `component=None` there is a panel for every part of the adapters.
        """
        parts = self.components(adapter=adapter) if component is None else [component]
        members = dict(self._modules(part, module_type, adapter) for part in parts)
        chosen = [layers] if isinstance(layers, str | int) else None if layers is None else list(layers)
        panels = comparison_panels(self._history, members, chosen)
        drawn = [panel for panel in panels if len(panels) == 1 or np.isfinite(panel.grid.values).any()] or panels[:1]
        heading = title or f"Gradient norms of the layers{title_ending(self._history, adapter)}"
        return saved(draw_comparison(drawn, heading), save_path)

    def get_summary_stats(self, *, adapter: str | None = None) -> dict[str, Any]:
        """How much was logged, and each part's norms over all modules (or one adapter's) at the latest step."""
        adapters = list(self.modules) if adapter is None else choose_adapters(self._history, adapter)
        return self._summary(adapters, self._components(adapters))

    def default_figures(self, adapter: str | None) -> dict[str, Callable[..., Figure]]:
        """A heatmap for each part that the family has, and the layers compared, a panel for each part."""
        letters = {name: letter for letter, name in LETTERS.items()}
        heatmaps: dict[str, Callable[..., Figure]] = {
            f"gradient_heatmap_{file_part(letters.get(part, part))}": partial(
                self.create_heatmap, part, adapter=adapter
            )
            for part in self.components(adapter=adapter)
        }
        comparison = partial(self.create_layer_comparison_plot, component=None, adapter=adapter)
        return {**heatmaps, "gradient_layer_comparison": comparison}

    def _components(self, adapters: Iterable[str]) -> list[str]:
        """The parts of adapters, with the norms that the optimizer got."""
        known = dict.fromkeys(metric for adapter in adapters for metric in self._history.metrics(adapter))
        return [metric for metric in known if "/" not in metric]

    def _modules(
        self, component: str, module_type: str | None, adapter: str | None
    ) -> tuple[str, list[tuple[str, str]]]:
        """A part's name, and the modules that have it."""
        adapters = choose_adapters(self._history, adapter)
        part = find_component(component, self._components(adapters))
        modules = self._history.modules_with(adapters, part)
        if module_type is not None:
            known_name("module type", module_type, dict.fromkeys(type_of(module) for _, module in modules))
        return part, [(owner, module) for owner, module in modules if module_type in (None, type_of(module))]
