"""A PEFT model of any of the twelve families, initialised as its paper says, and saved so that PEFT can load it."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from learnscope.model.adapters.start import AdapterError, init_milora, lora_layers, remember_start, start_of
from learnscope.store.files import write_atomically
from learnscope.training.errors import TrainError, first_line
from learnscope.training.families import SPLIT_AT_START, family_of
from learnscope.training.settings.config import PeftConfig

FEED_FORWARD = ("down", "fc2", "c_proj", "dense_4h", "wo")
PLACEHOLDER_STEPS = 1_000_000
"""AdaLoRA asks for the number of steps before the trainer knows it; see `adalora.fit_schedule`."""


def adapt(model: Any, config: PeftConfig) -> Any:
    """`model` with a new adapter, or with the saved one that the configuration names."""
    import peft

    family = family_of(config.type)
    try:
        if config.adapter_name_or_path is not None:
            return _continued(model, config, family)
        adapted = peft.get_peft_model(model, adapter_config(model, config))
        if family in ("milora", "milora+"):
            init_milora(adapted)
        elif family == "pissa":
            remember_start(adapted)
    except (AdapterError, ValueError, OSError) as error:
        if isinstance(error, TrainError):
            raise
        raise TrainError(f"config.peft (type {family}): {first_line(error)}") from None
    return adapted


def adapter_config(model: Any, config: PeftConfig) -> Any:
    """PEFT's own configuration."""
    import peft

    family, task = family_of(config.type), "CAUSAL_LM"
    targets: Any = config.target_modules if config.target_modules not in (None, ["all-linear"]) else "all-linear"
    if family == "layernorm":
        norms = {name.rpartition(".")[2] for name, module in model.named_modules() if "Norm" in type(module).__name__}
        return peft.LNTuningConfig(target_modules=config.target_modules or sorted(norms), task_type=task)
    if family == "ia3":
        if config.target_modules is None:
            return peft.IA3Config(task_type=task)
        # the input of feed-forward layers is scaled, and the output of others
        forward = [name for name in config.target_modules if any(part in name for part in FEED_FORWARD)]
        return peft.IA3Config(task_type=task, target_modules=config.target_modules, feedforward_modules=forward)
    if family == "vera":
        return peft.VeraConfig(
            r=config.r, vera_dropout=config.lora_dropout, d_initial=config.d_initial, target_modules=targets,
            task_type=task,
        )  # fmt: skip
    alpha = int(config.lora_alpha) if float(config.lora_alpha).is_integer() else config.lora_alpha
    common = {"lora_alpha": alpha, "lora_dropout": config.lora_dropout, "target_modules": targets}
    if family == "adalora":
        target = config.target_r or config.r
        return peft.AdaLoraConfig(
            **common, task_type=task, target_r=target, init_r=config.init_r or max(target + target // 2, target + 1),
            orth_reg_weight=config.orth_reg_weight, total_step=PLACEHOLDER_STEPS,
        )  # fmt: skip
    kinds: dict[str, dict[str, Any]] = {
        "rslora": {"use_rslora": True},
        "dora": {"use_dora": True},
        "pissa": {"init_lora_weights": "pissa"},
    }
    return peft.LoraConfig(**common, r=config.r, task_type=task, **kinds.get(family, {}))


def _continued(model: Any, config: PeftConfig, family: str) -> Any:
    """A saved adapter, to be trained further; its own configuration decides its rank and scaling."""
    import peft

    path = str(config.adapter_name_or_path)
    if family in SPLIT_AT_START or family == "adalora":
        raise TrainError(
            f"config.peft.adapter_name_or_path: {family} cannot continue a saved adapter"
            + ("" if family == "adalora" else "; to train it further, use --config.peft.type lora")
        )
    saved = peft.PeftConfig.from_pretrained(path)
    expected = adapter_config(model, config)
    for name in ("peft_type", "use_dora", "use_rslora"):
        if getattr(saved, name, False) != getattr(expected, name, False):
            raise TrainError(f"config.peft.type is {family}, but {path} holds {name}={getattr(saved, name, False)!s}")
    return peft.PeftModel.from_pretrained(model, path, is_trainable=True)


def save_adapter(model: Any, tokenizer: Any, family: str, folder: Path) -> None:
    """Write PEFT's two files, and the tokenizer.

    PiSSA and MiLoRA train on a base from which the adapter's start was subtracted, which nobody else has. Their
    adapters are saved as what training added to the original weights, B A − B₀ A₀: a plain LoRA of twice the rank.
    """
    if family in SPLIT_AT_START:
        _save_difference(model, folder)
    else:
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _save_difference(model: Any, folder: Path) -> None:
    from peft import get_peft_model_state_dict

    tensors = get_peft_model_state_dict(model)
    for name, layer in lora_layers(model):
        start, scaling = start_of(layer, "default"), layer.scaling["default"]
        assert start is not None, "kept when the adapter was made"
        up, down = f"{name}.lora_B.weight", f"{name}.lora_A.weight"
        left = (start.left / scaling).to(tensors[up].dtype)
        tensors[up] = torch.cat([tensors[up], -left.to(tensors[up].device)], dim=1)
        tensors[down] = torch.cat([tensors[down], start.right.to(tensors[down])], dim=0)
    config = deepcopy(model.peft_config["default"])
    config.r, config.lora_alpha = 2 * config.r, 2 * config.lora_alpha  # the same scaling
    config.init_lora_weights, config.inference_mode = True, True
    saved = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_atomically(folder / "adapter_model.safetensors", lambda path: save_file(saved, path, {"format": "pt"}))
    config.save_pretrained(folder)
