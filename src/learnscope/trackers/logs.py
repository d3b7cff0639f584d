"""A watched training's spectra and gradients as the trackers' files: probes to watch with, and the files to write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from torch import nn

from learnscope.core.moment import NotAvailable
from learnscope.core.probe import Probe
from learnscope.model.adapters.parameters import NO_FAMILY
from learnscope.record import Record
from learnscope.report.features.evolution import file_part
from learnscope.run import Run
from learnscope.trackers.config import TrackerConfig
from learnscope.trackers.gradient_flow import GradientFlowTracker, gradient_probes
from learnscope.trackers.naming import LETTERS
from learnscope.trackers.spectral import SpectralTracker, spectral_probes
from learnscope.trackers.tracker import Options, Tracker

SPECTRAL, GRADIENT = "spectral_logs", "gradient_logs"


def probes_for(config: TrackerConfig, model: nn.Module | None = None) -> list[Probe]:
    """What to give `ls.watch` so that `write_logs` has something to write.

    The model tells, with `track_adapter_only=False`, whether there are trained matrices outside its adapters to look
    at. Where it is not given they are looked for, and a session refuses a model that has none.
    """

    def options(often: int) -> Options:
        return Options(
            log_frequency=often,
            track_adapter_only=config.track_adapter_only,
            compute_full_svd=config.compute_full_svd,
            max_layers_to_track=config.max_layers_to_track,
        )

    probes: list[Probe] = []
    if config.enable_spectral_tracking:
        probes += spectral_probes(options(config.spectral_log_frequency), model)
    if config.enable_gradient_tracking:
        probes += gradient_probes(options(config.gradient_log_frequency))
    return probes


def write_logs(
    run: Run | str | Path, output_dir: str | Path, config: TrackerConfig, *, plots: bool = True
) -> list[Path]:
    """The files of both trackers from a run that was watched with `probes_for(config)`; the paths of all of them.

    ```
    output_dir/
      spectral_logs/   spectral_history.pt, spectral_history_summary.json, and figures
      gradient_logs/   gradient_flow.pt, gradient_flow_summary.json, gradient_heatmap_<component>.png,
                       gradient_layer_comparison.png
      spectral_history_final.pt, gradient_flow_final.pt
    ```

    Only of what is enabled. The final files hold the whole history as well, which is small. Where nothing has been
    measured yet there are no figures, and the summary says so. Files of an earlier call are replaced.
    """
    folder, written = Path(output_dir), list[Path]()
    # both before a file is written: a run may have been watched for one of them only
    spectral = SpectralTracker.from_run(run) if config.enable_spectral_tracking else None
    gradients = GradientFlowTracker.from_run(run) if config.enable_gradient_tracking else None
    if spectral is not None:
        written += _files(spectral, folder / SPECTRAL / "spectral_history.pt", folder / "spectral_history_final.pt")
        written += _spectral_figures(spectral, folder / SPECTRAL) if plots else []
    if gradients is not None:
        written += _files(gradients, folder / GRADIENT / "gradient_flow.pt", folder / "gradient_flow_final.pt")
        written += _gradient_figures(gradients, folder / GRADIENT) if plots else []
    return written


class CheckpointFiles:
    """A sink of a watched run, for the trackers' files beside its checkpoints: every record is read once."""

    def __init__(self, config: TrackerConfig) -> None:
        self._kinds: list[type[Tracker]] = [
            *([SpectralTracker] if config.enable_spectral_tracking else []),
            *([GradientFlowTracker] if config.enable_gradient_tracking else []),
        ]
        self._trackers: list[Tracker] | None = None
        self._new: list[Record] = []

    def write(self, record: Record) -> None:
        if self._trackers is not None and any(kind.reads(record) for kind in self._kinds):
            self._new.append(record)

    def close(self) -> None:
        """Nothing is held open."""

    def save(self, run: Run, checkpoint: Path) -> None:
        """Write what the run has recorded so far."""
        if self._trackers is None:  # what was recorded before this process as well
            self._trackers = [kind.from_run(run) for kind in self._kinds]
        for tracker in self._trackers:
            tracker.take(self._new, run)
            tracker.save(checkpoint / tracker.file, summary=False)
        self._new.clear()


def _files(tracker: SpectralTracker | GradientFlowTracker, path: Path, final: Path) -> list[Path]:
    saved = tracker.save(path)
    tracker.save(final, summary=False)
    return [saved, saved.with_name(f"{saved.stem}_summary.json"), final]


def _spectral_figures(tracker: SpectralTracker, folder: Path) -> list[Path]:
    """Effective ranks over the steps, and the spectra at the end; none of families that add no matrix."""
    written: list[Path] = []
    for adapter, ending in _adapters(tracker.modules):
        ranks, spectra = (
            folder / f"{name}{ending}.png" for name in ("effective_rank_heatmap", "singular_values_final")
        )
        with suppress(NotAvailable):  # the summary says why
            tracker.create_heatmap("effective_rank", ranks, adapter=adapter)
            written.append(ranks)
        with suppress(NotAvailable):
            tracker.create_spectrum_plot(spectra, adapter=adapter)
            written.append(spectra)
    return written


def _gradient_figures(tracker: GradientFlowTracker, folder: Path) -> list[Path]:
    """A heatmap for each part that the family has, and the layers compared, a panel a part."""
    written: list[Path] = []
    letters = {name: letter for letter, name in LETTERS.items()}
    for adapter, ending in _adapters(tracker.modules):
        for component in tracker.components(adapter=adapter):
            path = folder / f"gradient_heatmap_{file_part(letters.get(component, component))}{ending}.png"
            with suppress(NotAvailable):  # LoRA-FA's A is frozen
                tracker.create_heatmap(component, path, adapter=adapter)
                written.append(path)
        path = folder / f"gradient_layer_comparison{ending}.png"
        tracker.create_layer_comparison_plot(None, None, path, adapter=adapter)
        written.append(path)
    return written


def _adapters(modules: Mapping[str, Sequence[str]]) -> list[tuple[str | None, str]]:
    """Which adapters have figures of their own, and how the names of those end: a single one needs no name."""
    named = [adapter for adapter in modules if adapter != NO_FAMILY]
    if len(named) > 1:
        return [(adapter, f"_{file_part(adapter)}") for adapter in modules]
    return [(None, "")] if modules else []
