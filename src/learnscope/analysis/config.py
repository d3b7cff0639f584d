"""What an analysis measures, how often, and where it keeps the weights in between."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from typing import Any

import numpy as np

from learnscope.analysis.primitives import THRESHOLDS
from learnscope.model.weights.snapshot import check_placement
from learnscope.options import explain_options


@dataclass
class AnalysisConfig:
    """The options of a `ModelAnalysisManager`.

    >>> AnalysisConfig(interval=50).param_change_thresholds
    [1e-08, 1e-06, 0.0001]
    >>> AnalysisConfig.from_dict({"intervall": 50})
    Traceback (most recent call last):
    TypeError: AnalysisConfig has no option 'intervall'. Did you mean 'interval'? ...
    """

    interval: int = 100
    """Measure every so many optimizer steps."""
    snapshot_device: str = "cpu"
    """Where the weights of the last measurement are kept: any torch device, or "disk"."""
    snapshot_dtype: str = "float32"
    """Their dtype: any float dtype, or "native" for each weight's own."""

    param_change_enabled: bool = True
    param_change_thresholds: list[float] = field(default_factory=lambda: list(THRESHOLDS))
    param_change_per_layer: bool = False
    param_change_track_components: bool = False

    sparse_quality_enabled: bool = True
    sparse_quality_thresholds: list[float] = field(default_factory=lambda: list(THRESHOLDS))
    sparse_quality_include_random: bool = True
    """Also measure random masks of the same sparsity: over all entries, and over those that changed."""

    gradient_enabled: bool = False
    momentum_enabled: bool = False

    sparse_quality_include_random_changed: bool = True
    """With the random baseline, also the one drawn from changed entries only."""
    low_rank_enabled: bool = False
    low_rank_ranks: list[int] = field(default_factory=lambda: [1, 2, 4, 8, 16, 32])
    activation_enabled: bool = False
    loss_landscape_enabled: bool = False

    def __post_init__(self) -> None:
        """Refuse options that cannot be measured. NumPy's numbers become Python's."""
        if isinstance(self.interval, bool) or not isinstance(self.interval, Integral) or self.interval < 1:
            raise ValueError(f"interval={self.interval!r}: a whole number of optimizer steps, from 1")
        self.interval = int(self.interval)
        check_placement(self.snapshot_device, self.snapshot_dtype)
        for name in ("param_change_thresholds", "sparse_quality_thresholds"):
            values = getattr(self, name)
            listed = values if isinstance(values, list | tuple | np.ndarray) else ()
            numbers = [float(x) for x in listed if isinstance(x, Real) and not isinstance(x, bool)]
            if not numbers or len(numbers) < len(listed) or not all(0 <= x < math.inf for x in numbers):
                raise ValueError(f"{name}={values!r}: a list of one or more numbers from 0 on")
            setattr(self, name, numbers)
        for option in fields(self):
            value = getattr(self, option.name)
            if option.type == "bool" and not isinstance(value, bool):
                raise TypeError(f"{option.name}={value!r}: True or False")

    @classmethod
    def minimal(cls) -> AnalysisConfig:
        """Parameter change only, every 1000 steps: for production runs."""
        return cls(interval=1000, sparse_quality_enabled=False)

    @classmethod
    def comprehensive(cls) -> AnalysisConfig:
        """Everything, every 50 steps, per layer and component. Curvature makes this the expensive one."""
        everything = {option.name: True for option in fields(cls) if option.type == "bool"}
        return cls.from_dict({"interval": 50, **everything})

    @classmethod
    def from_dict(cls, options: Mapping[str, Any]) -> AnalysisConfig:
        """From a dictionary, such as a section of a YAML file. A key that is no option is refused by name."""
        return cls(**options)


AnalysisConfig.__init__ = explain_options(AnalysisConfig.__init__, "AnalysisConfig")  # type: ignore[method-assign]
