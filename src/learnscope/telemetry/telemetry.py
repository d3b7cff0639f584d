"""Telemetry: one call at the end of every batch."""

from __future__ import annotations

import traceback
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from torch import nn

from learnscope.core.probe import ProbeWarning
from learnscope.core.subject import GroupError
from learnscope.model.guard import guard
from learnscope.model.sharded import ShardedModelError
from learnscope.options import explain_options
from learnscope.run import Run, open_run
from learnscope.session.ranks import is_silent
from learnscope.store.backend import RunError
from learnscope.task import Task
from learnscope.telemetry.config import TelemetryConfig
from learnscope.telemetry.folder import CHECKPOINT, LINES
from learnscope.telemetry.helpers import HELPERS, ORDER, SectionHelpers
from learnscope.telemetry.lines import Line
from learnscope.telemetry.session import TelemetrySession

if TYPE_CHECKING:
    import pandas as pd


class TrainingTelemetry(SectionHelpers):
    """Collects gradient norms, weight deltas, learning rates, holdout logits and batch statistics as training goes.

    Every collection is a line of `telemetry.jsonl`; the folder is a run folder too, for `learnscope report`, `compare`
    and `query`. If it already holds records, `<name>-2` is written instead, with a warning. Whatever fails here, the
    training goes on; only a group in the configuration that matches no parameter, and a model that is spread over
    processes, are errors. Of several ranks, rank 0 collects.

    A method `_compute_<name>(self, model)` of a subclass adds what it returns to every line, as `<name>`. The helpers
    of the five sections (`_compute_gradient_norm`, `_compute_weight_delta`, `_get_learning_rates`, `_eval_holdout`,
    `_compute_batch_stats`) may be overridden: what they return stands in the line, and `super()` measures as usual.
    """

    @partial(explain_options, owner="TrainingTelemetry")
    def __init__(
        self,
        config: TelemetryConfig | None = None,
        *,
        resume: bool = False,
        task: Task | None = None,
        strict: bool = False,
    ) -> None:
        """Make the folder.

        Args:
            config: what to collect, how often, and where it goes.
            resume: continue the telemetry in the folder, if there is any, with its count of steps. From an older
                checkpoint, pass its step with the first `on_batch_end(..., global_step=…)`.
            task: how a batch becomes logits and targets, where the defaults do not recognise it.
            strict: raise when something fails, instead of warning and going on.
        """
        if config is not None and not isinstance(config, TelemetryConfig):
            raise TypeError(f"config is a {type(config).__name__}: pass a TelemetryConfig (TelemetryConfig.from_dict)")
        self.config = replace(config) if config is not None else TelemetryConfig()  # a copy, checked again
        self.output_dir = Path(self.config.output_dir or "telemetry").absolute()  # wherever the process goes
        self.holdout_data: Any = None
        self.global_step = 0
        """Batches seen so far, those before a resume included."""
        self._strict = strict
        self._epoch: int | None = None
        self._epoch_batches, self._epoch_collected = 0, False
        self._warned: set[str] = set()
        self._session: TelemetrySession | None = None
        """None when telemetry is switched off or closed."""
        if self.config.enabled and not is_silent(self.output_dir):  # of several ranks, rank 0 collects
            self._open(task, resume)

    @property
    def metrics_file(self) -> Path:
        return self.output_dir / LINES

    @property
    def checkpoint_file(self) -> Path:
        return self.output_dir / CHECKPOINT

    @property
    def run(self) -> Run:
        """What was recorded so far, for findings and reports."""
        return open_run(self.output_dir)

    def set_holdout_data(self, holdout_data: Any) -> None:
        """Set the examples whose predictions are recorded: batches, a data set or a loader; `holdout_size` are used."""
        self.holdout_data = holdout_data
        if self._session is not None and self._session.begun and self.config.track_holdout_logits:
            self._safely(partial(self._session.set_holdout, holdout_data, later=self._is_overridden("holdout_logits")))

    def on_batch_end(
        self,
        model: nn.Module,
        optimizer: Any,
        batch_idx: int,
        epoch: int,
        device: Any = None,
        batch: Any = None,
        *,
        global_step: int | None = None,
        **logged: Any,
    ) -> None:
        """Call it after `optimizer.step()` for every batch, before gradients are cleared.

        Args:
            model: the model being trained.
            optimizer: its optimizer, or several.
            batch_idx: number of the batch in its epoch; it is collected at multiples of `collect_every_n`.
            epoch: number of the epoch.
            device: not needed: holdout batches go where the model is.
            batch: the batch, for its statistics.
            global_step: number of the batch in the whole training, if it is not the number of calls so far.
            logged: numbers of your own, such as `loss=loss`, that go into the line and the records.
        """
        if self._session is not None:
            self._safely(lambda: self._count(global_step))
            place = {"batch_idx": batch_idx, "epoch": epoch}
            self._safely(lambda: self._batch(model, optimizer, place, device, batch, logged))

    def to_dataframe(self, *, logits: bool = False) -> pd.DataFrame:
        """All collections as rows, with a column for each number; with `logits`, also the arrays of the holdout."""
        from learnscope.store.telemetry import read_telemetry

        return read_telemetry(self.metrics_file, logits=logits, superseded=False)

    def plot(self, folder: str | Path | None = None) -> list[Path]:
        """Draw a picture of every metric, by default in `plots/` below the output folder; returns the files."""
        from learnscope.report.telemetry.figures import plot_telemetry
        from learnscope.store.telemetry import read_telemetry

        target = self.output_dir / "plots" if folder is None else Path(folder)
        return plot_telemetry(read_telemetry(self.metrics_file, logits=True), target)

    def close(self, status: str = "finished") -> None:
        """Finish the files. Closing twice does nothing; a process that ends closes as well."""
        session, self._session = self._session, None
        if session is not None:
            if status == "finished":  # an epoch that was broken off says nothing about the others
                self._check_epoch()
            self._safely(partial(session.close, status))
            self._at_exit.detach()

    def __enter__(self) -> TrainingTelemetry:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close("finished" if kind is None else f"interrupted by {kind.__name__}: {error}")

    # the way of a batch

    def _count(self, given: int | None) -> None:
        session = self._session
        assert session is not None
        # the first batch of a run may be called 0; the first after a resume may lie before the last that was written,
        # if training goes on from an older checkpoint: what was written from there on is then superseded
        first = not session.begun and (session.resumed or not self.global_step)
        if given is not None and given <= self.global_step and not (first and given >= 0):
            self._warn("order", f"global_step={given} after {self.global_step}: steps go up; it was counted instead")
            given = None
        self.global_step = session.step = self.global_step + 1 if given is None else int(given)

    def _batch(
        self, model: nn.Module, optimizer: Any, place: dict[str, int], device: Any, batch: Any,
        logged: Mapping[str, Any],
    ) -> None:  # fmt: skip
        session = self._session
        assert session is not None
        place = {name: int(number) for name, number in place.items()}
        due = place["batch_idx"] % self.config.collect_every_n == 0
        if place["epoch"] != self._epoch:
            self._check_epoch()
            # an epoch taken up in the middle, after a resume, says nothing about the others
            self._epoch_collected = self._epoch is None and place["batch_idx"] > 1
            self._epoch, self._epoch_batches = place["epoch"], 0
        self._epoch_batches += 1
        self._epoch_collected |= due
        if not session.begun:
            try:
                session.begin(model, optimizer)
            except (OSError, RunError, ShardedModelError) as error:
                self._session = None
                session.abandon()
                if isinstance(error, ShardedModelError):
                    raise
                self._switch_off(error)
                return
            if self.holdout_data is not None and self.config.track_holdout_logits:
                self.set_holdout_data(self.holdout_data)
            if not due:
                session.keep_first_weights()
        if due:
            line = session.begin_line(model, optimizer, place, batch, logged)
            session.measure(name for name in session.sections if name not in HELPERS or not self._is_overridden(name))
            self._call_helpers(line, model, {
                "gradient_norm": (model,), "weight_delta": (model,), "learning_rates": (optimizer,),
                "holdout_logits": (model, device), "batch_stats": (batch,),
            })  # fmt: skip
            self._add_own(line, model)
            line.ordered(ORDER)
            session.write(line)

    def _check_epoch(self) -> None:
        """Warn once if an epoch has ended in which nothing was due."""
        if self._epoch is not None and not self._epoch_collected:
            self._warn(
                "short epoch",
                f"epoch {self._epoch} had {self._epoch_batches} batches, fewer than "
                f"collect_every_n={self.config.collect_every_n}: nothing was collected in it. Use a smaller "
                "collect_every_n.",
            )

    def _call_helpers(self, line: Line, model: nn.Module, arguments: Mapping[str, tuple[Any, ...]]) -> None:
        """The documented helper of each section that is switched on; what an override returns replaces ours."""
        assert self._session is not None
        for section in (name for name in HELPERS if name in self._session.switched_on):
            helper = getattr(self, HELPERS[section])
            given = self.holdout_data if section == "holdout_logits" else arguments[section][0]
            if self._is_overridden(section) and given is not None:
                with self._reported(line, section, HELPERS[section]), guard(model):
                    line.replace(section, helper(*arguments[section]))
            elif section in self._session.sections:
                helper(*arguments[section])

    def _add_own(self, line: Line, model: nn.Module) -> None:
        # looked up by name: reading every attribute would run properties, which may fail
        for method in (name for name in dir(type(self)) if name.startswith("_compute_")):
            section = method.removeprefix("_compute_")
            if not callable(getattr(type(self), method)) or method in HELPERS.values():
                continue
            with self._reported(line, section, method), guard(model):
                line.add_own(section, getattr(self, method)(model))

    @contextmanager
    def _reported(self, line: Line, section: str, method: str) -> Iterator[None]:
        """For code of a subclass: its failure is the section's reason and a warning, and is not passed on."""
        try:
            yield
        except Exception as error:
            if self._strict:
                raise
            line.add_failure(section, f"{type(error).__name__}: {error}")
            self._warn(method, f"{method} failed; training goes on:\n{traceback.format_exc()}")

    # files

    def _open(self, task: Task | None, resume: bool) -> None:
        """Claim a folder; if that fails, warn once and collect nothing."""
        wanted = self.output_dir
        try:
            session = TelemetrySession(self.config, wanted, task=task, strict=self._strict, resume=resume)
        except OSError as error:
            self._switch_off(error)
            return
        self._session, self.output_dir, self.global_step = session, session.path, session.step
        # loops seldom close it: when it is forgotten, or the process ends, its files are finished all the same
        self._at_exit = weakref.finalize(self, session.close_forgotten)
        if self.output_dir != wanted:
            self._warn(
                "folder",
                f"{wanted} already holds telemetry, or is being written: this goes to {self.output_dir}. "
                "To go on with the earlier one, TrainingTelemetry(config, resume=True).",
            )

    def _switch_off(self, error: OSError | RunError) -> None:
        if self._strict:
            raise error
        self._warn("folder", f"telemetry cannot be written and is switched off, training goes on: {error}")

    def _safely(self, action: Callable[[], object]) -> None:
        try:
            action()
        except (GroupError, ShardedModelError):
            raise
        except Exception as error:  # whatever it is, it is ours and not the training's: reported, not passed on
            if self._strict:
                raise
            self._warn(
                f"failure {type(error).__name__}", f"telemetry failed, training goes on:\n{traceback.format_exc()}"
            )

    def _warn(self, key: str, message: str) -> None:
        if key not in self._warned:
            self._warned.add(key)
            warnings.warn(message, ProbeWarning, stacklevel=5)
