"""A training from its configuration to its files."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from learnscope.sources.hub import look_only_here_if_unreachable
from learnscope.sources.hushed import hushed
from learnscope.training.errors import TrainError
from learnscope.training.families import family_of
from learnscope.training.folders import RUN, begin, newest, open_folder, step_of
from learnscope.training.plan import check, make_plan
from learnscope.training.settings.config import Config
from learnscope.training.settings.parser import as_yaml

PACKAGES = ("transformers", "peft", "trl", "datasets")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The trainer and the tracking callback, for those who call `train` from Python."""

    trainer: Any
    tracking: Any
    """None without tracking."""


def train(config: Config, screen: Any = None) -> Outcome:
    """Train as configured; what cannot be done raises a `TrainError` before anything is written."""
    import torch  # noqa: F401  (importing it sets its loggers' levels, so it comes before they are changed below)

    from learnscope.sources.hushed import quiet

    with hushed():  # transformers imports packages that warn about missing optional ones
        from learnscope.training.screen import Screen
    screen = screen or Screen()
    with quiet(screen.say):
        checkpoint = _open(config)
        from learnscope.model.cost.timing import fixed_threads
        from learnscope.training.builtin import is_base_model

        name = config.model.model_name_or_path
        # the built-in model is so small that several threads mostly wait for each other, more so on a busy machine
        usual = 1 if name is None or is_base_model(Path(name)) else None
        with fixed_threads(config.training.threads or usual):
            return _train(config, checkpoint, screen)


def _open(config: Config) -> Path | None:
    """Check what can be checked before anything is loaded; returns the checkpoint to resume from, if any."""
    check(config)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise TrainError("this command trains in one process: start it without torchrun or accelerate launch")
    checkpoint = open_folder(config)
    look_only_here_if_unreachable([config.model.model_name_or_path, config.dataset.dataset_name_or_path])
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise TrainError(f"training needs {', '.join(missing)}: pip install 'learnscope[hf]'")
    return checkpoint


def _train(config: Config, checkpoint: Path | None, screen: Any) -> Outcome:
    from learnscope.training.screen import ProgressLines

    folder, family = Path(config.training.output_dir), family_of(config.peft.type)
    lines = ProgressLines(screen)
    trainer, tracking = _prepare(config, checkpoint, screen, lines)
    begin(config, as_yaml(config), resume=checkpoint is not None)
    try:
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    except BaseException as error:
        lines.close()
        if tracking is not None:
            tracking.interrupted(error)
        if not isinstance(error, TrainError):
            screen.broken_off(trainer.state.global_step, folder, newest(folder), error)
        raise
    from learnscope.training.adapters import save_adapter

    save_adapter(trainer.model, trainer.processing_class, family, folder)
    screen.outcome(trainer, config.training.method, folder, tracking)
    return Outcome(trainer, tracking)


def _prepare(config: Config, checkpoint: Path | None, screen: Any, lines: Any) -> tuple[Any, Any]:
    """The trainer with its callbacks, and the tracking callback, if any."""
    from transformers import set_seed

    from learnscope.training.adalora import AdaLoraCallback
    from learnscope.training.adapters import adapt
    from learnscope.training.data.sources import load_data
    from learnscope.training.models import load_model
    from learnscope.training.trainers import make_trainer

    folder, family, resume = Path(config.training.output_dir), family_of(config.peft.type), checkpoint is not None
    base, tokenizer, builtin = load_model(config.model, folder, screen.say, screen.progress, resume=resume)
    data = load_data(config, builtin=builtin, chat=tokenizer.chat_template is not None)
    plan = make_plan(config, builtin=builtin)
    if checkpoint is not None and 0 < plan.max_steps <= step_of(checkpoint):
        raise TrainError(f"{checkpoint} is at step {step_of(checkpoint)} of {plan.max_steps}: raise max_steps to go on")
    set_seed(config.training.seed)
    model = adapt(base, config.peft)
    _show_facts(screen, config, model, data, plan, checkpoint)
    # AdaLoRA's first: its hook must run before those of the session
    callbacks = [AdaLoraCallback(config.peft, checkpoint)] if family == "adalora" else []
    trainer = make_trainer(model, tokenizer, data, config, plan, [*callbacks, lines])
    if not config.tracker.enabled:
        return trainer, None
    from learnscope.training.data.batches import holdout_batches
    from learnscope.training.tracking import TrackingCallback

    logs = Path(config.tracker.tracking_output_dir or folder)
    holdout = holdout_batches(trainer, data.holdout, config.training.method)
    tracking = TrackingCallback(folder / RUN, logs, config.tracker, holdout, say=screen.say)
    trainer.add_callback(tracking)
    return trainer, tracking


def _show_facts(screen: Any, config: Config, model: Any, data: Any, plan: Any, checkpoint: Path | None) -> None:
    trained, total = model.get_nb_trainable_parameters()
    length = f"{plan.max_steps} steps" if plan.max_steps > 0 else f"{plan.epochs:g} epochs"
    facts = {
        "model": f"{config.model.model_name_or_path or 'built-in tiny Llama'}, {total - trained:,} frozen weights",
        "adapter": f"{family_of(config.peft.type)}, {trained:,} trained weights",
        "data": data.about,
        "training": f"{config.training.method}, {length}, learning rate {plan.learning_rate:g}",
    }
    if checkpoint is not None:
        facts["resumed"] = f"from {checkpoint}"
    screen.facts(**facts)
