"""The model to adapt and its tokenizer: from a folder, from the hub, or the built-in one."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from learnscope.sources.hub import hub_reason
from learnscope.training.builtin import is_base_model, is_current, make_base_model
from learnscope.training.errors import TrainError, first_line
from learnscope.training.folders import BASE
from learnscope.training.settings.config import ModelConfig

Say = Callable[[str], None]


def load_model(
    config: ModelConfig, output_dir: Path, say: Say, progress: Any, *, resume: bool
) -> tuple[Any, Any, bool]:
    """A model, its tokenizer, and whether it is the built-in one, which is made in the output folder if necessary."""
    if config.model_name_or_path is None:
        path = output_dir / BASE
        if not (is_base_model(path) if resume else is_current(path)):
            if path.exists() and not is_base_model(path):
                raise TrainError(f"{path} is there and was not made here: name it as the model, or another output_dir")
            with progress("making the built-in model") as show:
                make_base_model(path, show)
        # the saved adapter names its base: an absolute path works from any folder
        return *_load(config, str(path.resolve()), say), True
    path = Path(config.model_name_or_path)
    if path.is_file():
        raise TrainError(f"config.model.model_name_or_path: {path} is a file; name the folder it is in")
    return *_load(config, config.model_name_or_path, say), is_base_model(path)


def _load(config: ModelConfig, name: str, say: Say) -> tuple[Any, Any]:
    from transformers import AutoTokenizer

    common = {"revision": config.revision, "trust_remote_code": config.trust_remote_code}
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, **common)
        model = _with_attention(name, config, common, say)
    except (OSError, ValueError, ImportError) as error:
        if isinstance(error, TrainError):
            raise
        where = "cannot be loaded" if Path(name).is_dir() else "there is no such folder here"
        reason = first_line(error) if Path(name).is_dir() else f"and {hub_reason(error)}"
        raise TrainError(f"model {name!r}: {where}, {reason}") from None
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return model, tokenizer


def _with_attention(name: str, config: ModelConfig, common: dict[str, Any], say: Say) -> Any:
    """The model with the attention asked for; flash attention falls back to sdpa, and sdpa to eager."""
    from transformers import AutoModelForCausalLM

    def load(attention: str) -> Any:
        half = torch.cuda.is_available() and torch.cuda.is_bf16_supported()
        dtype = getattr(torch, config.dtype or ("bfloat16" if half else "float32"))
        return AutoModelForCausalLM.from_pretrained(name, dtype=dtype, attn_implementation=attention, **common)

    attention = config.attn_implementation
    if attention != "flash_attention_2":
        return load(attention)
    reason = _why_no_flash(config)
    if reason is None:
        try:
            return load(attention)
        except (ImportError, ValueError) as error:  # not supported by the architecture, or a wrong package version
            reason = first_line(error)
    try:
        model = load("sdpa")
    except ValueError as error:
        if "sdpa" not in str(error).lower() and "scaled_dot_product" not in str(error):
            raise
        model, reason = load("eager"), f"{reason}; nor can sdpa"
    say(f"attention: {model.config._attn_implementation}, since flash_attention_2 cannot be used: {reason}")
    return model


def _why_no_flash(config: ModelConfig) -> str | None:
    if not torch.cuda.is_available():
        return "it needs a CUDA device"
    if importlib.util.find_spec("flash_attn") is None:
        return "the package flash_attn is not installed"
    if config.dtype == "float32":
        return "it computes in half precision and dtype is float32"
    return None
