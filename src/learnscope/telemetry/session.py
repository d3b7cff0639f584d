"""A folder under telemetry and its model: a batch in, records and a line out."""

from __future__ import annotations

import json
import os
import sys
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from torch import nn

from learnscope.core.gradients import current_gradients
from learnscope.core.handed import HandedOver
from learnscope.core.moment import Moment, NotAvailable
from learnscope.core.probe import Probe
from learnscope.model.data import fixed_batches
from learnscope.model.outputs.trial import try_task
from learnscope.names import match_parameters
from learnscope.probes.gradients.gradient_flow import GradientFlow
from learnscope.probes.outputs.batch_stats import BatchStats
from learnscope.probes.outputs.holdout import Holdout
from learnscope.probes.outputs.loss import Loss
from learnscope.probes.updates.learning_rate import LearningRate
from learnscope.probes.updates.weight_delta import WeightDelta
from learnscope.quantities import gradients, updates
from learnscope.record import Record
from learnscope.session.manual import ManualSession
from learnscope.session.steps.optimizers import unwrap_optimizer
from learnscope.store.backend import RunError
from learnscope.task import PairTask, Task, task_for
from learnscope.telemetry.config import DEFAULT_GROUPS, TelemetryConfig
from learnscope.telemetry.folder import CHECKPOINT, claim, continues, last_step, take_up
from learnscope.telemetry.lines import Line, Places, group_places

MAX_LOGITS = Holdout().max_logits
NO_GRADIENT = "no gradient: frozen, outside the loss, or cleared; call on_batch_end before zero_grad()"


@dataclass(frozen=True)
class Collecting:
    """A line that is being collected, and what its numbers are measured of."""

    line: Line
    moment: Moment
    places: Places
    sections: list[str]
    """Those that are switched on and available."""


