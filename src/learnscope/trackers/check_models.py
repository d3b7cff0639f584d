"""Small real models with an adapter of every family, made in memory: what the trackers are checked on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from learnscope.model.adapters.start import init_milora

FAMILIES = (
    "lora", "dora", "adalora", "pissa", "milora", "milora+", "lora+", "rslora", "lora-fa", "vera", "ia3", "layernorm",
)  # fmt: skip
TARGETS = ["q_proj", "down_proj"]
RANK, ALPHA, TOKENS = 3, 5, 17


@dataclass
class Tiny:
    """A model of a family with its optimizer, and what the adapters added to the weights at the start."""

    family: str
    model: Any
    optimizer: torch.optim.Optimizer
    began: dict[str, Tensor]

    def step(self, number: int, before_step: Any, after_step: Any) -> None:
        """One step of a training, with a call where gradients stand and one where the weights have moved."""
        generator = torch.Generator().manual_seed(number)
        ids = torch.randint(0, TOKENS, (2, 6), generator=generator)
        self.model(input_ids=ids, labels=ids).loss.backward()
        before_step(number)
        self.optimizer.step()
        if self.family == "adalora":
            self.model.base_model.update_and_allocate(number)
        self.optimizer.zero_grad()
        after_step(number)

    def updates(self) -> dict[str, Tensor]:
        """ΔW of every module in float64, as PEFT itself builds it, less what it was at the start."""
        now = _added(self.model)
        return {name: value - self.began[name] for name, value in now.items()}


def tiny(family: str) -> Tiny:
    """A Llama of two blocks in float64, so that PEFT's own ΔW is exact enough to compare with."""
    from peft import get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    llama: Any = LlamaForCausalLM  # has no types
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        sizes = LlamaConfig(
            vocab_size=TOKENS, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=2, max_position_embeddings=16,
        )  # fmt: skip
        model: Any = get_peft_model(llama(sizes), _config(family)).double()
    if family.startswith("milora"):
        init_milora(model)
    began = _added(model)
    if not family.startswith(("milora", "pissa")):
        began = {name: torch.zeros_like(value) for name, value in began.items()}
    return Tiny(family, model, _optimizer(family, model), began)


def _config(family: str) -> Any:
    import peft

    if family == "adalora":
        ranks: dict[str, Any] = {"init_r": RANK, "target_r": 2, "tinit": 1, "tfinal": 1, "deltaT": 1, "total_step": 10}
        return peft.AdaLoraConfig(lora_alpha=ALPHA, target_modules=TARGETS, **ranks)
    if family == "vera":
        return peft.VeraConfig(r=RANK, target_modules=TARGETS)
    if family == "ia3":
        return peft.IA3Config(target_modules=TARGETS, feedforward_modules=["down_proj"])
    if family == "layernorm":
        return peft.LNTuningConfig(target_modules=["input_layernorm", "post_attention_layernorm"])
    how: dict[str, dict[str, Any]] = {
        "dora": {"use_dora": True}, "rslora": {"use_rslora": True}, "pissa": {"init_lora_weights": "pissa"},
    }  # fmt: skip
    return peft.LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=TARGETS, **how.get(family, {}))


def _optimizer(family: str, model: Any) -> torch.optim.Optimizer:
    from peft.optimizers import create_lorafa_optimizer, create_loraplus_optimizer

    if family.endswith("+"):
        made = create_loraplus_optimizer(model, torch.optim.AdamW, lr=1e-2, loraplus_lr_ratio=4)
    elif family == "lora-fa":
        made = create_lorafa_optimizer(model, RANK, ALPHA, lr=1e-2)
    else:
        made = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    optimizer: torch.optim.Optimizer = made
    return optimizer


def _added(model: Any) -> dict[str, Tensor]:
    """What every adapter adds, by the module's name; of families that add no matrix nothing."""
    found: dict[str, Tensor] = {}
    for name, layer in model.named_modules():
        if name.endswith(tuple(TARGETS)) and hasattr(layer, "get_delta_weight"):
            found[name] = layer.get_delta_weight("default").detach().clone()
    return found
