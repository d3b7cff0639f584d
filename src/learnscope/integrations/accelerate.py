"""Loops with Accelerate: one line after `accelerator.prepare(…)`.

    w = watch_accelerate(accelerator, model, optimizer, holdout=evaluation_loader)

`ls.watch(model, optimizer)` works there too. This also records the loss by itself, goes on after `load_state`, sends a
few numbers to the accelerator's trackers, and closes in `accelerator.end_training()`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from learnscope.core.probe import ProbeWarning
from learnscope.integrations.carrying import carried_in, carry_into
from learnscope.integrations.headlines import SentHeadlines
from learnscope.integrations.options import checked_options
from learnscope.integrations.placing import FOLDER, place
from learnscope.integrations.wrapping import Around
from learnscope.session.opening import check_model
from learnscope.session.steps.optimizers import as_optimizers
from learnscope.session.watch import Watch, watch


def watch_accelerate(
    accelerator: Any, model: nn.Module, optimizer: Any, *, run: str | Path | None = None, probes: Any = None,
    log_loss: bool = True, **options: Any,
) -> AcceleratedWatch:  # fmt: skip
    """Watch a loop with Accelerate. To be called after `prepare`, and before `load_state` if there is one.

    Args:
        accelerator: the `accelerate.Accelerator` of the loop.
        model: what `prepare` returned.
        optimizer: what `prepare` returned, one or several.
        run: folder for the run; by default `learnscope` in the accelerator's `project_dir`, and memory without one.
            After `load_state`, the run that the checkpoint is of goes on.
        probes: what to record; by default that of `ls.watch`.
        log_loss: whether what is given to `accelerator.backward` is recorded as the loss, the mean over a step's
            micro-batches. False for a loss that is weighed otherwise: call `w.log(loss=…)` yourself.
        options: those of `ls.watch`, such as `holdout=`.
    """
    return AcceleratedWatch(accelerator, model, optimizer, run, probes, log_loss, options)


class AcceleratedWatch:
    """A session that opens when training begins, so that what `load_state` loads comes before it.

    It has the methods of the session that `ls.watch` returns.
    """

    def __init__(
        self, accelerator: Any, model: nn.Module, optimizer: Any, run: str | Path | None, probes: Any, log_loss: bool,
        options: dict[str, Any],
    ) -> None:  # fmt: skip
        check_model(model)
        as_optimizers(optimizer, model)  # what cannot be watched is refused here
        self._accelerator, self._model, self._optimizer = accelerator, model, optimizer
        self._probes, self._options = probes, checked_options("watch_accelerate", options)
        self._named = run is not None
        inside = Path(accelerator.project_dir) / FOLDER if accelerator.project_dir else None
        self._wanted = inside if run is None else Path(run)
        self._session: Watch | None = None
        self._loaded: Path | None = None
        self._log_loss = log_loss
        self._first_forward = model.register_forward_pre_hook(self._begins)
        self._around = Around()
        self._around.put(accelerator, "backward", self._backward)
        self._around.put(accelerator, "end_training", self._ends)
        self._undo: list[Callable[[], object]] = [
            accelerator.register_save_state_pre_hook(self._saves).remove,
            accelerator.register_load_state_pre_hook(self._loads).remove,
            lambda: self._first_forward.remove(),
            self._around.remove,
        ]

    @property
    def session(self) -> Watch:
        """The session, opened if it is not."""
        if self._session is None:
            self._session = self._open()
        return self._session

    def close(self, status: str = "finished") -> None:
        """Finish the run, and give the accelerator its own methods back. Closing twice does nothing."""
        undo, self._undo = self._undo, []
        for each in reversed(undo):
            each()
        if self._session is not None:
            self._session.close(status)

    def __enter__(self) -> AcceleratedWatch:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self.close() if error is None else self.close(f"interrupted by {type(error).__name__}: {error}")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.session, name)

    def _open(self) -> Watch:
        self._first_forward.remove()
        loaded, self._loaded = self._loaded, None
        carried = None if loaded is None else carried_in(loaded)
        where = place(self._wanted, carried, asked=self._named)
        missing = where.missing
        if carried is not None and carried.step is None:  # and Accelerate counts none
            missing = f"{carried.missing or f'{carried.name} has no step'}: the steps of this run begin at 0"
        if missing:
            warnings.warn(missing, ProbeWarning, stacklevel=3)
        accelerator, options = self._accelerator, dict(self._options)
        options["sinks"] = [*options.get("sinks", ()), SentHeadlines(self._send)]
        if any(tracker.name == "wandb" for tracker in accelerator.trackers):
            options.setdefault("write_every", 1)  # it refuses numbers of earlier steps than its last
        return watch(self._model, self._optimizer, probes=self._probes, **options, **where.options)

    def _begins(self, model: nn.Module, _inputs: Any) -> None:
        if self._session is None and model.training and torch.is_grad_enabled():
            self._session = self._open()

    def _backward(self, backward: Callable[..., Any], loss: Any, **kwargs: Any) -> Any:
        session = self.session  # a compiled model does not call hooks
        result = backward(loss, **kwargs)
        if self._log_loss:
            session.log(loss=loss)
        return result

    def _saves(self, _models: Any, _weights: Any, folder: str) -> None:
        if self._session is not None:
            carry_into(Path(folder), self._session, self._session.save_state())

    def _loads(self, _models: Any, folder: str) -> None:
        """A session that is open ends here: what follows is another attempt at the same run."""
        self._loaded = Path(folder)
        if self._session is not None:
            self._session.close("went back to a checkpoint")
            self._session = None
            self._first_forward = self._model.register_forward_pre_hook(self._begins)

    def _ends(self, end_training: Callable[[], Any]) -> Any:
        self.close()
        return end_training()

    def _send(self, values: dict[str, float], step: int) -> None:
        if self._accelerator.trackers:
            self._accelerator.log(values, step=step)
