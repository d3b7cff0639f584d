"""What to track of an adapter while it trains, and how often."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from typing import Any

from learnscope.options import explain_options, whole_number


def check_options(options: Any) -> None:
    """Refuse numbers of a dataclass that are not whole and positive, and switches that are not True or False."""
    for field in fields(options):
        value = getattr(options, field.name)
        if field.type == "bool" and not isinstance(value, bool):
            raise TypeError(f"{field.name}={value!r}: True or False")
        if field.type == "int" or (field.type == "int | None" and value is not None):
            object.__setattr__(options, field.name, whole_number(field.name, value, 1))  # a file takes no NumPy numbers


@dataclass(kw_only=True)
class TrackerConfig:
    """The options of the trackers; frequencies are in optimizer steps."""

    enable_spectral_tracking: bool = False
    """Spectra of the adapters' updates."""
    enable_gradient_tracking: bool = False
    """Gradient norms of the adapters' parts."""
    spectral_log_frequency: int = 100
    """Measure spectra every so many steps."""
    gradient_log_frequency: int = 100
    """Measure gradients every so many steps."""
    track_adapter_only: bool = True
    """False: all trained matrices as well, such as a head or embeddings."""
    compute_full_svd: bool = True
    """False: only the leading singular values of matrices that are no adapter's; adapters' spectra are always whole."""
    max_layers_to_track: int | None = None
    """At most so many layers, evenly spread; None: all."""
    save_with_checkpoints: bool = True
    """Also a file of each tracker beside every checkpoint."""
    tracking_output_dir: str | None = None
    """Where the trackers' files go; None: the training's output directory."""

    def __post_init__(self) -> None:
        check_options(self)
        if not isinstance(self.tracking_output_dir, str | os.PathLike | None):
            raise TypeError(f"tracking_output_dir={self.tracking_output_dir!r}: the path of a folder, or None")

    @property
    def enabled(self) -> bool:
        """Whether there is anything to track."""
        return self.enable_spectral_tracking or self.enable_gradient_tracking


TrackerConfig.__init__ = explain_options(TrackerConfig.__init__, "TrackerConfig")  # type: ignore[method-assign]
