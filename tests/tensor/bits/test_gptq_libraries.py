"""GPTQ and AWQ against other projects' own programs, layer by layer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from learnscope.tensor.bits.awq import EXPONENTS, input_factors, quantize_awq
from learnscope.tensor.bits.gptq import quantize_gptq
from learnscope.tensor.bits.quantize import Granularity, Scheme, dequantize, quantize
from learnscope.tensor.bits.statistics import InputStatistics


def layer(outputs: int = 24, inputs: int = 256) -> tuple[Tensor, Tensor]:
    """A weight and correlated inputs."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(outputs, inputs, generator=generator)
    mixing = torch.randn(inputs, inputs, generator=generator) / inputs**0.5
    return weight, torch.randn(600, inputs, generator=generator) @ mixing


def output_error(weight: Tensor, made: Tensor, x: Tensor) -> Tensor:
    return ((made.double() - weight.double()) @ x.double().T).square().sum(1)


@pytest.mark.soak
@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize("granularity", ["channel", "group"])
def test_intel_neural_compressor(granularity: Granularity, act_order: bool) -> None:
    """The same weights but for near ties, which float32 decides and which pass their difference on to later columns.

    Asymmetric, where the two grids are the same (its symmetric one has a code more below 0), and groups of a lazy
    block's 128 columns (its scales of groups inside a block are those of weights that are not up to date).
    """
    package: Any = pytest.importorskip("neural_compressor.torch.algorithms.weight_only.gptq")
    weight, x = layer()
    for bits in (2, 3, 4, 8):
        theirs = package.GPTQ(nn.Linear(256, 24), weight.clone())
        theirs.add_batch(x, None)
        asked = {
            "dtype": "int",
            "bits": bits,
            "sym": False,
            "perchannel": True,
            "mse": False,
            "double_quant_sym": False,
        }
        theirs.quantizer.configure(asked | {"use_double_quant": False, "group_size": 128})
        group = 128 if granularity == "group" else -1
        made = theirs.fasterquant(
            weight.clone(), groupsize=group, act_order=act_order, static_groups=act_order and group > 0
        )[-1]
        scheme = Scheme(False, granularity, group_size=128)
        ours = dequantize(quantize_gptq(weight, bits, scheme, InputStatistics.of(x), act_order=act_order))
        nearest = dequantize(quantize(weight, bits, scheme))
        updated = output_error(weight, made, x) < output_error(weight, nearest, x)
        assert updated.double().mean() > 0.9
        close = ((ours - made)[updated].abs() < 1e-5).double().mean()
        ratio = output_error(weight, ours, x)[updated].sum() / output_error(weight, made, x)[updated].sum()
        print(
            f"{granularity} act_order={act_order} {bits} bits: {float(close):.4f} equal, error ratio {float(ratio):.6f}"
        )
        assert close > 0.98
        assert float(ratio) == pytest.approx(1, abs=2e-3)


def test_torchao_s_awq_factors() -> None:
    """Its observer's factors are ours for the exponent that it found; on our grid none of its exponents is better."""
    from torchao.prototype.awq.core import AWQObserver
    from torchao.quantization import Int8WeightOnlyConfig

    weight, x = layer()
    x = x * torch.logspace(-1, 1, x.shape[1])
    statistics, scheme = InputStatistics.of(x), Scheme(input_scales=True)
    observer: Any = AWQObserver(weight, None, Int8WeightOnlyConfig())
    observer(x, None)
    theirs = observer.calculate_qparams().double()
    mean = statistics.magnitude / statistics.tokens
    exponent = round(float((theirs.log().max() - theirs.log().min()) / (mean.log().max() - mean.log().min())), 4)
    assert exponent in EXPONENTS
    assert exponent > 0
    torch.testing.assert_close(1 / input_factors(mean, exponent, scheme).double(), theirs, rtol=1e-4, atol=0)
    ours = output_error(weight, dequantize(quantize_awq(weight, 8, scheme, statistics)), x).sum()
    by_theirs = dequantize(quantize((weight * theirs).float(), 8)) / theirs
    assert ours <= output_error(weight, by_theirs, x).sum() * (1 + 1e-4)
