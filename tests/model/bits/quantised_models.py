"""Tiny models of many families, built from their configurations."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

TOKENS = torch.arange(12).reshape(2, 6) % 40
_SMALL: dict[str, Any] = {"vocab_size": 40, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
_LLAMA: dict[str, Any] = {
    **_SMALL, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 32,
}  # fmt: skip


class ConvNet(nn.Module):
    """Convolutions of both directions, without blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 6, 3)
        self.norm = nn.BatchNorm2d(6)
        self.up = nn.ConvTranspose2d(6, 4, 2)
        self.fc = nn.Linear(4, 5)

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.fc(self.up(self.norm(self.first(images)).relu()).mean((2, 3)))
        return found


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, 6)
        self.lstm = nn.LSTM(6, 5, num_layers=2, batch_first=True)
        self.out = nn.Linear(5, 40)

    def forward(self, tokens: Tensor) -> Tensor:
        found: Tensor = self.out(self.lstm(self.embed(tokens))[0])
        return found


def _gpt2(**options: Any) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    given = {**_SMALL, "n_layer": 2, "n_embd": 24, "n_head": 2, "n_positions": 16, **options}
    return GPT2LMHeadModel(GPT2Config(**given))


def _transformers(kind: str, **options: Any) -> nn.Module:
    import transformers

    config, model = getattr(transformers, f"{kind}Config"), None
    for end in ("ForCausalLM", "ForSequenceClassification", "ForImageClassification", "Model"):
        model = model or getattr(transformers, f"{kind}{end}", None)
    assert model is not None
    built: nn.Module = model(config(**options))
    return built


def _bert() -> nn.Module:
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 40}
    from transformers import BertConfig, BertForSequenceClassification

    return BertForSequenceClassification(BertConfig(vocab_size=40, max_position_embeddings=16, **sizes))


def _t5() -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_decoder_layers": 1, "num_heads": 2}
    return T5ForConditionalGeneration(T5Config(vocab_size=40, decoder_start_token_id=0, **sizes))


def _vit() -> nn.Module:
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    return _transformers("ViT", image_size=8, patch_size=4, num_labels=3, **sizes)


def _lora() -> nn.Module:
    from peft import LoraConfig, get_peft_model

    model: Any = _gpt2()
    settings = LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True, init_lora_weights=False)
    return get_peft_model(model, settings)


def _gpt_oss() -> nn.Module:
    return _transformers("GptOss", **_LLAMA, num_local_experts=3, num_experts_per_tok=2)


BUILDERS: dict[str, Callable[[], nn.Module]] = {
    "gpt2": _gpt2,
    "llama": lambda: _transformers("Llama", **_LLAMA),
    "qwen2": lambda: _transformers("Qwen2", **_LLAMA, tie_word_embeddings=True),
    "qwen3": lambda: _transformers("Qwen3", **_LLAMA),
    "bert": _bert,
    "t5": _t5,
    "vit": _vit,
    "mixtral": lambda: _transformers("Mixtral", **_LLAMA, num_local_experts=3),
    "gpt_oss": _gpt_oss,
    "lora": _lora,
    "encoder": lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 24, batch_first=True), 2),
    "sequential": lambda: nn.Sequential(nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 3)),
    "conv": ConvNet,
    "lstm": Recurrent,
}


def build(family: str) -> nn.Module:
    """A new model of the family, in eval mode, always with the same weights."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = BUILDERS[family]().eval()
        for parameter in model.parameters():
            if parameter.ndim > 1:  # torch.empty in some experts, zeros in others
                parameter.data.normal_(0, 0.2)
    return model


@cache
def inputs(family: str) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    if family == "t5":
        return {"input_ids": TOKENS, "decoder_input_ids": TOKENS}
    if family == "vit":
        return {"pixel_values": torch.randn(2, 3, 8, 8, generator=generator)}
    shapes = {"sequential": (4, 6), "conv": (2, 3, 6, 6), "encoder": (2, 5, 16)}
    if family in shapes:
        return {"": torch.randn(*shapes[family], generator=generator)}
    return {"": TOKENS} if family == "lstm" else {"input_ids": TOKENS}


@torch.no_grad()
def outputs(model: nn.Module, family: str) -> Tensor:
    given = inputs(family)
    made: Any = model(given[""]) if "" in given else model(**given)
    found: Tensor = made if isinstance(made, Tensor) else made.logits
    return found.clone()
