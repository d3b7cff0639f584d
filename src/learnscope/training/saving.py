"""The trained adapter, saved so that PEFT loads it onto the model that it was trained from."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from learnscope.model.adapters.start import lora_layers, start_of
from learnscope.store.files import write_atomically
from learnscope.training.families import SPLIT_AT_START


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
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_atomically(folder / "adapter_model.safetensors", lambda path: save_file(whole, path, {"format": "pt"}))
    config.save_pretrained(folder)
