"""The callback that watches a training: records, the trackers' files at checkpoints, and an end in any case."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from typing_extensions import override

import learnscope as ls
from learnscope.integrations.hf.callback import LearnscopeCallback
from learnscope.trackers import TrackerConfig, probes_for, write_logs
from learnscope.trackers.logs import CheckpointFiles
from learnscope.training.errors import TrainError, first_line


class TrackingCallback(LearnscopeCallback):
    """A session with the trackers' probes, and the trackers' files when it is closed."""

    left_out = frozenset({
        "num_tokens", "step_time", "total_flos", "train_runtime", "train_samples_per_second", "train_steps_per_second",
        "train_loss",
    })  # fmt: skip
    """Not about learning, or begun anew by a trainer that goes on."""

    def __init__(
        self, folder: Path, logs: Path, config: TrackerConfig, holdout: Any, *, say: Callable[[str], None]
    ) -> None:
        self._files = CheckpointFiles(config)
        super().__init__(run=folder, holdout=False if holdout is None else holdout, sinks=[self._files])
        self.folder, self.logs, self.config = folder, logs, config
        self.failure: Exception | None = None
        self.written: list[Path] = []
        self._holdout, self._say = holdout, say

    @override
    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Open the session, or refuse before the first step what cannot be watched."""
        probes = probes_for(self.config, kwargs["model"])
        if self._holdout is not None and self.config.enable_spectral_tracking:
            probes.append(ls.AdapterTruncation())  # once, when training has ended
        self.options["probes"] = [*probes, ls.Loss(), ls.LearningRate(every=int(args.logging_steps))]
        try:
            super().on_train_begin(args, state, control, **kwargs)
        except (ValueError, TypeError, ls.RunError) as error:
            raise TrainError(f"this training cannot be tracked: {error}") from error

    @override
    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write what resuming needs, and the trackers' files beside a checkpoint."""
        super().on_save(args, state, control, **kwargs)
        if self.watch is not None and self.config.save_with_checkpoints:
            checkpoint = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            self._safely(lambda: self._files.save(self.watch.run, checkpoint) if self.watch is not None else None)

    @override
    def _until_it_ends(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return method(*args, **kwargs)  # the command ends its progress bar first, and then calls `interrupted`

    def interrupted(self, error: BaseException) -> None:
        """Training broke off: the run says so, and the trackers' files are written all the same."""
        self.close(f"interrupted by {type(error).__name__}: {error}".rstrip(": "))

    @override
    def close(self, status: str) -> None:
        """Close the session and write the trackers' files; a second call does nothing."""
        if self.watch is None:
            return
        self._say("looking at what was trained, and writing the trackers' files …")
        super().close(status)
        try:
            self.written = write_logs(ls.open_run(self.folder), self.logs, self.config)
        except Exception as error:  # noqa: BLE001  (the training's own result is not lost for a figure)
            self.failure = error
            self._say(
                f"the trackers' files could not be written: {type(error).__name__}: {first_line(error)}; "
                f"the records are in {self.folder}"
            )

    def _safely(self, action: Callable[[], object]) -> None:
        """A failure of the trackers' files is reported once and ends them, not the training."""
        if self.failure is not None:
            return
        try:
            action()
        except Exception as error:  # noqa: BLE001  (whatever it is, it is ours and not the training's)
            self.failure = error
            self._say(f"tracking has failed and training goes on: {type(error).__name__}: {first_line(error)}")
