"""What to track of an adapter while it trains, and how often."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields

from learnscope.options import explain_options, whole_number


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
        for name in ("spectral_log_frequency", "gradient_log_frequency"):
            setattr(self, name, whole_number(name, getattr(self, name), 1))
        if self.max_layers_to_track is not None:
            self.max_layers_to_track = whole_number("max_layers_to_track", self.max_layers_to_track, 1)
        for field in fields(self):
            if field.type == "bool" and not isinstance(getattr(self, field.name), bool):
                raise TypeError(f"{field.name}={getattr(self, field.name)!r}: True or False")
        if not isinstance(self.tracking_output_dir, str | os.PathLike | None):
            raise TypeError(f"tracking_output_dir={self.tracking_output_dir!r}: the path of a folder, or None")

    @property
    def enabled(self) -> bool:
        """Whether there is anything to track."""
        return self.enable_spectral_tracking or self.enable_gradient_tracking


TrackerConfig.__init__ = explain_options(TrackerConfig.__init__, "TrackerConfig")  # type: ignore[method-assign]
