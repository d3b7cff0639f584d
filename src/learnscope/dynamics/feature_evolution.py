"""How the features of layers evolve over epochs or checkpoints: an analyzer to call in one's own loop."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from learnscope.core.moment import NotAvailable
from learnscope.dynamics.saved import RecordingAnalyzer, SavedError, load_session, save_session
from learnscope.findings.features.feature_course import Transitions, course, evolution, transitions
from learnscope.model.data import fixed_batches
from learnscope.model.features.pooling import Pooling, check_layers, default_layers
from learnscope.options import explain_options, known_name, whole_number
from learnscope.probes.features.feature_evolution import FeatureEvolution
from learnscope.quantities.features import FeatureEvolution as Q
from learnscope.reading.gather import one_pass
from learnscope.reading.jumps import ALPHA, SIMULATIONS
from learnscope.report.features.evolution import METHODS, EpochFeatures, plot_numbers, plot_plane
from learnscope.session.opening import check_model
from learnscope.task import Task

KIND = "FeatureEvolutionTracker"
ALIASES = {
    "silhouette_score": Q.silhouette, "class_separability": Q.separability, "linear_probe_accuracy": Q.linear_probe,
}  # fmt: skip
_PROBE = "features"
_CACHED = 2
"""Samples that are kept: that of the training data, and one of other data."""
_MARKED = (Q.silhouette, Q.separability, Q.linear_probe, Q.effective_rank, Q.cka_previous)
"""Numbers whose jumps the figure marks."""


class FeatureEvolutionTracker(RecordingAnalyzer):
    """Features of layers on the same examples, epoch after epoch: their classes, directions and distance to before.

    >>> import torch
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    >>> data = torch.utils.data.TensorDataset(torch.randn(60, 4), torch.arange(60) % 2)
    >>> tracker = FeatureEvolutionTracker(model, ["0", "1"])
    >>> for epoch in range(2):
    ...     _ = model[0].weight.data.mul_(2.0)
    ...     numbers = tracker.track_epoch(torch.utils.data.DataLoader(data, shuffle=True), epoch)
    >>> sorted(numbers), numbers["0"]["dimensions"], numbers["0"]["cka_previous"] > 0.9
    (['0', '1'], 8, True)

    `model` is a public attribute: load weights into it (`tracker.model.load_state_dict(...)`), or put another model of
    the same layers there, and track the next epoch. Hooks exist only while `track_epoch` runs the model, which can be
    shared by trackers, copied and saved between calls. The steps of the run are epochs.
    """

    @partial(explain_options, owner=KIND)
    def __init__(
        self, model: nn.Module, layer_names: Sequence[str] | None = None, device: Any = None, *,
        pooling: Pooling = "mean", keep_features: bool = True, memory_mb: float = 1024.0, task: Task | None = None,
        run: str | Path | None = None,
    ) -> None:  # fmt: skip
        """What to look at.

        Args:
            model: the model, or one of the same layers to load checkpoints into.
            layer_names: names as in `model.named_modules()`; by default a spread over the blocks, and the last layer
                before the head.
            device: the model is moved there; None leaves it where it is. Inputs follow it.
            pooling: how a sequence becomes one vector: `mean` over the positions that the attention mask keeps, `last`
                or `cls`. Of a tuple the first tensor counts; images are averaged over their places.
            keep_features: keep every epoch's features, 4 · examples · dimensions bytes a layer, to draw them.
            memory_mb: for the first and the last features, which CKA needs; layers that do not fit have none.
            task: how a batch is read, where the defaults do not recognise it.
            run: a folder to write the records to; None keeps them in memory.
        """
        check_model(model)
        if isinstance(layer_names, str):
            raise TypeError(f"layer_names={layer_names!r}: a list of names, [{layer_names!r}]")
        self.layer_names = default_layers(model) if layer_names is None else list(dict.fromkeys(layer_names))
        if odd := [name for name in self.layer_names if not isinstance(name, str)]:
            raise TypeError(f"layer_names has {odd[0]!r}: names as in model.named_modules(), such as {str(odd[0])!r}")
        check_layers(model, self.layer_names)
        self.model = model if device is None else model.to(device)
        self.device, self.task = device, task
        self.reasons: dict[str, dict[str, str]] = {}
        """For the last epoch, by layer: why a number is None."""
        self._options: dict[str, Any] = {"pooling": pooling, "keep_features": keep_features, "memory_mb": memory_mb}
        super().__init__({_PROBE: FeatureEvolution(layers=self.layer_names, samples=None, **self._options)}, run)
        self._samples: dict[tuple[Any, ...], tuple[Any, list[Any]]] = {}
        self._epochs: list[int] = []

    def track_epoch(
        self, loader: Any, epoch: int, sample_limit: int | None = 500
    ) -> dict[str, dict[str, float | None]]:
        """Run `model` once over the first `sample_limit` examples, and return the numbers of every layer.

        `loader` is a loader, a data set, or a list of batches. A loader is not iterated: its data set is read in order,
        and only once for the same data set and limit, so that shuffling and augmentation change nothing. Each epoch is
        tracked once. A missing number is None, with the reason in `reasons`; so is CKA with an epoch that had other
        examples. The names are those of the probe `FeatureEvolution`.
        """
        number = whole_number("epoch", epoch)
        if number in self._epochs:
            raise ValueError(f"epoch {number} has been tracked already: CKA with it would be with itself. Make a new "
                             "tracker to track it again")  # fmt: skip
        batches = self._sample(loader, sample_limit)
        check_layers(self.model, self.layer_names)
        if self.device is not None:
            self.model.to(self.device)
        self._session.open(self.model)
        self._session.set_data(self.task, holdout=batches)
        record = self._session.measure(self._session.moment("epoch", step=number, epoch=number))[_PROBE]
        self._epochs.append(number)
        numbers: dict[str, dict[str, float | None]] = {layer: {} for layer in self.layer_names}
        self.reasons = {layer: {} for layer in self.layer_names}
        for row in record.rows():
            numbers[row.scope][row.name] = row.value
            if row.value is None:
                self.reasons[row.scope][row.name] = row.status or "not measured"
        return numbers

    def analyze_evolution(self) -> dict[str, dict[str, Any]]:
        """By layer: `epochs`; `metrics`, each with `values`, `first`, `last`, `change` and `reasons` for what is None;
        `halfway_epoch`, when half of the change from its first features (1 − CKA) was made, its place in that `order`,
        whether it `changed_first`, and `how`, in words.
        """
        self._need_epochs()
        return evolution(self._session.reader, self.layer_names)

    def detect_phase_transitions(
        self, layer: str, metric: str = "silhouette_score", *, alpha: float = ALPHA, simulations: int = SIMULATIONS
    ) -> list[int]:
        """The epochs at which a number of a layer jumps out of its smooth course; often there are none.

        `learnscope.reading.jumps.jumps` says how that is decided. Learning that goes on steadily, fast or slow, has no
        transition.
        """
        return self.phase_transitions(layer, metric, alpha=alpha, simulations=simulations).epochs

    def phase_transitions(
        self, layer: str, metric: str = "silhouette_score", *, alpha: float = ALPHA, simulations: int = SIMULATIONS
    ) -> Transitions:
        """The same with its p-value, the values used, the epochs left out, and the reason if there is none."""
        self._need_epochs()
        known_name("layer", layer, self.layer_names)
        metrics = {quantity.name: quantity for quantity in Q.all()} | ALIASES
        known_name("metric", metric, metrics)
        series = course(self._session.reader, layer, metrics[metric])
        return transitions(series, alpha=alpha, simulations=simulations)

    def visualize_evolution(self, layer: str, save_dir: str | Path, method: str = "pca") -> list[Path]:
        """Draw the examples in one plane at up to six epochs, coloured by class; the paths of the figures.

        `pca` is fitted to all shown epochs together, so that they share axes and scale. `umap` needs umap-learn.
        """
        self._need_epochs()
        known_name("layer", layer, self.layer_names)
        known_name("method", method, METHODS)
        if not self._options["keep_features"]:
            raise NotAvailable("features were not kept: make the tracker with keep_features=True")
        features, left_out = self._drawable(layer)
        return plot_plane(features, layer, method, Path(save_dir), left_out)

    def plot_metrics_evolution(self, layer: str, save_dir: str | Path) -> list[Path]:
        """Draw the numbers of a layer over the epochs, with their jumps; the paths of the figures."""
        self._need_epochs()
        known_name("layer", layer, self.layer_names)
        reader = one_pass(self._session.reader)
        courses = {quantity: course(reader, layer, quantity) for quantity in Q.all()}
        changes = {quantity: transitions(courses[quantity]) for quantity in _MARKED if len(courses[quantity].finite)}
        return plot_numbers(courses, changes, layer, Path(save_dir))

    def remove_hooks(self) -> None:
        """Does nothing: `track_epoch` removes its own hooks. Tracking can continue."""

    def save(self, path: str | PathLike[str]) -> Path:
        """Write records, features and options to one file, whole or not at all; not the model."""
        options = {"layer_names": self.layer_names, "epochs": self._epochs, **self._options}
        return save_session(path, self._session, KIND, options)

    @classmethod
    def load(
        cls, path: str | PathLike[str], model: nn.Module, *, device: Any = None, task: Task | None = None,
        run: str | Path | None = None,
    ) -> FeatureEvolutionTracker:  # fmt: skip
        """The saved tracker, continued with `model`; `run` is a new folder for its records, or None."""
        options, session = load_session(path, KIND)
        if missing := [name for name in ("layer_names", "epochs") if name not in options]:
            raise SavedError(f"{path} is damaged: it does not say its {missing[0]}. Save the tracker anew")
        layers, epochs = options.pop("layer_names"), options.pop("epochs")
        tracker = cls(model, layers, device, task=task, run=run, **options)
        tracker._session.restore(session)
        tracker._epochs = epochs
        return tracker

    def close(self) -> None:
        """Finish the run, if there is one on disk."""
        self._session.close()

    def _sample(self, loader: Any, limit: int | None) -> list[Any]:
        """The first examples, cached with what they were read from: another object may get its address."""
        limit = None if limit is None else whole_number("sample_limit", limit, 1)
        source = getattr(loader, "dataset", loader)  # a new loader of the same data brings the same examples
        collate = getattr(loader, "collate_fn", None)
        key = (id(source), id(collate), limit)
        if key not in self._samples:
            self._samples[key] = (source, collate), fixed_batches(loader, self.task, examples=limit)
            while len(self._samples) > _CACHED:
                del self._samples[next(iter(self._samples))]
        return self._samples[key][1]

    def _drawable(self, layer: str) -> tuple[list[EpochFeatures], str]:
        """The epochs whose features can be drawn together, and a sentence on those left out."""
        recorded: list[EpochFeatures] = []
        for epoch in sorted(self.run.array_steps(Q.probe)):
            arrays = self.run.arrays(Q.probe, epoch)
            if f"features/{layer}" in arrays:
                recorded.append(EpochFeatures(epoch, arrays[f"features/{layer}"], arrays.get("labels")))
        finite = [epoch for epoch in recorded if np.isfinite(epoch.features).all()]
        if not finite:
            missing = self.reasons.get(layer, {}).get(Q.dimensions.name, "it has none")
            raise NotAvailable(
                f"{layer} has no features to draw at any of {len(self._epochs)} epochs: "
                + ("none of them are finite" if recorded else missing)
            )
        drawn = [epoch for epoch in finite if epoch.features.shape[1] == finite[-1].features.shape[1]]
        left_out = sorted(set(self._epochs) - {epoch.epoch for epoch in drawn})
        reason = "no features, or not finite ones, or of another width"
        return drawn, f"left out: epoch {', '.join(map(str, left_out))} ({reason})" if left_out else ""

    def _need_epochs(self) -> None:
        if not self._epochs:
            raise NotAvailable("no epoch has been tracked: call track_epoch(loader, epoch) first")
