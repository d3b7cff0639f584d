"""Lightning, under either of its names: one callback opens, feeds and closes a session for every `fit`.

trainer = Trainer(callbacks=[LearnscopeCallback()])     # or, for a trainer that is there: ls.watch_trainer(trainer)
"""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from learnscope.core.probe import ProbeWarning
from learnscope.generators import unmoved_generators
from learnscope.integrations.carrying import carried_as, carry
from learnscope.integrations.headlines import SentHeadlines
from learnscope.integrations.lightning_data import Offered, examples_of, offered_holdout, wants_holdout, watched_part
from learnscope.integrations.options import checked_options
from learnscope.integrations.placing import FOLDER, Place, place
from learnscope.integrations.wrapping import harmless
from learnscope.reading.course.trainers import GIVEN, NONE
from learnscope.run import Run
from learnscope.session.ending import interrupted_by
from learnscope.session.watch import Watch, watch

if TYPE_CHECKING:
    from lightning.pytorch import Callback
else:

    def _callback_class() -> type:
        """Of the package that the program has imported; both have the same hooks."""
        names = sorted(("lightning.pytorch", "pytorch_lightning"), key=lambda name: name not in sys.modules)
        with unmoved_generators():
            for name in names:
                try:
                    return import_module(name).Callback
                except ModuleNotFoundError as error:
                    missing = error
        raise ImportError(f"LearnscopeCallback needs Lightning: pip install 'learnscope[lightning]' ({missing})")

    Callback = _callback_class()


PACKAGE = Callback.__module__.partition(".")[0]
LOGGED_LOSS = "loss (logged)"
"""What a module logs as "loss", beside the loss of the step."""


