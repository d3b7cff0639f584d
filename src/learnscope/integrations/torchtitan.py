"""torchtitan: one entry in the configuration of a job.

    [experimental]
    custom_import = "learnscope.integrations.torchtitan"

or, to have the section `[learnscope]` with options too:

    [job]
    custom_config_module = "learnscope.integrations.torchtitan"

torchtitan imports this module before it makes its trainer. From then on, every trainer opens a session when it has
loaded its checkpoint, hands it the loss of each step and what its loggers get, saves its state with each checkpoint and
closes it at the end. Jobs that shard their model (FSDP, tensor or pipeline parallel) are refused.
"""

# no annotations as texts here: torchtitan copies those of `JobConfig` into a class of its own

import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

from torch import Tensor

from learnscope.core.probe import ProbeWarning
from learnscope.generators import unmoved_generators
from learnscope.integrations.carrying import Carried, carried_in, carry_into
from learnscope.integrations.headlines import SentHeadlines
from learnscope.integrations.options import checked_options
from learnscope.integrations.placing import FOLDER, place
from learnscope.integrations.wrapping import Around
from learnscope.model.guard import preserve_rng
from learnscope.model.outputs.trial import try_task
from learnscope.reading.course.trainers import GIVEN, NONE, TRAINING_SET, VALIDATION_SET
from learnscope.session.ending import interrupted_by
from learnscope.session.watch import Watch, watch

BATCHES = 8
"""Batches that are kept to evaluate the model on."""
LOSS = "loss_metrics/global_avg_loss"
"""What torchtitan calls the loss of the step, which is recorded as `loss` already."""


@dataclass
class Learnscope:
    """The section `[learnscope]` of a job's configuration."""

    run: str = ""
    """Folder for the run; by default `learnscope` in the job's dump folder."""
    options: str = ""
    """`module.function`, called with the trainer: it returns options of `ls.watch`, such as `probes` and `holdout`."""


@dataclass
class JobConfig:
    """What `custom_config_module` adds to torchtitan's own."""

    learnscope: Learnscope = field(default_factory=Learnscope)


class TitanSession:
    """The session of one trainer, from the loading of its checkpoint to its end."""

    def __init__(self, trainer: Any, checkpointer: Any) -> None:
        self._checkpointer = checkpointer
        self._parts: list[Tensor] = []
        config = getattr(trainer.job_config, "learnscope", None) or Learnscope()
        options = _from_function(config.options, trainer)
        probes = options.pop("probes", None)
        checked_options(f"what {config.options} returns", options)
        if trainer.parallel_dims.pp_enabled:
            raise ValueError("learnscope needs the whole model in one process, and this job is pipeline parallel")
        model, source = trainer.model_parts[0], GIVEN
        if "holdout" not in options:
            options["holdout"], source = default_holdout(trainer)
        wanted = Path(config.run or Path(trainer.job_config.job.dump_folder) / FOLDER)
        checkpoint = self._checkpoint(trainer.step)
        carried = carried_in(checkpoint) if trainer.step and checkpoint is not None else None
        if carried is None or carried.missing:  # then it may be of the run in the job's folder
            carried = Carried(step=trainer.step, run=wanted, places=(wanted,))
        where = place(wanted, carried, asked=bool(config.run))
        logger = trainer.metrics_processor.logger
        self._around = Around()
        send = self._around.put(logger, "log", self._logged)
        options["sinks"] = [*options.get("sinks", ()), SentHeadlines(send)]
        self.w: Watch = watch(model, trainer.optimizers.optimizers, probes=probes, **options, **where.options)
        self._around.put(trainer, "forward_backward_step", self._micro_batch)
        self._around.put(trainer, "train_step", self._step)
        self.w.note(trainer={"class": type(trainer).__name__, "torchtitan": _version()}, holdout={"source": source})
        if where.missing:
            warnings.warn(where.missing, ProbeWarning, stacklevel=2)

    def saves(self, step: int) -> Callable[[], None]:
        """Before a checkpoint: returns what is to be called after it."""
        saved, checkpoint = self.w.save_state(), self._checkpoint(step)
        return lambda: None if checkpoint is None else carry_into(checkpoint, self.w, saved)

    def close(self, error: BaseException | None) -> None:
        self._around.remove()
        self.w.close("finished" if error is None else interrupted_by(error))

    def _micro_batch(self, method: Any, *args: Any, **kwargs: Any) -> Any:
        loss = method(*args, **kwargs)  # its part of the step's loss: the sum over its tokens by the tokens of the step
        self._parts.append(loss.detach())
        return loss

    def _step(self, method: Any, *args: Any, **kwargs: Any) -> Any:
        self._parts = []
        result = method(*args, **kwargs)
        parts, self._parts = self._parts, []
        if parts:
            self.w.log(loss=sum(parts[1:], start=parts[0]))
        return result

    def _logged(self, method: Any, metrics: dict[str, Any], step: int) -> Any:
        """The trainer logs: its numbers under their own names."""
        numbers = {name: value for name, value in metrics.items() if isinstance(value, int | float | Tensor)}
        numbers.pop(LOSS, None)
        if numbers:
            self.w.log(**numbers)
        return method(metrics, step)

    def _checkpoint(self, step: int) -> Path | None:
        """The folder of a step's checkpoint; None if checkpoints are off."""
        manager = self._checkpointer
        return Path(manager._create_checkpoint_id(step)) if hasattr(manager, "folder") else None


