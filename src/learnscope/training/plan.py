"""Defaults for what the configuration leaves open, and checks of what cannot go together."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from learnscope.training.errors import TrainError
from learnscope.training.families import SPLIT_AT_START, WITHOUT_RANK, family_of
from learnscope.training.settings.config import Config

STEPS = 200
RATES = {(True, "sft"): 2e-3, (True, "grpo"): 1e-3, (False, "sft"): 2e-4, (False, "grpo"): 1e-5}
"""By `builtin` (whether the model is the built-in one) and method."""
BATCH = {True: 48, False: 16}
"""By `builtin`."""


@dataclass(frozen=True, slots=True)
class Plan:
    """`max_steps` is -1 where the configuration counts in epochs."""

    max_steps: int
    epochs: float
    learning_rate: float
    save_steps: int
    max_completion_length: int
    batch: int
    """Examples (completions) of one forward."""


def make_plan(config: Config, *, builtin: bool) -> Plan:
    training = config.training
    by_epochs = training.num_train_epochs is not None
    steps = -1 if by_epochs else (training.max_steps or STEPS)
    rate = RATES[builtin, training.method] if training.learning_rate is None else training.learning_rate
    usual = 500 if by_epochs else math.ceil(steps / 2)
    save = usual if training.save_steps is None else training.save_steps
    length = training.max_completion_length or (16 if builtin else 512)
    batch = training.per_device_train_batch_size or BATCH[builtin]
    return Plan(steps, training.num_train_epochs or 1.0, rate, save, length, batch)


_LEAST = {
    "peft": {"r": 1, "init_r": 1, "target_r": 1, "tinit": 0, "tfinal": 0, "deltaT": 1},
    "dataset": {"num_examples": 1, "holdout_examples": 0},
    "training": {
        "max_steps": 1, "per_device_train_batch_size": 1, "gradient_accumulation_steps": 1, "warmup_steps": 0,
        "weight_decay": 0, "max_grad_norm": 0, "max_length": 1, "num_generations": 2, "max_completion_length": 1,
        "beta": 0, "logging_steps": 1, "save_steps": 0, "save_total_limit": 1, "threads": 1, "seed": 0,
    },
}  # fmt: skip
_ABOVE_0 = {
    "peft": ("lora_alpha", "loraplus_lr_ratio"),
    "training": ("num_train_epochs", "temperature", "learning_rate"),
}


def check(config: Config) -> None:
    """Refuse numbers out of range and options that contradict each other."""
    for section in fields(config):
        body = getattr(config, section.name)
        for name, least in _LEAST.get(section.name, {}).items():
            value = getattr(body, name)
            if value is not None and not value >= least:
                raise TrainError(f"config.{section.name}.{name} is {value}; it must be {least} or more")
        for name in _ABOVE_0.get(section.name, ()):
            value = getattr(body, name)
            if value is not None and not 0 < value < math.inf:
                raise TrainError(f"config.{section.name}.{name} is {value}; it must be a number above 0")
    if not 0 <= config.peft.lora_dropout < 1:
        raise TrainError(f"config.peft.lora_dropout is {config.peft.lora_dropout}; it must be from 0 to below 1")
    if config.training.max_steps is not None and config.training.num_train_epochs is not None:
        raise TrainError("config.training.max_steps and num_train_epochs are both set: leave one of them out")
    family = family_of(config.peft.type)
    if family in WITHOUT_RANK and config.peft.lora_dropout:
        raise TrainError(f"config.peft.lora_dropout: {family} has no dropout; leave it out")
    steps = config.training.max_steps or STEPS
    for kind in ("spectral", "gradient"):
        every = getattr(config.tracker, f"{kind}_log_frequency")
        enabled = getattr(config.tracker, f"enable_{kind}_tracking")
        # counted in epochs, the number of steps depends on the data
        if enabled and every > steps and config.training.num_train_epochs is None:
            raise TrainError(
                f"config.tracker.{kind}_log_frequency is {every} and the training has {steps} steps, so nothing would "
                f"be measured: lower it (--tracking_frequency {max(1, steps // 10)})"
            )
    if config.training.method == "grpo":
        _check_grpo(config)


def _check_grpo(config: Config) -> None:
    training, family = config.training, family_of(config.peft.type)
    per_forward = training.per_device_train_batch_size or BATCH[config.model.model_name_or_path is None]
    batch = per_forward * training.gradient_accumulation_steps
    if batch % training.num_generations:
        raise TrainError(
            f"grpo compares the {training.num_generations} completions of a prompt (num_generations) within a step of "
            f"{batch} (per_device_train_batch_size × gradient_accumulation_steps): make that a multiple of it"
        )
    if training.beta == 0:
        return
    if family in SPLIT_AT_START:
        reason, cure = f"{family} moves a part of the weights into the adapter", "another family"
    elif config.peft.adapter_name_or_path is not None:
        reason, cure = "it starts from one", "a model into which that adapter is merged"
    else:
        return
    raise TrainError(
        "config.training.beta weighs the divergence from the model without its adapter, which is not the model "
        f"that this training begins with, since {reason}: set beta to 0, or use {cure}"
    )