class LearnscopeCallback(Callback):
    """Records what every `trainer.fit` trains, each into a run of its own.

    The loss of each optimizer step, what the module logs with `self.log` (under its names), and whatever the probes
    measure. A few numbers of the whole model go to the trainer's own loggers.

    Args:
        run: folder for the run; by default `learnscope` in the trainer's `log_dir`. A second `fit` takes the next free
            name; one with `ckpt_path=` goes on with the run that the checkpoint is of.
        probes: what to record; by default that of `ls.watch`.
        options: those of `ls.watch`. `holdout` is by default the data set of the trainer's first validation loader, and
            without one a fixed sample of the training set; False for none. `clock` may be the number of an optimizer in
            `trainer.optimizers`. With `stop_on`, such an alert ends the training after the batch.
    """

    def __init__(self, run: str | Path | None = None, probes: Any = None, **options: Any) -> None:
        super().__init__()
        self.run_folder, self.probes = run, probes
        self.options = checked_options("LearnscopeCallback", options)
        self.w: Watch | None = None
        """The session; after `fit`, the one that it had."""
        self.is_open = False
        self._trainer: Any = None
        self._restored: dict[str, Any] | None = None
        self._kept: dict[str, Any] = {}
        self._evaluates = False
        self._seen: dict[str, Any] = {}
        """What the module has logged, as it was last seen."""
        self._losses: list[Tensor] = []
        self._of_optimizers: dict[str, list[Tensor]] = {}

    @property
    def run(self) -> Run | None:
        """The run of the last `fit`, also while it goes on; None before the first."""
        return None if self.w is None else self.w.run

    @property
    def session(self) -> Watch:
        """`w` where there is one."""
        assert self.w is not None
        return self.w

    # ---- opening and closing

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002
        self._restored = None  # what comes from a checkpoint comes after this

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        model, options, offered = watched_part(pl_module), dict(self.options), None
        where = self._place(trainer)
        if options.get("holdout") is False:
            options["holdout"] = None
        elif "holdout" not in options and wants_holdout(self.probes):
            offered = offered_holdout(trainer, model, options.get("task"), options.get("loss"))
            options["holdout"] = offered.batches
        if isinstance(options.get("clock"), int):
            options["clock"] = trainer.optimizers[options["clock"]]
        to_loggers = SentHeadlines(lambda values, step: _send(trainer, values, step), shift=_shift(trainer, where))
        options["sinks"] = [*options.get("sinks", ()), *([to_loggers] if trainer.loggers else [])]
        self.w = watch(model, trainer.optimizers or None, probes=self.probes, **options, **where.options)
        self.w.logs_follow_steps()  # a module may log before its first step
        self.is_open, self._trainer, self._evaluates = True, trainer, options.get("holdout") is not None
        self._losses, self._of_optimizers, self._kept = [], {}, {}
        self._seen = dict(trainer.logged_metrics)  # of an earlier fit
        self._tell(where, offered)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        if self.is_open:  # by now the last checkpoint has been saved
            self.state_dict()  # for one that is saved later
            self._close("finished")

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ARG002
        self._close(interrupted_by(exception))

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002
        self._close("ended before on_fit_end")

    def _close(self, status: str) -> None:
        if self.is_open:
            self.is_open, self._trainer = False, None
            self._seen, self._losses, self._of_optimizers = {}, [], {}
            self.session.close(status)

    # ---- what a step hands over

    @harmless
    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        self._take_logged(trainer)  # all of the batch before, also what hooks after ours logged

    @harmless
    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Tensor) -> None:
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        if not pl_module.automatic_optimization:
            self._losses.append(loss.detach().mean() / (1.0 if scaler is None else scaler.get_scale()))
        elif scaler is None and self._evaluates:
            self.session.learn_loss(loss * trainer.accumulate_grad_batches)  # the graph tells which loss it is

    @harmless
    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Of several optimizers, each has the losses that were computed since one of them stepped."""
        if not pl_module.automatic_optimization and len(trainer.optimizers) > 1:
            number = next((at for at, own in enumerate(trainer.optimizers) if own is optimizer), None)
            losses, self._losses = self._losses, []
            if number is not None:
                self._of_optimizers.setdefault(f"loss_{number}", []).extend(losses)

    @harmless
    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int  # noqa: ARG002
    ) -> None:  # fmt: skip
        self._hand_over(outputs, batch)
        own, self._of_optimizers = self._of_optimizers, {}
        losses, self._losses = self._losses, []
        if pl_module.automatic_optimization:
            # empty if training_step gave None: the batch was left out
            losses = [outputs["loss"] * trainer.accumulate_grad_batches] if outputs else []
        for loss in losses or ([] if own else _returned(outputs)):
            self.session.log(loss=loss)
        if means := {name: torch.stack(each).mean() for name, each in own.items() if each}:
            self.session.log(**means)
        if self.options.get("stop_on"):
            stop = trainer.strategy.reduce_boolean_decision(self.session.should_stop, all=False)
            trainer.should_stop = trainer.should_stop or stop

    def _hand_over(self, outputs: Any, batch: Any) -> None:
        """What probes need besides the loss."""
        needs = {need for probe in self.probes or () for need in probe.needs}
        if "batch" in needs:
            self.session.batch(batch)
        if "examples" in needs:
            subject = self.session._engine.subject
            examples = examples_of(outputs, batch, subject.model, subject.task)
            if isinstance(examples, str):
                self.session._engine.warn("examples", f"a probe that follows examples needs {examples}")
            else:
                self.session.examples(*examples)

    @harmless
    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        self._take_logged(trainer)

    @harmless
    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        self._take_logged(trainer)
        self.session.end_epoch()

    @harmless
    def on_train_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        self._take_logged(trainer)

    def _take_logged(self, trainer: Any) -> None:
        """Record what the module has logged since we last looked, under its own names."""
        fresh = {name: value for name, value in trainer.logged_metrics.items() if self._is_fresh(name, value)}
        self._seen |= fresh
        if fresh:
            self.session.log(**{LOGGED_LOSS if name == "loss" else name: value for name, value in fresh.items()})

    def _is_fresh(self, name: str, value: Any) -> bool:
        before = self._seen.get(name)
        return isinstance(value, Tensor) and (before is None or before.data_ptr() != value.data_ptr())

    # ---- checkpoints

    def state_dict(self) -> dict[str, Any]:
        if self.is_open:
            self._kept = {}
            self._keep()
        return self._kept

    @harmless
    def _keep(self) -> None:
        self._take_logged(self._trainer)
        self._kept = carry(self.session)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._restored = state_dict

    # ---- helpers

    def _place(self, trainer: Any) -> Place:
        inside = trainer.log_dir  # all ranks ask for it together
        default = None if trainer.fast_dev_run else Path(inside or trainer.default_root_dir) / FOLDER
        wanted = default if self.run_folder is None else Path(self.run_folder)
        taken = trainer.global_step if trainer.ckpt_path else 0
        carried = carried_as(self._restored, None if wanted is None else wanted.parent)
        return place(wanted, carried, taken, asked=self.run_folder is not None)

    def _tell(self, where: Place, offered: Offered | None) -> None:
        """Say what is missing, and in run.json what the run was made with."""
        source = GIVEN if offered is None else offered.about
        if where.missing:
            warnings.warn(where.missing, ProbeWarning, stacklevel=2)
        if offered is not None and offered.batches is None:
            source = f"{NONE}{offered.about}"
            warnings.warn(f"the model is not evaluated on held-out data: {offered.about}", UserWarning, stacklevel=2)
        several = {} if offered is None or offered.loaders == 1 else {"loader": f"the first of {offered.loaders}"}
        holdout = {"holdout": {"source": source, **several}} if offered is not None or self._evaluates else {}
        self.session.note(trainer={"class": "Trainer", PACKAGE: version(PACKAGE)}, **holdout)


def watch_lightning(trainer: Any, **options: Any) -> LearnscopeCallback:
    """Watch every `fit` of a trainer from now on, as `Trainer(callbacks=[LearnscopeCallback(…)])` does."""
    if any(isinstance(callback, LearnscopeCallback) for callback in trainer.callbacks):
        raise ValueError("this trainer has a LearnscopeCallback already: it records every fit")
    callback = LearnscopeCallback(**options)
    trainer.callbacks.insert(0, callback)  # those that save checkpoints come last
    return callback


def _returned(outputs: Any) -> list[Tensor]:
    """The loss that a manual `training_step` returned, where it did not go through `manual_backward`."""
    loss = outputs.get("loss") if isinstance(outputs, dict) else None
    return [loss.detach()] if isinstance(loss, Tensor) else []


def _send(trainer: Any, values: dict[str, float], step: int) -> None:
    for logger in trainer.loggers:
        logger.log_metrics(values, step=step)


def _shift(trainer: Any, where: Place) -> int:
    """From our steps to the trainer's axis, on which the first step is 0 and a second `fit` goes on."""
    begun = trainer.fit_loop.epoch_loop._batches_that_stepped
    return int(begun) - where.step - 1
