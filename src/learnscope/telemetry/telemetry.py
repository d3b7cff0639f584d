"""Telemetry: one call at the end of every batch."""

from __future__ import annotations

import traceback
import warnings
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from torch import nn

from learnscope.core.probe import ProbeWarning
from learnscope.core.subject import GroupError
from learnscope.model.guard import guard
from learnscope.options import explain_options
from learnscope.run import Run, open_run
from learnscope.session.opening import check_model
from learnscope.store.backend import FolderBackend
from learnscope.store.lines import LineFile
from learnscope.task import Task
from learnscope.telemetry.config import TelemetryConfig
from learnscope.telemetry.epochs import Epochs
from learnscope.telemetry.folder import CHECKPOINT, LINES, claim, last_line, take_up
from learnscope.telemetry.lines import Line
from learnscope.telemetry.session import TelemetrySession

if TYPE_CHECKING:
    import pandas as pd


class TrainingTelemetry:
    """Collects gradient norms, weight deltas, learning rates, holdout logits and batch statistics as training goes.

    Everything goes to `telemetry.jsonl`, a line a collection; the folder is a run folder too, for `learnscope report`,
    `compare` and `query`. A folder that already holds records is not written: `<name>-2` is, with a warning. Whatever
    fails here, the training goes on; only a group in the configuration that matches no parameter is an error.

    A method `_compute_<name>(self, model)` of a subclass adds what it returns to every line, as `<name>`.
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
            resume: continue the telemetry in the folder, if there is any: steps count on. From a checkpoint older
                than that, say at which with the first `on_batch_end(..., global_step=…)`.
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
        self._options: dict[str, Any] = {"task": task, "strict": strict}
        self._opened: tuple[FolderBackend, LineFile] | None = None
        self._resumed = False
        self._session: TelemetrySession | None = None
        self._at_exit: weakref.finalize[..., TrainingTelemetry] | None = None
        self._epochs = Epochs(self.config.collect_every_n, self._warn)
        self._warned: set[str] = set()
        self._closed = not self.config.enabled
        if self.config.enabled:
            self._open(resume)

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
        """The examples that predictions are followed on: batches, a data set or a loader; `holdout_size` are used."""
        self.holdout_data = holdout_data
        if self._session is not None and self.config.track_holdout_logits:
            self._safely(partial(self._session.set_holdout, holdout_data))

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
            global_step: number of the batch in all of the training, where the calls so far do not tell it.
            logged: numbers of your own, such as `loss=loss`, that go into the line and the records.
        """
        del device
        if self._closed:
            return
        self._safely(lambda: self._count(global_step))
        self._safely(lambda: self._batch(model, optimizer, int(batch_idx), int(epoch), batch, logged))

    def to_dataframe(self, *, logits: bool = False) -> pd.DataFrame:
        """All that was collected, a row a collection and a column a number; with `logits`, the holdout's arrays too."""
        from learnscope.store.telemetry import read_telemetry

        return read_telemetry(self.metrics_file, logits=logits, superseded=False)

    def plot(self, folder: str | Path | None = None) -> list[Path]:
        """A picture of every metric, by default in `plots/` below the output folder; the files."""
        from learnscope.report.telemetry.figures import plot_telemetry
        from learnscope.store.telemetry import read_telemetry

        target = self.output_dir / "plots" if folder is None else Path(folder)
        return plot_telemetry(read_telemetry(self.metrics_file, logits=True), target)

    def close(self, status: str = "finished") -> None:
        """Finish the files. Closing twice does nothing; a process that ends closes as well."""
        if self._closed:
            return
        self._closed = True
        if status == "finished":  # an epoch that was broken off says nothing about the others
            self._epochs.end()
        if self._session is not None:
            self._safely(partial(self._session.close, status))
            if self._at_exit is not None:
                self._at_exit.detach()
        elif self._at_exit is not None:
            self._safely(self._at_exit)

    def __enter__(self) -> TrainingTelemetry:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close("finished" if kind is None else f"interrupted by {kind.__name__}: {error}")

    # the way of a batch

    def _batch(
        self, model: nn.Module, optimizer: Any, batch_idx: int, epoch: int, batch: Any, logged: Mapping[str, Any]
    ) -> None:
        due = batch_idx % self.config.collect_every_n == 0
        self._epochs.saw(epoch, batch_idx, due)
        if self._session is None:
            self._begin(model, optimizer)
            if self._session is None:
                return
            self._session.step = self.global_step
            if not due:
                self._session.keep_first_weights()
        self._session.step = self.global_step
        if due:
            place = {"batch_idx": batch_idx, "epoch": epoch}
            line = self._session.collect(model, optimizer, place, batch, logged)
            self._add_own(line, model)
            self._session.write(line)

    def _count(self, given: int | None) -> None:
        # the first batch of a run may be called 0; the first after a resume may lie before the last that was written,
        # if training goes on from an older checkpoint: what was written from there on is then superseded
        first = self._session is None and (self._resumed or not self.global_step)
        if given is not None and given <= self.global_step and not (first and given >= 0):
            self._warn("order", f"global_step={given} after {self.global_step}: steps go up; it was counted instead")
            given = None
        self.global_step = self.global_step + 1 if given is None else int(given)

    def _begin(self, model: nn.Module, optimizer: Any) -> None:
        """Look at this model from now on."""
        check_model(model)
        assert self._opened is not None
        backend, lines = self._opened
        step = self.global_step - 1 if self._resumed else 0
        try:
            self._session = TelemetrySession(
                model, optimizer, self.config, self.output_dir, backend, lines,
                **self._options, resume=self._resumed, step=step,
            )  # fmt: skip
        except OSError as error:
            self._give_up(error)
            return
        if self.holdout_data is not None and self.config.track_holdout_logits:
            self._safely(partial(self._session.set_holdout, self.holdout_data))
        # loops seldom close it: when it is forgotten, or the process ends, its files are finished all the same
        self._at_exit_do(self._session.close_forgotten)

    def _add_own(self, line: Line, model: nn.Module) -> None:
        """What methods `_compute_<name>` of a subclass return."""
        for method, compute in self._own_metrics().items():
            try:
                with guard(model):
                    line.add_own(method.removeprefix("_compute_"), compute(model))
            except Exception as error:  # foreign code: its failure is reported, not passed on
                if self._options["strict"]:
                    raise
                line.body[method.removeprefix("_compute_")] = None
                line.status[method.removeprefix("_compute_")] = f"{type(error).__name__}: {error}"
                self._warn(method, f"{method} failed; training goes on:\n{traceback.format_exc()}")

    def _own_metrics(self) -> dict[str, Callable[[nn.Module], Any]]:
        # looked up by name: reading every attribute would run properties, which may fail
        names = [name for name in dir(type(self)) if name.startswith("_compute_")]
        return {name: getattr(self, name) for name in names if callable(getattr(type(self), name))}

    # files

    def _open(self, resume: bool) -> None:
        """Claim a folder; without one, say so once and collect nothing."""
        wanted = self.output_dir
        try:
            if resume and (wanted / "run.json").exists():
                self._opened = take_up(wanted)
                self._at_exit_do(self._opened[1].close)
                self._resumed = True
                self.global_step = self._last_step(self._opened[0])
                return
            self.output_dir, lines = claim(wanted)
            self._at_exit_do(lines.close)  # also of what never sees a batch: its lock would outlive it
            self._opened = FolderBackend.create(self.output_dir), lines
        except OSError as error:
            self._give_up(error)
            return
        if self.output_dir != wanted:
            self._warn(
                "folder",
                f"{wanted} already holds telemetry, or is being written: this goes to {self.output_dir}. "
                "To go on with the earlier one, TrainingTelemetry(config, resume=True).",
            )

    def _last_step(self, backend: FolderBackend) -> int:
        line = last_line(self.metrics_file)
        ended = (backend.manifest().get("attempts") or [{}])[-1].get("last_step")
        return max(int(line["global_step"]) if line else 0, int(ended or 0))

    def _give_up(self, error: OSError) -> None:
        if self._options["strict"]:
            raise error
        self._closed = True
        if self._at_exit is not None:
            self._safely(self._at_exit)
        self._warn("folder", f"telemetry cannot be written and is switched off, training goes on: {error}")

    def _at_exit_do(self, action: Callable[[], object]) -> None:
        """When this object is forgotten, or the process ends; in place of what was to be done so far."""
        if self._at_exit is not None:
            self._at_exit.detach()
        self._at_exit = weakref.finalize(self, action)

    def _safely(self, action: Callable[[], object]) -> None:
        try:
            action()
        except GroupError:
            raise
        except Exception as error:  # whatever it is, it is ours and not the training's: reported, not passed on
            if self._options["strict"]:
                raise
            self._warn(
                f"failure {type(error).__name__}", f"telemetry failed, training goes on:\n{traceback.format_exc()}"
            )

    def _warn(self, key: str, message: str) -> None:
        """Say something once."""
        if key not in self._warned:
            self._warned.add(key)
            warnings.warn(message, ProbeWarning, stacklevel=5)
