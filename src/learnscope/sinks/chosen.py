"""The sinks for what a trainer already reports to, by name or by the object that is open."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from learnscope.options import did_you_mean
from learnscope.record import ProbeWarning
from learnscope.sinks.base import Sink
from learnscope.sinks.console import ConsoleSink
from learnscope.sinks.mlflow import MLflowSink
from learnscope.sinks.prometheus import PrometheusSink
from learnscope.sinks.tensorboard import TensorBoardSink
from learnscope.sinks.trackio import TrackioSink
from learnscope.sinks.wandb import WandbSink

WITHOUT_A_SINK = (
    "azure_ml", "clearml", "codecarbon", "comet_ml", "dagshub", "dvclive", "flyte", "neptune", "swanlab", "csv"
)  # fmt: skip
"""What trainers report to besides; learnscope has no sink for these."""
_NAMES = ("wandb", "tensorboard", "mlflow", "trackio", "prometheus", "console")


def sinks_for(report_to: Any, *, folder: str | os.PathLike[str] | None = None) -> list[Sink]:
    """Sinks for names such as `"wandb"`, for trackers that are open, or for several of both.

    A name takes the run that is active (`wandb.run`, `mlflow.active_run()`), or opens one. A tracker that is open, such
    as a run of wandb, MLflow or Trackio, a `SummaryWriter`, or a logger of Lightning around one, is written to and not
    closed. For trackers that learnscope has no sink for there is a warning: the numbers are in the run folder.

    Args:
        report_to: a name (wandb, tensorboard, mlflow, trackio, prometheus, console), an object, several, or None.
        folder: where TensorBoard's event files and Prometheus' file go, for these names.

    >>> [type(sink).__name__ for sink in sinks_for(["console"])]
    ['ConsoleSink']
    >>> sinks_for("none")
    []
    """
    if report_to is None or report_to is False:
        return []
    several = [report_to] if isinstance(report_to, str) or not isinstance(report_to, Iterable) else list(report_to)
    found = [_by_name(each, folder) if isinstance(each, str) else _by_object(each) for each in several]
    return [sink for sink in found if sink is not None]


def _by_name(name: str, folder: str | os.PathLike[str] | None) -> Sink | None:
    if name == "none":
        return None
    if name in WITHOUT_A_SINK:
        _warn_without(name)
        return None
    if name not in _NAMES:
        raise ValueError(
            f"report_to={name!r}: there is no sink of that name.{did_you_mean(name, _NAMES)} There are "
            f"{', '.join(_NAMES)}"
        )
    if name in ("tensorboard", "prometheus") and folder is None:
        raise ValueError(f"report_to={name!r} needs the folder to write to: sinks_for({name!r}, folder=…)")
    made: Mapping[str, Callable[[], Sink]] = {
        "wandb": WandbSink,
        "mlflow": MLflowSink,
        "trackio": TrackioSink,
        "tensorboard": lambda: TensorBoardSink(Path(folder or ".") / "tensorboard"),
        "prometheus": lambda: PrometheusSink(Path(folder or ".") / "learnscope.prom"),
        "console": ConsoleSink,
    }
    return made[name]()


def _by_object(tracker: Any) -> Sink | None:
    """By the class's name and package, so that nothing is imported that is not there."""
    if callable(getattr(tracker, "write", None)) and callable(getattr(tracker, "close", None)):
        sink: Sink = tracker
        return sink
    package, kind = type(tracker).__module__.partition(".")[0], type(tracker).__name__
    if kind == "WandbLogger":
        return WandbSink(run=tracker.experiment)
    if kind == "MLFlowLogger":
        return MLflowSink(run=tracker.run_id, tracking_uri=tracker._tracking_uri)
    if kind == "TensorBoardLogger":
        return TensorBoardSink(writer=tracker.experiment)
    if kind == "SummaryWriter":
        return TensorBoardSink(writer=tracker)
    of_packages: Mapping[str, Callable[..., Sink]] = {"wandb": WandbSink, "mlflow": MLflowSink, "trackio": TrackioSink}
    if package in of_packages:
        return of_packages[package](run=tracker)
    _warn_without(f"{type(tracker).__module__}.{kind}")
    return None


def _warn_without(name: str) -> None:
    warnings.warn(
        f"learnscope has no sink for {name}: its numbers are in the run folder alone", ProbeWarning, stacklevel=4
    )
