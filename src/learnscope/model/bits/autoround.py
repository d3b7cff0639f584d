"""AutoRound through its authors' package `auto-round`: rounding and ranges tuned block by block by signed gradients.

Cheng et al. 2023, "Optimize Weight Rounding via Signed Gradient Descent for the Quantization of LLMs". All linear
layers of all blocks are quantised together, on a copy of the model, each block on the outputs of those before it.
Symmetric codes here reach from -2^(b-1) to 2^(b-1) - 1, and a scale may be negative: as the package has it.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from learnscope.model.bits.quantised_units import QuantisedTensor, find_units, is_conv1d
from learnscope.model.guard import preserve_rng
from learnscope.tensor.bits.quantize import Quantised, QuantiseError, Scheme, compute_dtype, grouped, ungrouped

ITERATIONS = 200
"""Steps for each block: the package's own number."""
_SEQUENCES = 8
"""In a batch: the package's own number."""
_DTYPES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
"""The package's names for the dtypes of scales."""


def tuned_by_autoround(
    model: nn.Module, batches: Sequence[Any], bits: int, scheme: Scheme
) -> dict[str, Quantised | None]:
    """The weights in the blocks of a Hugging Face `model` at `bits`, by name; the model stays as it is.

    None for a weight that the package leaves as it is, such as one whose dimensions 32 does not divide. It takes a
    second copy of the model.
    """
    if scheme.granularity == "tensor":
        raise QuantiseError("auto-round has a scale for each channel or group: give another granularity than 'tensor'")
    if scheme.scale_dtype not in _DTYPES:
        raise QuantiseError(f"auto-round has no scales in {scheme.scale_dtype}: give float32, float16 or bfloat16")
    sequences = _sequences(batches)
    build = _package()
    wanted = [t for unit in find_units(model) for t in unit.tensors if _is_linear(model.get_submodule(t.module))]
    # it sets its own seed, and draws which sequences a step sees
    with preserve_rng(), torch.enable_grad():
        compressor = build(
            copy.deepcopy(model), tokenizer=_no_tokenizer(), bits=bits, sym=scheme.is_symmetric(bits),
            group_size=scheme.group_size if scheme.granularity == "group" else -1, iters=ITERATIONS,
            dataset=[{"input_ids": part} for part in sequences.split(_SEQUENCES)], seqlen=sequences.shape[1],
            nsamples=len(sequences), batch_size=min(_SEQUENCES, len(sequences)), device_map="cpu", amp=False,
            scale_dtype=_DTYPES[scheme.scale_dtype], enable_torch_compile=False,
        )  # fmt: skip
        tuned: nn.Module = compressor.quantize()[0]
    return {tensor.name: _read(tensor, model, tuned, bits, scheme) for tensor in wanted}


def _read(tensor: QuantisedTensor, model: nn.Module, tuned: nn.Module, bits: int, scheme: Scheme) -> Quantised | None:
    """Codes, scales and zero points of a layer that the package has tuned; None if it has not."""
    module: Any = tuned.get_submodule(tensor.module)
    scale = getattr(module, "scale", None)
    if not isinstance(scale, Tensor):
        return None
    dtype = model.get_parameter(tensor.name).dtype
    wide = compute_dtype(dtype)
    matrix = tensor.as_matrix(module.weight.detach()).to(wide)
    stored = scale.reshape(scheme.scale_shape(*tensor.matrix_shape)).to(scheme.scale_dtype)
    levels = (grouped(matrix, scheme) / stored.to(wide).unsqueeze(-1)).round()
    if scheme.is_symmetric(bits):
        codes = ungrouped(levels, matrix).clamp_(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        return Quantised(codes.to(torch.int8), stored, None, bits, scheme, dtype)
    zero = module.zp.reshape(stored.shape).round().to(torch.uint8)
    codes = ungrouped(levels + zero.unsqueeze(-1), matrix).clamp_(0, 2**bits - 1)
    return Quantised(codes.to(torch.uint8), stored, zero, bits, scheme, dtype)


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or is_conv1d(module)


def _sequences(batches: Sequence[Any]) -> Tensor:
    """Whole batches of the sequences, cut to the length of the shortest, as the package needs them."""
    tokens = [batch.get("input_ids") if isinstance(batch, Mapping) else None for batch in batches]
    if not all(isinstance(part, Tensor) and part.ndim == 2 for part in tokens):
        raise QuantiseError("auto-round tunes language models: batches of the form {'input_ids': [sequences, tokens]}")
    found = [part for part in tokens if isinstance(part, Tensor)]
    length = min(part.shape[1] for part in found)
    sequences = torch.cat([part[:, :length] for part in found]).cpu()
    return sequences[: max(len(sequences) // _SEQUENCES * _SEQUENCES, min(len(sequences), _SEQUENCES))]


def _no_tokenizer() -> Any:
    """One with two words, since the package asks for a tokenizer; tokens are given as they are."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    build: Any = PreTrainedTokenizerFast  # its stubs have no types
    return build(tokenizer_object=words, unk_token="a")


def _package() -> Any:
    try:
        return importlib.import_module("auto_round").AutoRound
    except ImportError as error:
        raise QuantiseError(
            f"method='autoround' needs the package auto-round ({error}): pip install 'learnscope[autoround]'"
        ) from error
