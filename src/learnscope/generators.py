"""The random generators that a training loop draws from, and that nothing of ours may move."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def unmoved_generators() -> Iterator[None]:
    """Restore the random state of Python and, where they are imported, of NumPy and of torch on the CPU.

    For what runs outside the guard: the first import of some packages draws a random number.
    """
    numpy, torch = sys.modules.get("numpy.random"), sys.modules.get("torch")
    python = random.getstate()
    of_numpy = None if numpy is None else numpy.get_state()
    of_torch = None if torch is None else torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(python)
        if numpy is not None:
            numpy.set_state(of_numpy)
        if torch is not None:
            torch.set_rng_state(of_torch)
