"""Gradients of adapters while they train: a tracker to call in one's own loop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from matplotlib.figure import Figure
from torch import nn

from learnscope.core.moment import NotAvailable
from learnscope.core.probe import Probe
from learnscope.names import resolve
from learnscope.options import explain_options, known_name
from learnscope.probes.adapters.adapter_gradients import AdapterGradients
from learnscope.reading.gather import Floats
from learnscope.report.adapters.heatmaps import Scale, draw_heatmap
from learnscope.report.adapters.lines import draw_comparison
from learnscope.trackers.history import Naming
from learnscope.trackers.layers import by_layer, component_name, components_of, modules_with, types_of
from learnscope.trackers.naming import (
    adapters_called,
    component_called,
    layer_called,
    layer_of,
    module_called,
    said,
    type_of,
)  # fmt: skip
from learnscope.trackers.panels import comparison_panels, heatmap_panels, refuse_empty, saved
from learnscope.trackers.summary import summarised
from learnscope.trackers.tracker import Options, Tracker

NAME = "GradientFlowTracker"


def gradient_probes(options: Options, model: nn.Module | None = None) -> list[Probe]:  # noqa: ARG001  (the same for every model)
    """What a gradient tracker measures with."""
    return [
        AdapterGradients(
            every=options.log_frequency or 1,
            adapters_only=options.track_adapter_only,
            max_layers=options.max_layers_to_track,
        )
    ]


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

    _name, file = NAME, "gradient_flow.pt"
    _namings: ClassVar[Mapping[str, Naming]] = {"AdapterGradients": component_name}
    _probes = staticmethod(gradient_probes)

    @partial(explain_options, owner=NAME)
    def __init__(
        self, model: nn.Module, log_frequency: int = 100, save_dir: str | Path | None = None, *,
        track_adapter_only: bool = True, max_layers_to_track: int | None = None, optimizer: Any = None,
    ) -> None:  # fmt: skip
        self._start(
            model, optimizer, save_dir, log_frequency=log_frequency, track_adapter_only=track_adapter_only,
            max_layers_to_track=max_layers_to_track,
        )  # fmt: skip

    def log_step(self, step: int) -> bool:
        """Read the gradients, if `step` is a multiple of `log_frequency`; whether it did.

        A step logged again replaces itself. Raises `NotAvailable` if nothing that is tracked has a gradient.
        """
        return super().log_step(step)

    def _check_ready(self, model: nn.Module) -> None:
        only, named = self._options.track_adapter_only, model.named_parameters()
        if not any(p.grad is not None and (not only or _is_adapters(name)) for name, p in named):
            raise NotAvailable(
                f"no {'parameter of an adapter' if only else 'parameter'} has a gradient: call log_step after "
                "loss.backward() and before optimizer.step() and optimizer.zero_grad()"
            )

    def components(self, *, adapter: str | None = None) -> list[str]:
        """The parts whose gradients were recorded: `lora_A`, `lora_B`, …"""
        return components_of(self._history, adapters_called(self._history, adapter))

    def get_layer_history(self, layer: str | int, *, adapter: str | None = None) -> dict[str, Any]:
        """The norms of a module's parts over the logged `steps`, or of a layer's, by its number or name.

        A layer's norm is √Σ of its modules' squares. None where there is no number; `reasons` say why, by step.
        `lora_A/before_clip` stands beside `lora_A` where the run has seen a clip.
        """
        history = self._history
        layers = dict.fromkeys(layer_of(module) for modules in self.modules.values() for module in modules)
        found = layer_called(layer, list(layers))
        modules = {module for held in self.modules.values() for module in held}
        if found is None or (found in modules and isinstance(layer, str)):
            owner, module = module_called(history, str(layer), adapter)
            return history.course(owner, module, history.metrics(owner, module))
        adapters = adapters_called(history, adapter)
        norms_of: dict[str, Any] = {"steps": history.steps}
        reasons: dict[str, dict[int, str]] = {}
        for metric in dict.fromkeys(one for owner in adapters for one in history.metrics(owner)):
            inside = [one for one in modules_with(history, adapters, metric) if layer_of(one[1]) == found]
            if not inside:
                continue
            norms = by_layer(history, inside, metric)
            norms_of[metric] = [None if number != number else number for number in norms.values[0].tolist()]
            why = {norms.steps[column]: reason for (_, column), reason in norms.reasons.items()}
            reasons |= {metric: why} if why else {}
        return {**norms_of, "reasons": reasons}

    def get_gradient_matrix(
        self, component: str = "B", module_type: str | None = None, *, adapter: str | None = None
    ) -> tuple[Floats, list[str], list[int]]:
        """Norms of one part, [layers, steps], NaN where there is none; with the layers' names and the steps.

        A layer's norm is √Σ of the squares of its modules, or of those of one type (`q_proj`).
        """
        history = self._history
        adapters = adapters_called(history, adapter)
        modules = self._modules(component, module_type, adapters)
        norms = by_layer(history, modules, component_called(component, components_of(history, adapters)))
        return norms.values, norms.groups, norms.steps

    def create_heatmap(
        self, component: str = "B", save_path: str | Path | None = None, *, title: str | None = None,
        module_type: str | None = None, adapter: str | None = None,
    ) -> Figure:  # fmt: skip
        """Layers down, steps across, a panel for each type of module: the norm of every module in colour."""
        history = self._history
        adapters = adapters_called(history, adapter)
        modules = self._modules(component, module_type, adapters)
        part = component_called(component, components_of(history, adapters))
        panels = heatmap_panels(history, modules, part)
        refuse_empty(panels, f"gradient of {part}", history, modules, part)
        figure = draw_heatmap(
            panels,
            Scale("‖g‖", f"‖g‖, norm of the gradient of {part}"),
            title or f"Gradient norm of {part}{said(history, adapter)}",
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
        history = self._history
        adapters = adapters_called(history, adapter)
        known = components_of(history, adapters)
        parts = known if component is None else [component_called(component, known)]
        held = {part: self._modules(part, module_type, adapters) for part in parts}
        wanted = [layers] if isinstance(layers, str | int) else None if layers is None else list(layers)
        panels = comparison_panels(history, held, wanted)
        drawn = [panel for panel in panels if len(panels) == 1 or np.isfinite(panel.grid.values).any()] or panels[:1]
        figure = draw_comparison(drawn, title or f"Gradient norms of the layers{said(history, adapter)}")
        return saved(figure, save_path)

    def get_summary_stats(self, *, adapter: str | None = None) -> dict[str, Any]:
        """How much was logged, and each part's norms over all modules (or one adapter's) at the latest step."""
        history = self._history
        adapters = list(self.modules) if adapter is None else adapters_called(history, adapter)
        return summarised(NAME, history, adapters, components_of(history, adapters))

    def _modules(self, component: str, module_type: str | None, adapters: list[str]) -> list[tuple[str, str]]:
        history = self._history
        part = component_called(component, components_of(history, adapters))
        found = modules_with(history, adapters, part)
        if module_type is None:
            return found
        known_name("module type", module_type, types_of(found))
        return [one for one in found if type_of(one[1]) == module_type]


def _is_adapters(name: str) -> bool:
    return resolve(name).adapter not in (None, "modules_to_save")
