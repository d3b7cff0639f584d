"""How sparse are the updates of a GRPO run, and do the large ones carry what the model learns?

    python examples/trl_grpo_analysis.py            # half a minute on two cores, nothing is downloaded
    python examples/trl_grpo_analysis.py --wandb    # also logs to Weights & Biases

A tiny Llama, made on the spot, is trained with TRL's GRPOTrainer on countdown sums. Every second step the callback
measures how the weights have changed since the last measurement, and runs the model once more with only the changes
above a threshold applied, and once with as many picked at random. Training itself is not disturbed: without the
callback the same run gives the same weights, bit for bit.

For a model of your own, replace what `tiny_model` and `countdown_prompts` return; the callback stays as it is.
Needs `pip install 'learnscope[hf]'`.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from typing import Any

import torch
from datasets import Dataset
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from learnscope.analysis import AnalysisConfig, ModelAnalysisManager

CHARACTERS = "0123456789+-*() =:"
THRESHOLDS = [1e-8, 1e-6, 1e-4]


class ModelAnalysisCallback(TrainerCallback):
    """Trainers pass no inputs to callbacks; the analyzer then takes the batch that the model was trained on last."""

    def __init__(self, analyzer: ModelAnalysisManager, log_to_wandb: bool = False):
        self.analyzer = analyzer
        self.log_to_wandb = log_to_wandb
        self.measured: list[tuple[int, dict[str, float]]] = []

    def on_step_end(self, args, state, control, **kwargs):
        model = kwargs.get("model")
        inputs = kwargs.get("inputs")  # Optional

        metrics = self.analyzer.on_optimizer_step(model, inputs=inputs)
        if metrics:
            self.measured.append((state.global_step, metrics))
            if self.log_to_wandb:
                import wandb

                wandb.log({f"analysis/{k}": v for k, v in metrics.items()})


def character_tokenizer() -> PreTrainedTokenizerFast:
    special = ["<pad>", "<bos>", "<eos>", "<unk>"]
    vocabulary = {token: index for index, token in enumerate([*special, *CHARACTERS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    names = dict(zip(["pad_token", "bos_token", "eos_token", "unk_token"], special, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, padding_side="left", **names)


def tiny_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=64, tie_word_embeddings=True,
            pad_token_id=tokenizer.pad_token_id, bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
    )  # fmt: skip


def countdown_prompts() -> Dataset:
    """Reach the target with the two numbers: `3 4:7=` wants `3+4`."""
    pairs = [(a, b) for a in range(1, 10) for b in range(1, 10)]
    return Dataset.from_list([{"prompt": f"{a} {b}:{a + b}=", "target": a + b} for a, b in pairs])


def reward(completions: list[str], target: list[int], **columns: Any) -> list[float]:
    """1 for a sum that reaches the target; up to a half for digits and signs in the right order on the way there."""
    rewards = []
    for text, goal in zip(completions, target, strict=True):
        found = re.fullmatch(r"(\d)\+(\d)", text.strip())
        looks_right = sum(
            bool(re.match(kind, text[place : place + 1])) for place, kind in enumerate(["\\d", "\\+", "\\d"])
        )
        rewards.append(1.0 if found and int(found[1]) + int(found[2]) == goal else looks_right / 6)
    return rewards


def show(measured: list[tuple[int, dict[str, float]]], console: Console) -> None:
    if not measured:
        console.print("Nothing was measured: a measurement needs more steps than the interval.")
        return
    sparse = Table(title="Weights that moved by no more than the threshold between two measurements")
    quality = Table(title="KL from the trained model when only the larger changes are applied (or as many, at random)")
    for table in (sparse, quality):
        table.add_column("step", justify="right")
    sparse.add_column("‖Δ‖", justify="right")
    labels = [f"{threshold:.0e}" for threshold in THRESHOLDS]
    for label in labels:
        sparse.add_column(f"|Δ| ≤ {label}", justify="right")
        quality.add_column(f"|Δ| > {label}", justify="right")
        quality.add_column("random", justify="right", style="dim")
    for step, m in measured:
        shares = [f"{m[f'param_change/sparsity_at_{label}']:.1%}" for label in labels]
        sparse.add_row(str(step), f"{m['param_change/norm_l2']:.4f}", *shares)
        pairs = [f"{m[f'sparse/kl_at_{label}{mask}']:.2e}" for label in labels for mask in ("", "_random")]
        quality.add_row(str(step), *pairs)
    console.print(sparse)
    console.print(quality)
    console.print(verdict(measured[-1][1], labels[-1]))


def verdict(m: dict[str, float], label: str) -> str:
    """What the last measurement says, in a sentence, at the largest threshold."""
    kept, ours, random = (
        m[f"sparse/{name}"] for name in (f"kept_ratio_at_{label}", f"kl_at_{label}", f"kl_at_{label}_random")
    )
    start = f"The {kept:.1%} of weights that moved by more than {label} leave a KL of {ours:.1e} to the trained model"
    if kept in (0.0, 1.0):
        return f"{start}; a random choice of as many is the same, so this threshold tells nothing about this run."
    end = "large changes carry more than their number" if ours < random else "large changes carry no more than others"
    return f"{start}; as many picked at random leave {random:.1e}: {end}."


def main() -> None:
    parser = argparse.ArgumentParser(description="Model analysis of a small GRPO run.")
    parser.add_argument("--steps", type=int, default=21)
    parser.add_argument("--wandb", action="store_true", help="also log to Weights & Biases (WANDB_MODE=offline works)")
    options = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)  # for a model this small, more threads only wait for each other
    tokenizer = character_tokenizer()
    config = AnalysisConfig(
        interval=2, param_change_thresholds=THRESHOLDS, sparse_quality_thresholds=THRESHOLDS,
    )  # fmt: skip
    analyzer = ModelAnalysisManager.create(config)
    if options.wandb:
        import wandb

        wandb.init(project="trl-grpo-analysis")
    callback = ModelAnalysisCallback(analyzer, log_to_wandb=options.wandb)
    with tempfile.TemporaryDirectory() as folder:
        arguments = GRPOConfig(
            output_dir=folder, max_steps=options.steps, learning_rate=1e-4, lr_scheduler_type="constant",
            per_device_train_batch_size=16, num_generations=8, max_completion_length=4, use_cpu=True, bf16=False,
            gradient_checkpointing=False, report_to="none", save_strategy="no", logging_strategy="no",
            disable_tqdm=True,
        )  # fmt: skip
        trainer = GRPOTrainer(
            model=tiny_model(tokenizer), reward_funcs=reward, args=arguments, train_dataset=countdown_prompts(),
            processing_class=tokenizer, callbacks=[callback],
        )  # fmt: skip
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    show(callback.measured, Console())


if __name__ == "__main__":
    main()
