"""AWQ: input features that carry more are given finer steps, by factors that multiply the weight before it is rounded.

Lin, Tang, Tang, Yang, Xiao, Dang and Han 2023, "AWQ: Activation-aware Weight Quantization for LLM Compression and
Acceleration": s = mean|x|^a, divided by √(max s · min s), and w' = Q(w·s)/s, with a of 0, 0.05, …, 1 by the least
squared error of the layer's outputs; a = 0 is round-to-nearest, so the error is never above its.

The factors 1/s are stored with the weight, one for each input feature, and count in its bytes: `Quantised.inputs`. The
paper folds them into the norm or the weight before, which holds only where all readers of that output agree on them.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from learnscope.tensor.bits.quantize import Quantised, Scheme, checked_matrix, compute_dtype, dequantize, quantize
from learnscope.tensor.bits.statistics import InputStatistics

EXPONENTS = tuple(step / 20 for step in range(21))


@torch.no_grad()
def quantize_awq(weight: Tensor, bits: int, scheme: Scheme, inputs: InputStatistics) -> Quantised:
    """`weight` [out, in] in `bits` (2 to 8) with a factor for each input feature; `scheme` has `input_scales`."""
    matrix = checked_matrix(weight)
    wide = matrix.to(compute_dtype(matrix.dtype)).contiguous()  # as it is read many times
    mean = inputs.magnitude / max(inputs.tokens, 1)
    plain = best = quantize(matrix, bits, scheme)
    least = float("inf")
    for exponent in EXPONENTS:
        factors = input_factors(mean, exponent, scheme)
        scaled = wide / factors.to(wide.dtype)
        if not bool(scaled.isfinite().all()):
            continue  # entries near the largest that the dtype can hold
        made = replace(quantize(scaled, bits, scheme), inputs=factors, dtype=matrix.dtype)
        error = float(inputs.output_error(dequantize(made).to(wide.dtype) - wide, wide.dtype).sum(dtype=torch.float64))
        if error < least:
            best, least = made, error
    # the search's errors have the weight's own precision: the promise is held by float64
    ours, theirs = (float(inputs.output_error(dequantize(each) - matrix).sum()) for each in (best, plain))
    return best if ours < theirs else plain


def input_factors(mean: Tensor, exponent: float, scheme: Scheme) -> Tensor:
    """1/s of every input feature, as stored; s is 1e-4 at least, as in the authors' program."""
    scales = mean.pow(exponent).clamp(min=1e-4)
    return ((scales.max() * scales.min()).sqrt() / scales).to(scheme.scale_dtype)
