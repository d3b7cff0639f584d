"""Spectra of adapters while they train: a tracker to call in one's own loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from matplotlib.figure import Figure
from torch import nn

from learnscope.core.moment import NotAvailable
from learnscope.core.probe import Probe
from learnscope.model.adapters.inventory import Adapters
from learnscope.model.adapters.parameters import OUTSIDE_ADAPTERS
from learnscope.model.adapters.start import AdapterError
from learnscope.model.selection import SelectionError
from learnscope.model.weights.matrices import weight_matrices
from learnscope.options import explain_options, known_name, whole_number
from learnscope.probes.adapters.adapter_spectrum import AdapterSpectrum
from learnscope.probes.weights.weight_spectrum import WeightSpectrum
from learnscope.reading.words import capital
from learnscope.record import Label
from learnscope.report.adapters.heatmaps import Scale, draw_heatmap
from learnscope.report.adapters.lines import draw_spectra
from learnscope.tensor.adapters.spectrum import spectrum_numbers
from learnscope.trackers.fitting import adapters_in
from learnscope.trackers.history import LISTS, MetricName, plain_name
from learnscope.trackers.naming import choose_adapters, find_module, in_words, named_adapters, title_ending
from learnscope.trackers.panels import final_spectra, heatmap_panels, matrix_words, saved
from learnscope.trackers.tracker import Options, Tracker

NAME = "SpectralTracker"
NUMBERS = (
    "spectral_gap", "condition_number", "effective_rank", "nuclear_norm", "frobenius_norm", "top1_sv_ratio",
    "top5_sv_ratio", "top10_sv_ratio", "rank",
)  # fmt: skip
DORA = ("magnitude_norm", "direction_norm", "magnitude_direction_ratio")
LOGARITHMIC = ("condition_number",)
"""Metrics that differ by orders of magnitude."""


def spectral_probes(options: Options, model: nn.Module | None) -> list[Probe]:
    """What a spectral tracker measures with.

    Matrices outside adapters are measured if some are trained, or if the model has no adapters. A probe refuses a model
    that has nothing for it.
    """
    every, most = options.log_frequency or 1, options.max_layers_to_track
    adapters = AdapterSpectrum(every=every, max_layers=most)
    weights = WeightSpectrum(every=every, full=options.compute_full_svd, max_layers=most)
    if options.track_adapter_only:
        return [adapters]
    if model is not None and adapters_in(model) == Adapters():
        return [weights]
    return [adapters, weights] if model is None or _trains_other_matrices(model) else [adapters]


def _trains_other_matrices(model: nn.Module) -> bool:
    try:
        return bool(weight_matrices(model, None, trained_only=True, max_layers=None))
    except SelectionError:
        return False


def weight_metric(kind: str, name: str, labels: Mapping[str, Label]) -> str | None:
    """The label `spectrum` is dropped: a matrix has either all singular values or the leading ones."""
    return plain_name(kind, name, {label: value for label, value in labels.items() if label != "spectrum"})


class SpectralTracker(Tracker):
    """The spectrum of every adapter's update ΔW over the steps of a training.

    >>> import peft, tempfile
    >>> base = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4))
    >>> model = peft.get_peft_model(base, peft.LoraConfig(r=2, target_modules=["0", "1"]))
    >>> tracker = SpectralTracker(model, log_frequency=10, save_dir=tempfile.mkdtemp())
    >>> [step for step in range(25) if tracker.log_step(step)]
    [0, 10, 20]
    >>> tracker.get_layer_history("0")["nuclear_norm"]
    [0.0, 0.0, 0.0]
    >>> SpectralTracker.load(tracker.save()).get_summary_stats()["total_steps_logged"]
    3

    Make it before the training begins: adapters such as PiSSA's begin with a part of the weight, which is taken off
    what they add. The spectra come from the small factors (`learnscope.AdapterSpectrum` tells the metrics). With
    `track_adapter_only=False` all other trained matrices have rows as well, of which `compute_full_svd=False` takes the
    leading singular values only. `max_layers_to_track` are the first, the last, and layers evenly between. The
    optimizer only tells LoRA+ from LoRA.
    """

    _name, file, folder = NAME, "spectral_history.pt", "spectral_logs"
    _metric_names: ClassVar[Mapping[str, MetricName]] = {"AdapterSpectrum": plain_name, "WeightSpectrum": weight_metric}
    _probes = staticmethod(spectral_probes)

    @partial(explain_options, owner=NAME)
    def __init__(
        self, model: nn.Module, log_frequency: int = 100, save_dir: str | Path | None = None, *,
        track_adapter_only: bool = True, compute_full_svd: bool = True, max_layers_to_track: int | None = None,
        optimizer: Any = None, peft_type: str | None = None, verbose: bool = False,
    ) -> None:  # fmt: skip
        self._start(
            model, optimizer, save_dir, peft_type, verbose, log_frequency=log_frequency,
            track_adapter_only=track_adapter_only, compute_full_svd=compute_full_svd,
            max_layers_to_track=max_layers_to_track,
        )  # fmt: skip
        adapters = adapters_in(model)
        if track_adapter_only and not adapters.items and adapters.unknown:
            raise AdapterError(
                f"the adapters of {type(model).__name__} are of a family whose update is not known here "
                f"({', '.join(adapters.unknown)}): there is no spectrum to track. GradientFlowTracker tracks their "
                "gradients."
            )

    def get_layer_history(self, layer_name: str, *, adapter: str | None = None) -> dict[str, Any]:
        """Every metric of a module over the logged `steps`, None where there is no number; `reasons` say why, by step.

        The name may have PEFT's prefix (`base_model.model.`). Metrics that are measured in several ways carry a label:
        `left_drift/first` is the drift since the first measurement, `vector_norm/magnitude` the norm of that vector.
        """
        owner, module = find_module(self._history, layer_name, adapter)
        known = self._history.metrics(owner, module)
        first = [metric for metric in (*LISTS, *NUMBERS) if metric in known]
        return self._history.of_module(owner, module, list(dict.fromkeys([*first, *known])))

    def get_metric_across_layers(
        self, metric: str, step_idx: int = -1, *, adapter: str | None = None
    ) -> dict[str, Any]:
        """One metric of every module at one of the logged steps, by default the last."""
        history, steps, adapters = self._history, self.steps, choose_adapters(self._history, adapter)
        index = step_idx if type(step_idx) is int else whole_number("step_idx", step_idx)
        if not -len(steps) <= index < len(steps):
            logged = f"there are {len(steps)} logged steps" if steps else "no step has been logged"
            raise IndexError(f"step_idx={step_idx}: {logged}")
        known = {owner: history.metrics(owner) for owner in adapters}
        known_name("metric", metric, dict.fromkeys(name for names in known.values() for name in names))
        return {
            module: history.read(steps[index], owner, metric, module)[0]
            for owner in adapters
            if metric in known[owner]
            for module in self.modules[owner]
        }

    def create_heatmap(
        self, metric: str = "effective_rank", save_path: str | Path | None = None, *, title: str | None = None,
        adapter: str | None = None,
    ) -> Figure:  # fmt: skip
        """Layers down, steps across, a panel for each type of module: one metric of every module in colour."""
        modules = self._modules(metric, adapter)
        if metric in LISTS or self._history.has_lists(metric):
            raise ValueError(
                f"{metric} has several numbers for each module, and a cell has one colour: create_spectrum_plot draws "
                "singular values, get_layer_history gives them all"
            )
        panels = heatmap_panels(self._history, modules, metric, metric, lambda values: float(values.mean()))
        words, (what, matrix) = in_words(metric), matrix_words(modules)
        meaning = f"{words} of {matrix}" if metric in spectrum_numbers([torch.ones(1)]).values else words
        scale = Scale(words.removeprefix("effective "), meaning, log=metric in LOGARITHMIC)
        heading = title or f"{capital(words)} of the {what}{title_ending(self._history, adapter)}"
        return saved(draw_heatmap(panels, scale, heading), save_path)

    def create_spectrum_plot(
        self, save_path: str | Path | None = None, *, title: str | None = None, adapter: str | None = None
    ) -> Figure:
        """The singular values of every module at the last step that has some, a panel for each type of module."""
        modules = self._modules("singular_values", adapter)
        step, panels = final_spectra(self._history, modules)
        what, matrix = matrix_words(modules)
        heading = title or f"Singular values of the {what}{title_ending(self._history, adapter)}"
        return saved(draw_spectra(panels, step, heading, matrix), save_path)

    def _modules(self, metric: str, adapter: str | None) -> list[tuple[str, str]]:
        """The adapter's modules; matrices outside adapters only if they are asked for, or there is nothing else."""
        history = self._history
        if not history.steps:
            raise NotAvailable("no spectrum has been logged yet: call log_step")
        adapters = choose_adapters(history, adapter)
        adapters = named_adapters(adapters) or adapters
        known_name("metric", metric, dict.fromkeys(name for owner in adapters for name in history.metrics(owner)))
        return history.modules_with(adapters, metric)

    def get_summary_stats(self, *, adapter: str | None = None) -> dict[str, Any]:
        """How much was logged, and the documented metrics over all modules (or one adapter's) at the latest step.

        Weights outside adapters have `metrics_outside_adapters`: a mean over W and ΔW would mean nothing.
        """
        history = self._history
        adapters = list(self.modules) if adapter is None else choose_adapters(history, adapter)
        dora = [metric for metric in DORA if any(metric in history.metrics(name) for name in adapters)]
        summary = self._summary(adapters, metrics := [*NUMBERS, *dora])
        inside = named_adapters(adapters)
        if inside and inside != adapters:
            summary["metrics"] = self._summary(inside, metrics)["metrics"]
            summary["metrics_outside_adapters"] = self._summary([OUTSIDE_ADAPTERS], NUMBERS)["metrics"]
        return summary

    def default_figures(self, adapter: str | None) -> dict[str, Callable[..., Figure]]:
        """Effective ranks over the steps, and the spectra at the end."""
        return {
            "effective_rank_heatmap": partial(self.create_heatmap, adapter=adapter),
            "singular_values_final": partial(self.create_spectrum_plot, adapter=adapter),
        }
