"""Trackers of adapters (PEFT) while they train: spectra and gradients, in files that other programs read.

Each is a front door to a probe of `learnscope.watch`: `AdapterSpectrum` and `AdapterGradients`. A loop calls a
tracker itself, or a watched run is written as the trackers' files (`write_logs`).
"""

import importlib
from typing import TYPE_CHECKING, Any

from learnscope.trackers.config import TrackerConfig

if TYPE_CHECKING:
    from learnscope.trackers.gradient_flow import GradientFlowTracker
    from learnscope.trackers.logs import probes_for, write_logs
    from learnscope.trackers.spectral import SpectralTracker
    from learnscope.trackers.tracker_file import TrackerFileError

_HOME_OF = {
    "GradientFlowTracker": "gradient_flow",
    "SpectralTracker": "spectral",
    "TrackerFileError": "tracker_file",
    "probes_for": "logs",
    "write_logs": "logs",
}
"""Loaded at first use: a command line that only reads the options does not wait for torch."""

__all__ = ["GradientFlowTracker", "SpectralTracker", "TrackerConfig", "TrackerFileError", "probes_for", "write_logs"]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
