"""What telemetry collects, how often, and where it goes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from learnscope.core.subject import checked_groups
from learnscope.options import explain_options, is_whole

DEFAULT_GROUPS = {"backbone": "backbone", "head": "head"}
"""The groups without `groups=`, if the model has such modules."""

TAKEN = re.compile(r"overall|group_\d+")
"""Names that telemetry uses itself: no group of the user can have one."""


@dataclass
class TelemetryConfig:
    """The options of `TrainingTelemetry`.

    >>> TelemetryConfig.from_dict({"collect_every_n": 50}).holdout_size
    50
    >>> TelemetryConfig.from_dict({"collect_every": 50})
    Traceback (most recent call last):
    TypeError: TelemetryConfig has no option 'collect_every'. Did you mean 'collect_every_n'? ...
    """

    enabled: bool = True
    """False: nothing is collected, and no file or folder is touched."""
    collect_every_n: int = 200
    """Collect at the batches whose number is a multiple of this. Collecting *less* often costs less."""
    output_dir: Path | None = None
    """Where the files go; None: `telemetry` in the working directory."""

    track_gradients: bool = True
    track_weight_delta: bool = True
    track_learning_rates: bool = True
    track_holdout_logits: bool = True
    track_batch_stats: bool = True

    holdout_size: int = 50
    """Examples of the holdout data that the model is run on, however they are batched."""

    groups: Mapping[str, str | Sequence[str]] | None = None
    """Groups of parameters by name, each a pattern or several: the name or dotted path of a module, or a path with
    `*` and `?`. None: `backbone` and `head`, where the model has such modules. A pattern given here that matches no
    parameter is an error."""
    tensorboard: bool = False
    """Also write TensorBoard events, into `tensorboard/` below the output folder."""

    def __post_init__(self) -> None:
        for name in ("collect_every_n", "holdout_size"):
            value = getattr(self, name)
            if not is_whole(value, 1):
                raise ValueError(f"{name}={value!r}: a whole number from 1")
        for option in fields(self):
            if option.type == "bool" and not isinstance(getattr(self, option.name), bool):
                raise TypeError(f"{option.name}={getattr(self, option.name)!r}: True or False")
        if self.output_dir is not None:
            if not isinstance(self.output_dir, str | Path):
                raise TypeError(f"output_dir={self.output_dir!r}: a path")
            self.output_dir = Path(self.output_dir)
        if self.groups is not None:
            self.groups = checked_groups(self.groups)
            for name in self.groups:
                if TAKEN.fullmatch(name):
                    raise ValueError(f"groups: {name!r} is what telemetry calls a number of its own; use another name")

    @classmethod
    def from_dict(cls, config_dict: Mapping[str, Any]) -> TelemetryConfig:
        """From a dictionary, such as a section of a YAML file. A key that is no option is refused by name."""
        if not isinstance(config_dict, Mapping):
            raise TypeError(f"config_dict={config_dict!r}: a mapping from options to their values")
        return cls(**config_dict)

    @classmethod
    def from_yaml(cls, path: str | Path) -> TelemetryConfig:
        """From a YAML file: its `telemetry` section, or all of it if it has none."""
        import yaml

        try:
            body = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} is not readable YAML: {error}") from error
        section = body.get("telemetry", body) if isinstance(body, Mapping) else body
        if section is None:
            section = {}
        if not isinstance(section, Mapping):
            raise TypeError(f"{path}: the telemetry section is a mapping of options, not {type(section).__name__}")
        return cls.from_dict(section)


TelemetryConfig.__init__ = explain_options(TelemetryConfig.__init__, "TelemetryConfig")  # type: ignore[method-assign]
