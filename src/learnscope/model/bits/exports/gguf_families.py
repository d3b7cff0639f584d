"""The families of models whose GGUF metadata and layout are known here: GPT-2, Llama, Qwen2 and Qwen3.

llama.cpp builds the computation from the family's name and a few numbers, so what these cannot say (another
activation, a scaled rotary embedding) is refused: the file would be read without an error and compute something else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from learnscope.model.bits.torchao_export import ExportError


@dataclass(frozen=True, slots=True)
class Family:
    """A kind of model that gguf knows."""

    architecture: str
    """Its name in `gguf.MODEL_ARCH`."""
    check: Callable[[Any], None]
    """Refuses a configuration that the metadata cannot say."""
    describe: Callable[[Any, Any], None]
    """Writes the numbers of a configuration with a `GGUFWriter`."""
    rotated_in_pairs: bool = False
    """Whether rows of query and key weights are reordered: llama.cpp rotates neighbours, transformers halves."""


def family_of(model: nn.Module) -> Family:
    """By the model's class; refuses one that is not known, with what is."""
    known = FAMILIES.get(type(model).__name__)
    if known is None or not type(model).__module__.startswith("transformers."):
        raise ExportError(
            f"{type(model).__name__}: its layout in GGUF is not known here; {', '.join(FAMILIES)} are. Export it as "
            "'packed', or as a 'compressed-tensors' folder if it is a model of transformers"
        )
    known.check(model.config)
    return known


def reordered(matrix: Tensor, heads: int) -> Tensor:
    """Rows of each head from [first half, second half] to neighbouring pairs, as llama.cpp's own converter does."""
    rows = matrix.shape[0]
    return matrix.reshape(heads, 2, rows // heads // 2, *matrix.shape[1:]).swapaxes(1, 2).reshape(matrix.shape)


def rotated_heads(name: str, config: Any) -> int | None:
    """How many heads the weight of this name has, if its rows are to be reordered."""
    if name.endswith("q_proj.weight"):
        return int(config.num_attention_heads)
    return int(config.num_key_value_heads) if name.endswith("k_proj.weight") else None


def _require(config: Any, **expected: tuple[Any, ...]) -> None:
    for name, allowed in expected.items():
        value = getattr(config, name, allowed[0])
        if value not in allowed:
            raise ExportError(
                f"{name}={value!r}: GGUF's metadata of {config.model_type} cannot say that, and it would be computed "
                f"as {allowed[0]!r}; export it as 'packed' or 'compressed-tensors'"
            )


def _check_gpt2(config: Any) -> None:
    _require(
        config, activation_function=("gelu_new", "gelu_pytorch_tanh"), scale_attn_weights=(True,),
        scale_attn_by_inverse_layer_idx=(False,), add_cross_attention=(False,),
    )  # fmt: skip


def _check_rotary(config: Any) -> None:
    _require(config, hidden_act=("silu",), mlp_bias=(False,), use_sliding_window=(False,))
    if config.model_type != "qwen2":
        _require(config, attention_bias=(False,))
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type", "default") != "default" or "rope_theta" not in rope:
        raise ExportError(
            f"rope_parameters={dict(rope)}: only the plain rotary embedding is written to GGUF here; export it as "
            "'packed' or 'compressed-tensors'"
        )


def _describe_gpt2(config: Any, writer: Any) -> None:
    writer.add_context_length(config.n_positions)
    writer.add_embedding_length(config.n_embd)
    writer.add_feed_forward_length(config.n_inner or 4 * config.n_embd)
    writer.add_block_count(config.n_layer)
    writer.add_head_count(config.n_head)
    writer.add_layer_norm_eps(config.layer_norm_epsilon)


def _describe_rotary(config: Any, writer: Any) -> None:
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(head)
    writer.add_rope_freq_base(float(config.rope_parameters["rope_theta"]))


FAMILIES = {
    "GPT2LMHeadModel": Family("GPT2", _check_gpt2, _describe_gpt2),
    "LlamaForCausalLM": Family("LLAMA", _check_rotary, _describe_rotary, rotated_in_pairs=True),
    "Qwen2ForCausalLM": Family("QWEN2", _check_rotary, _describe_rotary),
    "Qwen3ForCausalLM": Family("QWEN3", _check_rotary, _describe_rotary),
}
