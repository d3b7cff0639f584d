"""A watched training's spectra and gradients as the trackers' files: probes to watch with, and the files to write."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from torch import nn

from learnscope.core.moment import NotAvailable
from learnscope.core.probe import Probe
from learnscope.record import Record
from learnscope.report.features.evolution import file_part
from learnscope.run import Run
from learnscope.trackers.config import TrackerConfig
from learnscope.trackers.gradient_flow import GradientFlowTracker, gradient_probes
from learnscope.trackers.naming import named_adapters
from learnscope.trackers.spectral import SpectralTracker, spectral_probes
from learnscope.trackers.tracker import Options, Tracker


def probes_for(config: TrackerConfig, model: nn.Module | None = None) -> list[Probe]:
    """What to give `ls.watch` so that `write_logs` has something to write.

    With `track_adapter_only=False` the model tells whether it trains matrices outside its adapters. Without it they are
    measured, and a session refuses a model that has none.
    """
    names = ("track_adapter_only", "compute_full_svd", "max_layers_to_track")
    options = {name: getattr(config, name) for name in names}
    probes: list[Probe] = []
    if config.enable_spectral_tracking:
        probes += spectral_probes(Options(log_frequency=config.spectral_log_frequency, **options), model)
    if config.enable_gradient_tracking:
        probes += gradient_probes(Options(log_frequency=config.gradient_log_frequency, **options))
    return probes


def _enabled(config: TrackerConfig) -> list[type[Tracker]]:
    spectral: list[type[Tracker]] = [SpectralTracker] if config.enable_spectral_tracking else []
    return [*spectral, *([GradientFlowTracker] if config.enable_gradient_tracking else [])]


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

    Only what is enabled is written. The final files also hold the whole history, which is small. If nothing has been
    measured yet there are no figures, and the summary says so. Files of an earlier call are replaced.
    """
    folder, written = Path(output_dir), list[Path]()
    # all before a file is written: a run may have been watched for one of them only
    for tracker in [kind.from_run(run) for kind in _enabled(config)]:
        path = tracker.save(folder / tracker.folder / tracker.file)
        final = tracker.save(folder / f"{path.stem}_final.pt", summary=False)
        written += [path, path.with_name(f"{path.stem}_summary.json"), final]
        several = len(named_adapters(tracker.modules)) > 1
        adapters: list[str | None] = list(tracker.modules) if several else [None]  # a single one needs no name
        for adapter in adapters if plots and tracker.modules else []:
            for name, draw in tracker.default_figures(adapter).items():
                ending = "" if adapter is None else f"_{file_part(adapter)}"
                with suppress(NotAvailable):  # such as LoRA-FA's A, which is frozen; the summary says why
                    draw(save_path=(picture := path.with_name(f"{name}{ending}.png")))
                    written.append(picture)
    return written


class CheckpointFiles:
    """A sink of a watched run that writes the trackers' files beside checkpoints, reading every record once."""

    direct: ClassVar[bool] = True
    """`save` is called by the loop, and writes what was recorded before."""

    def __init__(self, config: TrackerConfig) -> None:
        self._kinds = _enabled(config)
        self._trackers: list[Tracker] | None = None
        self._new: list[Record] = []

    def write(self, record: Record) -> None:
        if self._trackers is not None and any(kind.reads(record) for kind in self._kinds):
            self._new.append(record)

    def close(self) -> None:
        """There is nothing to close."""

    def save(self, run: Run, checkpoint: Path) -> None:
        """Write what the run has recorded so far."""
        if self._trackers is None:  # the run may have records from before this process
            self._trackers = [kind.from_run(run) for kind in self._kinds]
        for tracker in self._trackers:
            tracker.take(self._new, run)
            tracker.save(checkpoint / tracker.file, summary=False)
        self._new.clear()
