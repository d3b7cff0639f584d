"""Floating-point operations of a call, counted as it runs."""

from __future__ import annotations

from collections.abc import Callable

from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode


def counted_flops(run: Callable[[], object]) -> int | str:
    """A multiply-add counts as two; only matrix products, convolutions and attention are counted.

    Attention runs as plain matrix products, since the counter does not know the CPU's fused kernel; a causal mask then
    saves nothing, and all T² pairs are counted. If nothing could be counted, the reason as text.
    """
    counter = FlopCounterMode(display=False)
    try:
        with counter, sdpa_kernel(SDPBackend.MATH):
            run()
    except (RuntimeError, TypeError, NotImplementedError) as error:  # an operation that the counter does not support
        return f"the operations could not be counted: {type(error).__name__}: {str(error).splitlines()[0]}"
    total = int(counter.get_total_flops())
    return total or "the counter knows none of the model's operations"
