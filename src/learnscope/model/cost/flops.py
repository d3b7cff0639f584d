"""Floating-point operations of a call, counted as it runs."""

from __future__ import annotations

from collections.abc import Callable

from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode


def counted_flops(run: Callable[[], object]) -> int | str:
    """A multiplication and an addition are two; only products of matrices, convolutions and attention count.

    Attention is run as plain products of matrices, since the counter does not know the CPU's fused kernel; a causal
    mask then saves nothing, and all T² pairs are counted. The reason, as text, where nothing could be counted.
    """
    counter = FlopCounterMode(display=False)
    try:
        with counter, sdpa_kernel(SDPBackend.MATH):
            run()
    except (RuntimeError, TypeError, NotImplementedError) as error:  # what the counter's dispatch does not support
        return f"the operations could not be counted: {type(error).__name__}: {str(error).splitlines()[0]}"
    total = int(counter.get_total_flops())
    return total or "the counter knows none of the model's operations"
