"""Tiny Llamas with a real PEFT adapter of every family, and their updates built outright in float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import peft
import torch
from peft.optimizers import create_loraplus_optimizer
from peft.optimizers.lorafa import create_lorafa_optimizer
from torch import Tensor, nn

from learnscope.model.adapters.start import init_milora, remember_start
from seeds.tiny import language_model, token_batches

TARGETS = ["q_proj", "v_proj", "down_proj"]
RANK, ALPHA = 4, 6
ADDED = ("lora", "rslora", "lora+", "lora-fa", "adalora", "pissa", "milora", "milora+", "vera")
"""Families whose merged weight is W + ΔW."""
FAMILIES = (*ADDED, "dora", "ia3", "layernorm")


@dataclass
class Adapted:
    """A model, its optimizer, and what it was before: the plain weights and the factors at the start."""

    family: str
    model: Any
    optimizer: torch.optim.Optimizer
    base: dict[str, Tensor]
    began: dict[str, Tensor]

    def train(self, steps: int = 10) -> list[Tensor]:
        losses = []
        for step, batch in enumerate(token_batches(steps)):
            loss = self.model(**batch).loss
            loss.backward()
            self.optimizer.step()
            if self.family == "adalora":
                self.model.base_model.update_and_allocate(step)
            self.optimizer.zero_grad()
            losses.append(loss.detach().clone())
        return losses


def config(family: str, **options: Any) -> Any:
    lora: dict[str, Any] = {"r": RANK, "lora_alpha": ALPHA, "target_modules": TARGETS, **options}
    if family == "adalora":
        ranks = {"init_r": RANK, "target_r": 2, "tinit": 2, "tfinal": 2, "deltaT": 1, "total_step": 14}
        return peft.AdaLoraConfig(lora_alpha=ALPHA, target_modules=TARGETS, **ranks)
    if family == "vera":
        return peft.VeraConfig(r=RANK, target_modules=TARGETS, d_initial=0.5)
    if family == "ia3":
        return peft.IA3Config(target_modules=TARGETS, feedforward_modules=["down_proj"])
    if family == "layernorm":
        return peft.LNTuningConfig(target_modules=["input_layernorm", "norm"])
    extra = {"rslora": {"use_rslora": True}, "dora": {"use_dora": True}, "pissa": {"init_lora_weights": "pissa"}}
    return peft.LoraConfig(**{**lora, **extra.get(family, {})})


def adapted(family: str, **options: Any) -> Adapted:
    torch.manual_seed(4)
    plain = language_model()
    base = {name: value.detach().double().clone() for name, value in plain.state_dict().items()}
    model = peft.get_peft_model(plain, config(family, **options))
    if family.startswith("milora"):
        init_milora(model)
    if family == "pissa":
        remember_start(model)
    optimizer: torch.optim.Optimizer
    if family in ("lora+", "milora+"):
        optimizer = create_loraplus_optimizer(model, torch.optim.AdamW, lr=1e-2, loraplus_lr_ratio=8)
    elif family == "lora-fa":
        optimizer = create_lorafa_optimizer(model, RANK, ALPHA, lr=1e-2)
    else:
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    began = {name: value.detach().double().clone() for name, value in model.state_dict().items()}
    return Adapted(family, model, optimizer, base, began)


def scopes(one: Adapted) -> list[str]:
    """The adapted weights of the plain model, without `.weight`."""
    return [name.removesuffix(".weight") for name in one.base if any(f".{target}." in name for target in TARGETS)]


def update(one: Adapted, scope: str, adapter: str = "default") -> Tensor:
    """ΔW in float64, from PEFT's parameters and the formulas of the papers."""
    layer = one.model.get_submodule(f"base_model.model.{scope}")
    if one.family == "vera":
        b = layer.vera_B[adapter].double()[: layer.out_features]
        a = layer.vera_A[adapter].double()[:, : layer.in_features]
        return (torch.diag(layer.vera_lambda_b[adapter].double()) @ b
                @ torch.diag(layer.vera_lambda_d[adapter].double()) @ a).detach()  # fmt: skip
    if one.family == "adalora":
        middle = torch.diag(layer.lora_E[adapter].double().flatten())
        product = layer.lora_B[adapter].double() @ middle @ layer.lora_A[adapter].double()
        return (product * ALPHA / (RANK + 1e-5)).detach()
    scale = ALPHA / RANK**0.5 if one.family == "rslora" else ALPHA / RANK
    product = layer.lora_B[adapter].weight.double() @ layer.lora_A[adapter].weight.double()
    if one.family in ("pissa", "milora", "milora+"):
        key = f"base_model.model.{scope}.lora_%s.{adapter}.weight"
        product = product - one.began[key % "B"] @ one.began[key % "A"]
    return (scale * product).detach()


def layer_at(one: Adapted, scope: str) -> Any:
    found: nn.Module = one.model.get_submodule(f"base_model.model.{scope}")
    return found
