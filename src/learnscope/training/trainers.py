"""TRL's trainers with what some adapters need: their own optimizer, and AdaLoRA's penalty and checkpoints."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from learnscope.training.adalora import orthogonality, whole_matrices
from learnscope.training.data.sources import Data
from learnscope.training.families import TWO_RATES, family_of
from learnscope.training.plan import Plan
from learnscope.training.settings.config import Config, PeftConfig


class _ForAdapters:
    """A mixin for TRL's trainers."""

    adapter: PeftConfig

    def create_optimizer(self: Any, model: Any = None) -> Any:
        """The trainer's own, except for families with a special one. Called after a checkpoint has been loaded."""
        family = family_of(self.adapter.type)
        if self.optimizer is None and (family in TWO_RATES or family == "lora-fa"):
            self.optimizer = family_optimizer(self.model, self.adapter, self.args)
        return super().create_optimizer(model)  # type: ignore[misc]

    def compute_loss(self: Any, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
        loss = super().compute_loss(model, inputs, return_outputs, **kwargs)  # type: ignore[misc]
        if family_of(self.adapter.type) != "adalora" or not self.model.training or return_outputs:
            return loss
        penalty = self.adapter.orth_reg_weight * orthogonality(self.model)
        scaled = self.loss_is_scaled_for_ga  # whether the loss is already divided by the micro-batches of a step
        if scaled is None:
            scaled = self.model_accepts_loss_kwargs and kwargs.get("num_items_in_batch") is not None
        return loss + penalty / (self.current_gradient_accumulation_steps if scaled else 1)

    def save_model(self: Any, output_dir: str | None = None, _internal_call: bool = False) -> None:
        adalora = family_of(self.adapter.type) == "adalora"
        with whole_matrices(self.model) if adalora else nullcontext():
            super().save_model(output_dir, _internal_call)  # type: ignore[misc]


class AdapterSFTTrainer(_ForAdapters, SFTTrainer):  # type: ignore[misc]
    """SFT of an adapter."""


class AdapterGRPOTrainer(_ForAdapters, GRPOTrainer):  # type: ignore[misc]
    """GRPO of an adapter."""


def family_optimizer(model: Any, adapter: PeftConfig, args: Any) -> torch.optim.Optimizer:
    """The optimizer of LoRA+, with its two rates, or of LoRA-FA, which freezes A."""
    from peft.optimizers import create_lorafa_optimizer, create_loraplus_optimizer

    if family_of(adapter.type) == "lora-fa":
        config = model.peft_config["default"]
        return create_lorafa_optimizer(
            model, config.r, config.lora_alpha, lr=args.learning_rate, weight_decay=args.weight_decay
        )
    return create_loraplus_optimizer(
        model, torch.optim.AdamW, lr=args.learning_rate, loraplus_lr_ratio=adapter.loraplus_lr_ratio,
        loraplus_weight_decay=args.weight_decay,
    )  # fmt: skip


def make_trainer(model: Any, tokenizer: Any, data: Data, config: Config, plan: Plan, callbacks: list[Any]) -> Any:
    from transformers import PrinterCallback, ProgressCallback

    common = {"model": model, "processing_class": tokenizer, "train_dataset": data.train, "callbacks": callbacks}
    sft, training = config.training.method == "sft", config.training
    maker: Any = AdapterSFTTrainer if sft else AdapterGRPOTrainer
    if sft:
        args: Any = SFTConfig(**_arguments(config, plan), max_length=training.max_length)
        trainer = maker(args=args, eval_dataset=data.holdout, **common)
    else:
        args = GRPOConfig(
            **_arguments(config, plan), num_generations=training.num_generations, temperature=training.temperature,
            max_completion_length=plan.max_completion_length, beta=0.0,
        )  # fmt: skip
        trainer = maker(args=args, reward_funcs=data.reward, **common)
        # beta is set afterwards: TRL would copy the adapter as its reference, which would be measured as a second one.
        # The model without its adapter is what training begins with, in all families that `check` lets through.
        trainer.beta = trainer.args.beta = training.beta
    trainer.adapter = config.peft
    for printing in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(printing)
    return trainer


def _arguments(config: Config, plan: Plan) -> dict[str, Any]:
    training, model_dtype = config.training, config.model.dtype
    cpu = not torch.cuda.is_available()
    half = None if cpu else (model_dtype or ("bfloat16" if torch.cuda.is_bf16_supported() else "float32"))
    return {
        "output_dir": str(Path(training.output_dir)), "max_steps": plan.max_steps, "num_train_epochs": plan.epochs,
        "per_device_train_batch_size": plan.batch,
        "gradient_accumulation_steps": training.gradient_accumulation_steps, "learning_rate": plan.learning_rate,
        "lr_scheduler_type": training.lr_scheduler_type, "warmup_steps": training.warmup_steps,
        "weight_decay": training.weight_decay, "max_grad_norm": training.max_grad_norm,
        "logging_steps": training.logging_steps, "logging_nan_inf_filter": False, "disable_tqdm": True,
        "save_strategy": "steps" if plan.save_steps else "no", "save_steps": plan.save_steps or 500,
        "save_total_limit": training.save_total_limit, "seed": training.seed, "data_seed": training.seed,
        "gradient_checkpointing": training.gradient_checkpointing, "use_cpu": cpu, "bf16": half == "bfloat16",
        "fp16": half == "float16", "dataloader_pin_memory": not cpu,
        "report_to": [name for name in training.report_to if name != "none"],
    }  # fmt: skip