def default_holdout(trainer: Any) -> tuple[list[Any] | None, str]:
    """The first batches of the validation set, or of the training set without one, from a loader of our own."""
    job, validates = trainer.job_config, trainer.job_config.validation.enable
    what = VALIDATION_SET if validates else TRAINING_SET
    common = {"dp_world_size": 1, "dp_rank": 0, "tokenizer": trainer.tokenizer, "job_config": job}
    try:
        with preserve_rng():
            if validates:
                data = import_module("torchtitan.hf_datasets.text_datasets")
                loader = data.build_text_validation_dataloader(**common)
            else:
                loader = trainer.train_spec.build_dataloader_fn(**common)
            batches = [_plain(inputs, labels) for inputs, labels in islice(iter(loader), BATCHES)]
        try_task(None, trainer.model_parts[0], batches[0])
    except Exception as error:  # noqa: BLE001  (the job's own data and model: nobody asked for this data)
        warnings.warn(f"the model is not evaluated: {what}: {error}", UserWarning, stacklevel=3)
        return None, f"{NONE}{what}: {error}"
    return batches, what


def _plain(inputs: dict[str, Tensor], labels: Tensor) -> tuple[Tensor, Tensor]:
    if set(inputs) != {"input"}:
        raise ValueError(f"batches have {', '.join(sorted(inputs))}: pass holdout= and task=")
    return inputs["input"], labels


def _from_function(path: str, trainer: Any) -> dict[str, Any]:
    """What the job's own function returns."""
    if not path:
        return {}
    module, _, name = path.rpartition(".")
    return dict(getattr(import_module(module), name)(trainer))


def _version() -> str:
    return str(getattr(sys.modules["torchtitan"], "__version__", "unknown"))


def install() -> None:
    """Have every trainer of torchtitan watched, once.

    Its checkpoint manager is given all parts of a trainer, is asked to load before the first step, to save after each,
    and is closed at the end; the class of the trainer itself may be any.
    """
    manager = import_module("torchtitan.components.checkpoint").CheckpointManager
    if getattr(manager, "_learnscope", False):
        return
    load, save, close = manager.load, manager.save, manager.close

    def load_and_open(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = load(self, *args, **kwargs)
        trainer = self.states.get("train_state")
        if hasattr(trainer, "train_step") and "_learnscope_session" not in vars(self):
            self._learnscope_session = TitanSession(trainer, self)
        return result

    def save_with_state(self: Any, curr_step: int, last_step: bool = False) -> Any:
        session = vars(self).get("_learnscope_session")
        if session is None or not self._should_save(curr_step, last_step):
            return save(self, curr_step, last_step)
        then = session.saves(curr_step)
        result = save(self, curr_step, last_step)
        then()
        return result

    def close_session(self: Any) -> Any:
        session = vars(self).pop("_learnscope_session", None)
        if session is not None:
            session.close(sys.exc_info()[1])
        return close(self)

    manager.load, manager.save, manager.close = load_and_open, save_with_state, close_session
    manager._learnscope = True


if "torchtitan" in sys.modules:  # which imports this module, as its configuration says
    with unmoved_generators():
        install()