class TelemetrySession:
    """The folder that telemetry writes, and from the first batch on the model that it follows."""

    def __init__(self, config: TelemetryConfig, wanted: Path, *, task: Task | None, strict: bool, resume: bool) -> None:
        self.resumed = resume and continues(wanted)
        backend, self.lines = take_up(wanted) if self.resumed else claim(wanted)
        self.config, self.path = config, backend.path
        self.step = last_step(backend) if self.resumed else 0
        self.task = self._holdout_task = task
        self._earlier_error = _last_error()
        self._process = os.getpid()
        self._id = str(backend.manifest().get("id")) if self.resumed else uuid.uuid4().hex
        self._session = ManualSession(_probes(config, self.path, self._id), backend, source="telemetry", strict=strict)
        self._engine, self.subject = self._session.engine, self._session.subject
        self._engine.closed_by_its_owner = True
        self._collecting: Collecting | None = None
        self._unreadable: Exception | None = None

    @property
    def begun(self) -> bool:
        return self._session.begun

    def begin(self, model: nn.Module, optimizer: Any) -> None:
        self._session.set_model(model)
        self.subject.optimizers, self.subject.task = _optimizers(optimizer), self.task
        if self.config.tensorboard:
            from learnscope.sinks.tensorboard import TensorBoardSink

            self._engine.sinks.append(TensorBoardSink(self.path / "tensorboard", everything=True))
        if self.resumed:
            self._check_model()
        self._session.begin(resume=self.resumed, step=self.step - 1 if self.resumed else 0)
        backend = self._engine.backend
        about = {"id": self._id, "config": {**asdict(self.config), "output_dir": str(self.path)}}
        backend.put_manifest(backend.manifest() | about)

    def _check_model(self) -> None:
        """Refuse to go on in a folder whose telemetry is of a model with other layers."""
        earlier: dict[str, Any] = self._engine.backend.manifest().get("model") or {}
        layers = self.subject.scopes("layer")
        sizes = {name: sum(self.subject.parameters[i].numel() for i in layers[name]) for name in layers}
        known = earlier.get("layer_parameters")
        if known is not None and known != sizes:
            differs = next(name for name in [*sizes, *known] if sizes.get(name) != known.get(name))
            raise RunError(
                f"{self.path} holds the telemetry of another model ({earlier.get('class')}, which differs in "
                f"{differs}): give this one an output_dir of its own, or resume with the model it was begun with"
            )

    @property
    def switched_on(self) -> list[str]:
        """The sections that the configuration asks for."""
        return list(self._session.bound)

    def keep_first_weights(self) -> None:
        """Keep the weights that the first weight delta compares with."""
        if "weight_delta" in self._session.bound:
            self._engine.prepare(self._session.bound["weight_delta"], self._moment(None))

    def set_holdout(self, data: Any, *, later: bool = False) -> None:
        """Evaluate on the first examples of the data, whatever their batches.

        Data that cannot be read are an error; with `later`, only when they are asked for.
        """
        model, size, self._unreadable = self.subject.model, self.config.holdout_size, None
        try:
            self.subject.holdout = None if data is None else fixed_batches(data, self.task, model=model, examples=size)
            if self.subject.holdout is not None:
                self._holdout_task = try_task(self.task, model, self.subject.holdout[0]).task
        except Exception as error:
            if not later:
                raise
            self.subject.holdout, self._unreadable = None, error

    def begin_line(
        self, model: nn.Module, optimizer: Any, place: Mapping[str, Any], batch: Any, logged: Mapping[str, Any]
    ) -> Line:
        """A line for this batch, without any section yet; `measure` and `section` fill it until it is written."""
        self.subject.model, self.subject.optimizers = model, _optimizers(optimizer)
        self.subject.refresh()
        usual = {
            name: module for name, module in DEFAULT_GROUPS.items() if match_parameters(self.subject.names, module)
        }
        self.subject.name_groups(usual if self.config.groups is None else self.config.groups)
        handed = HandedOver({name: [value] for name, value in logged.items()}, batch)
        moment = self._moment(place["epoch"], handed)
        absent = {"learning_rates": not self.subject.optimizers, "batch_stats": batch is None, "logged": not logged}
        absent["holdout_logits"] = self.subject.holdout is None
        sections = [name for name in self._session.bound if not absent.get(name)]
        line = Line({**place, "global_step": moment.step, "timestamp": datetime.now().isoformat()})
        self._collecting = Collecting(line, moment, group_places(self.subject), sections)
        return line

    @property
    def sections(self) -> list[str]:
        """What is switched on and available for the line that is being collected."""
        return [] if self._collecting is None else self._collecting.sections

    def section(self, name: str, model: nn.Module | None = None) -> Any:
        """A section of the line that is being collected, measured now if it has not been."""
        if self._collecting is None:
            raise NotAvailable(f"{name} is measured for a line: on_batch_end asks for it when one is due")
        if model is not None and model is not self.subject.model:
            raise ValueError(f"{name} is of the model that on_batch_end was given, not of {type(model).__name__}")
        if name == "holdout_logits" and self._unreadable is not None:
            raise self._unreadable
        if name not in self._collecting.line.body:
            self.measure([name] if name in self._collecting.sections else [])
        return self._collecting.line.body.get(name)

    def measure(self, sections: Iterable[str]) -> None:
        """Measure these sections, with one look at the device for all."""
        assert self._collecting is not None
        line, moment, places = self._collecting.line, self._collecting.moment, self._collecting.places
        fired = list(sections)
        for name in fired:
            # batches of the training and of the holdout may be of different kinds
            self.subject.task = self._holdout_task if name == "holdout_logits" else self.task
            self._session.fire(name, moment)
        records = self._session.take()
        for section in fired:
            record = records.get(section)
            if record is None or record.error is not None:
                line.add_failure(section, None if record is None else record.error)
            else:
                self._add(line, section, record, moment, places)

    def write(self, line: Line) -> None:
        self._collecting = None
        text = json.dumps(line.finished(), separators=(", ", ": "), allow_nan=False)
        try:
            self.lines.append(text)
        except OSError as error:
            self.lost(error)

    def lost(self, error: object) -> None:
        """Warn once that files cannot be written."""
        if self._engine.strict and isinstance(error, Exception):
            raise error
        self._engine.warn(
            "store", f"telemetry could not be written ({error}); training goes on, records are being lost"
        )

    def abandon(self) -> None:
        """Let go of a folder in which nothing was recorded, and remove it if there is nothing in it."""
        self.lines.close()
        if self.lines.path.exists() and not self.lines.path.stat().st_size:
            self.lines.path.unlink()
        if self.path.is_dir() and not any(self.path.iterdir()):
            self.path.rmdir()

    def close(self, status: str = "finished") -> None:
        try:
            self._session.close(status, last_step=self.step)
        except OSError as error:
            self.lost(error)
        finally:
            self.lines.close()

    def close_forgotten(self) -> None:
        """Close what nobody has closed, as interrupted if an error has ended the program since."""
        if os.getpid() != self._process:  # a forked child has not ended the training
            return
        error = _last_error()
        self.close("finished" if error is self._earlier_error else f"interrupted by {type(error).__name__}: {error}")

    def _add(self, line: Line, section: str, record: Record, moment: Moment, places: Places) -> None:
        everything = {"overall": ("model", "model"), **places}
        if section == "gradient_norm":
            line.add(section, record, gradients.GradientFlow.norm, everything, NO_GRADIENT)
        elif section == "weight_delta":
            line.add(section, record, updates.WeightDelta.l2, everything, "it has no floating-point parameters")
            if "span" in record.notes:
                line.body["weight_delta_since"] = record.notes["span"][0]
            if "not_written" in record.notes:
                self.lost(record.notes["not_written"])
        elif section == "learning_rates":
            line.add(section, record, updates.LearningRate.learning_rate, places, "no optimizer")
        elif section == "holdout_logits":
            line.add_holdout(record, moment.holdout, MAX_LOGITS)
        elif section == "batch_stats":
            line.add_batch(record, pairs=isinstance(self.task or task_for(moment.batch), PairTask))
        else:
            line.add_logged(record)

    def _moment(self, epoch: int | None, handed: HandedOver | None = None) -> Moment:
        return self._session.moment(
            "after_step", step=self.step, epoch=epoch, handed=handed,
            take_gradients=lambda: current_gradients(self.subject),
        )  # fmt: skip


def _probes(config: TelemetryConfig, path: Path, run: str) -> dict[str, Probe]:
    every = config.collect_every_n
    available: list[tuple[bool, str, Probe]] = [
        # the weights' norms come with the weight delta
        (config.track_gradients, "gradient_norm", GradientFlow(every=every, weights_every=0, noise_scale=False)),
        (config.track_weight_delta, "weight_delta", WeightDelta(every=every, path=str(path / CHECKPOINT), run=run)),
        (config.track_learning_rates, "learning_rates", LearningRate(every=every)),
        (config.track_holdout_logits, "holdout_logits", Holdout(every=every, keep_arrays=False)),
        (config.track_batch_stats, "batch_stats", BatchStats(every=every)),
        (True, "logged", Loss(every=every)),
    ]
    return {section: probe for enabled, section, probe in available if enabled}


def _optimizers(optimizer: Any) -> list[Any]:
    several = optimizer if isinstance(optimizer, list | tuple) else [optimizer]
    return [] if optimizer is None else [unwrap_optimizer(each) for each in several]


def _last_error() -> BaseException | None:
    """The last error that nothing caught: what ends a program, or was shown in an interactive session."""
    error: BaseException | None = getattr(sys, "last_value", None)
    return error
