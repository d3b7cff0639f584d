"""The callback that watches a training: records, the trackers' files at checkpoints, and an end in any case."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import TrainerCallback
from typing_extensions import override

import learnscope as ls
from learnscope.trackers import TrackerConfig, probes_for, write_logs
from learnscope.trackers.logs import CheckpointFiles
from learnscope.training.errors import TrainError, first_line

_NOT_RECORDED = {"learning_rate", "epoch", "num_tokens", "step_time", "total_flos"}
"""Logged by trainers, but recorded by a probe already, or not about learning."""


class TrackingCallback(TrainerCallback):
    """Opens a session when training begins, and closes it when it ends, however it ends."""

    def __init__(
        self, folder: Path, logs: Path, config: TrackerConfig, holdout: Any, *, resume: bool, say: Callable[[str], None]
    ) -> None:
        self.folder, self.logs, self.config = folder, logs, config
        self.watch: ls.Watch | None = None
        self.failure: Exception | None = None
        self.written: list[Path] = []
        self._holdout, self._resume, self._say = holdout, resume, say
        self._files = CheckpointFiles(config)

    @override
    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Open the session, or refuse before the first step what cannot be watched."""
        model, optimizer, every = kwargs["model"], kwargs["optimizer"], int(args.logging_steps)
        probes = probes_for(self.config, model)
        if self._holdout is not None and self.config.enable_spectral_tracking:
            probes.append(ls.AdapterTruncation())  # once, when training has ended
        try:
            self.watch = ls.watch(
                model, optimizer, run=self.folder, probes=[*probes, ls.Loss(), ls.LearningRate(every=every)],
                holdout=self._holdout, resume=self._resume, step=state.global_step if self._resume else None,
                sinks=[self._files],
            )  # fmt: skip
        except (ValueError, TypeError, ls.RunError) as error:
            raise TrainError(f"this training cannot be tracked: {error}") from error

    @override
    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if logs is None or "train_runtime" in logs:
            return
        numbers = {
            name: value for name, value in logs.items() if isinstance(value, int | float) and name not in _NOT_RECORDED
        }
        self._safely(lambda watch: watch.log(**numbers))

    @override
    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # trainers also say so when they stop within an epoch
        if math.isclose(state.epoch, round(state.epoch)):
            self._safely(lambda watch: watch.end_epoch())

    @override
    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        checkpoint = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        self._safely(lambda watch: self._save(watch, checkpoint))

    @override
    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.end("finished")

    def interrupted(self, error: BaseException) -> None:
        """Training broke off: the run says so, and the trackers' files are written all the same."""
        self.end(f"interrupted by {type(error).__name__}: {error}".rstrip(": "))

    def end(self, status: str) -> None:
        """Close the session and write the trackers' files; a second call does nothing."""
        watch, self.watch = self.watch, None
        if watch is None:
            return
        self._say("looking at what was trained, and writing the trackers' files …")
        watch.close(status)
        try:
            self.written = write_logs(ls.open_run(self.folder), self.logs, self.config)
        except Exception as error:  # noqa: BLE001  (the training's own result is not lost for a figure)
            self.failure = error
            self._say(
                f"the trackers' files could not be written: {type(error).__name__}: {first_line(error)}; "
                f"the records are in {self.folder}"
            )

    def _save(self, watch: ls.Watch, checkpoint: Path) -> None:
        """Write what resuming needs, and the trackers' files beside a checkpoint."""
        watch.save_state()
        if self.config.save_with_checkpoints:
            self._files.save(watch.run, checkpoint)

    def _safely(self, action: Callable[[ls.Watch], None]) -> None:
        """A failure of tracking is reported once and ends the tracking, not the training."""
        if self.watch is None or self.failure is not None:
            return
        try:
            action(self.watch)
        except Exception as error:  # noqa: BLE001  (whatever it is, it is ours and not the training's)
            self.failure = error
            self._say(f"tracking has failed and training goes on: {type(error).__name__}: {first_line(error)}")
