"""Models in fewer bits against torchao; sizes and operations against transformers and fvcore."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from scipy import special
from sklearn.metrics import accuracy_score, log_loss
from torch import Tensor, nn
from torchao.quantization.quant_primitives import (
    MappingType,
    choose_qparams_affine,
    dequantize_affine,
    quantize_affine,
)

import learnscope as ls
from probes.bits.bit_models import token_logits, trained_gpt2
from probes.reference import ConvNet, mlp, tiny_gpt2, tokens
from references.holding import Held, holds, package
from references.table import models
from references.variants import compared


def rounded(weight: Tensor, bits: int) -> Tensor:
    """A weight [out, in] as torchao rounds it, a scale for each row: symmetric from 4 bits on, with a zero below."""
    symmetric, most = bits > 3, 2 ** (bits - 1) - 1
    ends: dict[str, Any] = {"quant_min": -most if symmetric else 0, "quant_max": most if symmetric else 2**bits - 1}
    kind = MappingType.SYMMETRIC if symmetric else MappingType.ASYMMETRIC
    dtype = torch.int8 if symmetric else torch.uint8
    block, weight = (1, weight.shape[1]), weight.detach().float().contiguous()
    scale, zero = choose_qparams_affine(weight, kind, block, dtype, **ends)
    codes = quantize_affine(weight, block, scale, zero, dtype, **ends)
    found: Tensor = dequantize_affine(codes, block, scale, zero, dtype, **ends)
    return found


def with_bits(model: nn.Module, bits: Mapping[str, int]) -> nn.Module:
    """A copy whose modules of these names have weights rounded by torchao; GPT-2's Conv1D stores [in, out]."""
    other = copy.deepcopy(model).eval()
    with torch.no_grad():
        for name, width in bits.items():
            for module in other.get_submodule(name).modules():
                weight = getattr(module, "weight", None)
                if weight is not None and weight.ndim == 2:
                    turned = type(module).__name__ == "Conv1D"
                    new = rounded(weight.T if turned else weight, width)
                    weight.copy_(new.T if turned else new)
    return other


@pytest.fixture(scope="module")
def gpt2() -> tuple[nn.Module, list[dict[str, Tensor]], ls.Run]:
    model, batches = trained_gpt2(layers=2)
    probes: list[ls.Probe] = [ls.BitSensitivity(bits=(8, 4, 2)), ls.BitWidths(bits=(8, 4, 2))]
    return model, batches, ls.audit(model, batches, probes=probes, strict=True)


UNITS = [f"transformer.h.{layer}.{part}" for layer in range(2) for part in ("attn", "mlp")]


@holds(models.TORCHAO, models.STORED)
def test_configurations(held: Held, gpt2: tuple[nn.Module, list[dict[str, Tensor]], ls.Run]) -> None:
    model, batches, run = gpt2
    own, targets, _ = token_logits(copy.deepcopy(model).eval(), batches)
    labels = np.arange(own.shape[1])
    loss = log_loss(targets, special.softmax(own, 1), labels=labels)
    for bits in (8, 4, 2):
        other, _, _ = token_logits(with_bits(model, dict.fromkeys(UNITS, bits)), batches)
        theirs = compared(own, other, targets)
        theirs["loss"] = log_loss(targets, special.softmax(other, 1), labels=labels)
        theirs |= {"loss_change": theirs["loss"] - loss, "perplexity": np.exp(theirs["loss"])}
        theirs["accuracy"] = accuracy_score(targets, other.argmax(1))
        for name, value in theirs.items():
            held(run, f"BitWidths.{name}", {f"uniform_{bits}": float(value)}, "configuration")
        footprint = model.get_memory_footprint(return_buffers=False)
        held(run, "BitWidths.original_bytes", {f"uniform_{bits}": footprint}, "configuration")


@holds(models.TORCHAO_UNITS)
def test_single_units(held: Held, gpt2: tuple[nn.Module, list[dict[str, Tensor]], ls.Run]) -> None:
    model, batches, run = gpt2
    own, _, _ = token_logits(copy.deepcopy(model).eval(), batches)
    for unit, bits in ((UNITS[0], 4), (UNITS[3], 2), (UNITS[2], 8)):
        other, _, _ = token_logits(with_bits(model, {unit: bits}), batches)
        for name, value in compared(own, other).items():
            held(run, f"BitSensitivity.{name}", {unit: value}, "unit", bits=bits)


@holds(models.TORCHAO_CLASSES)
def test_classes_without_an_attack(held: Held) -> None:
    """A row of zeros has no scale; a row with one large entry leaves the others at 0."""
    torch.manual_seed(0)
    model, x = mlp(6, 16, 3), torch.randn(40, 6)
    with torch.no_grad():
        model[0].weight[0] = 0.0
        model[0].weight[1, 2] = 50.0
    y = model(x).argmax(1).where(torch.rand(40) < 0.7, torch.tensor(0))
    run = ls.audit(model, [(x, y)], probes=[ls.BitRobustness(bits=(4, 2), steps=1, examples=40)], strict=True)
    for bits in (4, 2):
        with torch.no_grad():
            p = special.softmax(with_bits(model, {"0": bits, "2": bits})(x).double().numpy(), 1)
        held(run, "BitRobustness.loss", {"clean": log_loss(y, p, labels=[0, 1, 2])}, "bits", bits=bits)
        held(run, "BitRobustness.accuracy", {"clean": accuracy_score(y, p.argmax(1))}, "bits", bits=bits)


@pytest.mark.parametrize(("tie", "dtype"), [(True, torch.float32), (False, torch.bfloat16)])
@holds(models.SIZES)
def test_sizes(held: Held, tie: bool, dtype: torch.dtype) -> None:
    model = tiny_gpt2(tie_word_embeddings=tie).to(dtype)
    batch = {"input_ids": tokens(2, 6)}
    run = ls.audit(model, [batch], probes=[ls.MemoryUse()], strict=True)
    held(run, "MemoryUse.parameters", model.num_parameters())
    held(run, "MemoryUse.model_bytes", model.get_memory_footprint())


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["linear", "convolution"])
@holds(models.FLOPS)
def test_operations(held: Held, kind: str) -> None:
    if kind == "linear":
        model, x = mlp(6, 32, 5), torch.randn(7, 6)
    else:  # without the batch norm, which fvcore counts and torch does not
        model, x = ConvNet(), torch.randn(7, 1, 9, 9)
        model.bn = nn.Identity()
    probe = ls.InferenceSpeed(batches=(), seconds=0.01, repeats=3)
    run = ls.audit(model, [(x, torch.zeros(7).long())], probes=[probe], strict=True)
    counted = package("fvcore.nn").FlopCountAnalysis(model.eval(), x).unsupported_ops_warnings(False)
    held(run, "InferenceSpeed.flops", 2 * counted.total(), main=True)
