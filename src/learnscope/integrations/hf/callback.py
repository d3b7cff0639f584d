"""The callback that watches a training of transformers' `Trainer` or of TRL's trainers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback
from typing_extensions import override

from learnscope.core.probe import Probe
from learnscope.integrations.hf.calls import caller_of
from learnscope.integrations.hf.opening import Opened, open_session, save_session
from learnscope.integrations.options import checked_options
from learnscope.integrations.wrapping import Around
from learnscope.model.guard import preserve_rng
from learnscope.run import Run, open_run
from learnscope.session.ending import interrupted_by
from learnscope.session.watch import Watch

LOST = (
    "LearnscopeCallback was called by no trainer that it can see: Trainer(callbacks=[LearnscopeCallback()]), or "
    "ls.watch_trainer(trainer), before trainer.train()"
)


class LearnscopeCallback(TrainerCallback):
    """Opens a session when training begins and closes it when it ends, however it ends.

    `Trainer(…, callbacks=[LearnscopeCallback()])`, or `ls.watch_trainer(trainer)`. Every `trainer.train()` is a run;
    one that goes on from a checkpoint (`resume_from_checkpoint`) goes on with the checkpoint's run.

    Args:
        run: the folder; by default `learnscope` in the trainer's `output_dir`, then `learnscope-2`, …
        probes: as for `ls.watch`; by default its default ones.
        holdout: data to evaluate on. By default 256 examples of the trainer's evaluation set, collated as the trainer
            does it; without one, as many of its training set, and the run says so. False for none.
        options: the others of `ls.watch`.
    """

    left_out: frozenset[str] = frozenset()
    """Names that the trainer logs and that are not recorded."""

    def __init__(
        self,
        run: str | Path | None = None,
        probes: Sequence[Probe] | None = None,
        *,
        holdout: Any = None,
        **options: Any,
    ) -> None:
        others = checked_options("LearnscopeCallback", options, without=["clock"])
        self.options: dict[str, Any] = {"run": run, "probes": probes, "holdout": holdout, **others}
        self.folders: list[Path] = []
        """Of the runs so far, the last one last."""
        self._opened: Opened | None = None
        self._attached: list[Any] = []

    @property
    def watch(self) -> Watch | None:
        """The session, while a training goes on."""
        return None if self._opened is None else self._opened.watch

    @property
    def run(self) -> Run:
        """The last run."""
        if not self.folders:
            raise RuntimeError("there is no run before trainer.train()")
        return open_run(self.folders[-1])

    def attach(self, trainer: Any) -> None:
        """See to it that the run is closed if `trainer.train()` ends by an error or Ctrl-C."""
        if all(known is not trainer for known in self._attached):
            Around().put(trainer, "train", self._until_it_ends)  # for as long as the trainer lives
            self._attached.append(trainer)

    def _until_it_ends(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except BaseException as error:
            self.close(interrupted_by(error))
            raise

    # the trainer's events, in their order

    @override
    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        caller = caller_of(state)
        if caller is not None:
            self.attach(caller.trainer)

    @override
    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        caller = caller_of(state)
        if caller is None:
            raise RuntimeError(LOST)
        self.close("interrupted: the trainer began again")  # as it does with a smaller batch when memory is short
        with preserve_rng():
            self._opened = open_session(caller, state, self.options, kwargs["train_dataloader"])
        if self._opened.folder is not None and self._opened.folder not in self.folders:
            self.folders.append(self._opened.folder)
        # added after the trainer was made: `train` has been called already, and what it calls next is not public
        late = all(known is not caller.trainer for known in self._attached)
        if late and hasattr(caller.trainer, "_run_epoch"):
            self._opened.steps.around.put(caller.trainer, "_run_epoch", self._until_it_ends)

    @override
    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        opened = self._opened
        if opened is None or not logs:
            return
        known = opened.recorded | self.left_out
        numbers = {name: value for name, value in logs.items() if _is_number(value) and name not in known}
        opened.watch.log(**numbers)
        if {"train_runtime", "train_loss"} <= logs.keys():
            # training is over; what `load_best_model_at_end` does to the weights afterwards is no step of it
            self.close("finished")
        with preserve_rng():  # a tracker may draw names of files
            opened.trackers.send(args, state, control)

    @override
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._opened is not None and self.options.get("stop_on"):
            control.should_training_stop |= agreed(self._opened.watch.should_stop, args)

    @override
    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # trainers also say so when they stop within an epoch
        if self._opened is not None and math.isclose(state.epoch or 0.0, round(state.epoch or 0.0)):
            self._opened.watch.end_epoch()

    @override
    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._opened is not None:
            with preserve_rng():
                save_session(self._opened, state)

    @override
    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.close("finished")

    def close(self, status: str) -> None:
        """Close the run and leave the trainer's methods as they were; a second call does nothing."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.steps.remove()
            opened.watch.close(status)


def agreed(stop: bool, args: Any) -> bool:
    """Whether any rank stops: rank 0 alone knows why, and the others would wait for it for ever."""
    if args.world_size < 2:
        return stop
    asked = torch.tensor([float(stop)], device=args.device)
    torch.distributed.all_reduce(asked, torch.distributed.ReduceOp.MAX)
    return bool(asked.item())


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
