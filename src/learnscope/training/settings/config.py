"""The options of a training, section by section. Their docstrings are what `learnscope train --help` shows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from learnscope.trackers.config import TrackerConfig


@dataclass(kw_only=True)
class ModelConfig:
    """The model that is adapted"""

    model_name_or_path: str | None = None
    """A folder of a saved model, or a name on the Hugging Face hub. Default: a tiny Llama that is made on the spot."""
    revision: str | None = None
    """Branch, tag or commit of a model on the hub."""
    trust_remote_code: bool = False
    """Run the code that comes with a model on the hub."""
    attn_implementation: Literal["flash_attention_2", "sdpa", "eager"] = "flash_attention_2"
    """Attention; where flash_attention_2 cannot be used, sdpa takes its place and a line says why."""
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """Of the frozen weights. Default: bfloat16 on a GPU that has it, else float32."""


@dataclass(kw_only=True)
class PeftConfig:
    """The adapter"""

    type: str = "lora"
    """lora, rslora, lora+, lora-fa, dora, adalora, pissa, milora, milora+, vera, ia3 or layernorm."""
    r: int = 8
    """Rank (for adalora the average rank that is left in the end; ia3 and layernorm have none)."""
    lora_alpha: float = 16
    """The update is scaled by lora_alpha / r (rslora: by lora_alpha / √r)."""
    lora_dropout: float = 0.0
    """Dropout on what goes into the adapter."""
    target_modules: list[str] | None = None
    """Names of the modules to adapt, e.g. [q_proj,v_proj]. Default: all linear layers but the head (ia3: \
what PEFT knows of the architecture; layernorm: all norms)."""
    adapter_name_or_path: str | None = None
    """A saved adapter of the same type to go on from, instead of a new one."""
    loraplus_lr_ratio: float = 16.0
    """lora+ and milora+: how many times faster B learns than A."""
    init_r: int | None = None
    """adalora: the rank to begin with. Default: r + r // 2, at least r + 1."""
    target_r: int | None = None
    """adalora: the average rank in the end. Default: r."""
    tinit: int | None = None
    """adalora: steps before the first rank is taken away. Default: a tenth of all."""
    tfinal: int | None = None
    """adalora: last steps, in which ranks stay. Default: a quarter of all."""
    deltaT: int | None = None
    """adalora: steps between two allocations. Default: a fiftieth of all."""
    orth_reg_weight: float = 0.5
    """adalora: weight of the penalty on factors that are not orthogonal."""
    d_initial: float = 0.1
    """vera: what its vector d begins with."""


@dataclass(kw_only=True)
class DatasetConfig:
    """The data"""

    dataset_name_or_path: str | None = None
    """A .jsonl, .json, .csv or .parquet file, a folder written by save_to_disk, or a name on the hub. Default: \
countdown arithmetic, generated."""
    name: str | None = None
    """Configuration of a data set on the hub that has several."""
    split: str = "train"
    """Which part, also sliced: train[:1000], train[10%:20%]."""
    num_examples: int | None = None
    """At most so many examples, the first. Default: 2048 generated ones, or all of a data set."""
    holdout_examples: int = 16
    """Examples at the end that are not trained on; probes look at them."""
    seed: int = 0
    """Of the generated examples."""
    prompt_column: str | None = None
    """Column of prompts. Default: `prompt`, or made from `nums` and `target` of countdown data."""
    completion_column: str | None = None
    """Column of completions, or for GRPO of right answers. Default: `completion`, `answer` or `response`."""
    text_column: str | None = None
    """Column of whole texts, for SFT. Default: `text`."""
    messages_column: str | None = None
    """Column of conversations (role, content). Default: `messages`."""
    prompt_template: str | None = None
    """How countdown prompts are worded, with {numbers} and {target}. Default: `3 4 7:14=` for the built-in model, a \
sentence for others."""


@dataclass(kw_only=True)
class TrainingConfig:
    """The training"""

    method: Literal["sft", "grpo"] = "sft"
    """sft learns from completions, grpo from rewards of what the model writes."""
    output_dir: str = "runs/train"
    """Folder for everything that is written."""
    overwrite_output_dir: bool = False
    """Remove what an earlier training left in output_dir. Otherwise it is refused."""
    resume_from_checkpoint: str | bool | None = None
    """A checkpoint folder, or `latest` (or `true`) for the newest in output_dir."""
    max_steps: int | None = None
    """Optimizer steps. Default: 200, or as num_train_epochs says."""
    num_train_epochs: float | None = None
    """Passes over the data, instead of max_steps."""
    per_device_train_batch_size: int | None = None
    """Examples (grpo: completions) of one forward. Default: 16, or 48 for the built-in model."""
    gradient_accumulation_steps: int = 1
    """Forwards of one step."""
    learning_rate: float | None = None
    """Default: 2e-4 with sft, 1e-5 with grpo; for the built-in model 2e-3 and 1e-3."""
    lr_scheduler_type: Literal["linear", "cosine", "constant", "constant_with_warmup"] = "linear"
    """How the rate falls."""
    warmup_steps: int = 0
    """Steps over which the rate rises first."""
    weight_decay: float = 0.0
    """Of AdamW."""
    max_grad_norm: float = 1.0
    """Gradients are clipped at this norm; 0: not at all."""
    max_length: int = 1024
    """sft: longer examples are cut, in tokens."""
    num_generations: int = 8
    """grpo: completions of one prompt, which are compared with each other."""
    max_completion_length: int | None = None
    """grpo: tokens of a completion. Default: 16 for the built-in model, else 512."""
    temperature: float = 1.0
    """grpo: of sampling."""
    beta: float = 0.0
    """grpo: weight of the divergence from the model without its adapter."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward, to save memory."""
    logging_steps: int = 10
    """Steps between two lines of progress, and two recorded losses."""
    save_steps: int | None = None
    """Steps between two checkpoints; 0: none. Default: half of max_steps, or 500 with num_train_epochs."""
    save_total_limit: int = 3
    """Checkpoints that are kept."""
    report_to: list[str] = field(default_factory=list)
    """Where else the trainer logs, e.g. [wandb,tensorboard]."""
    seed: int = 42
    """Of the adapter's start, of the order of examples and of sampling."""
    threads: int | None = None
    """Threads of torch on the CPU. Default: 1 for the built-in model, else torch's own choice."""


@dataclass(kw_only=True)
class Config:
    """Everything that can be set, as in the file given with --config."""

    model: ModelConfig = field(default_factory=ModelConfig)
    peft: PeftConfig = field(default_factory=PeftConfig)
    dataset: DatasetConfig = field(default_factory=DatasetConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    tracker: TrackerConfig = field(default_factory=TrackerConfig)
