"""Whether `torch.compile` works on this machine; tried once in a process."""

from __future__ import annotations

import functools
import warnings

import pytest
import torch


@functools.cache
def why_not_compiled() -> str | None:
    """The reason why inductor does not make working code here, such as a missing C++ compiler; None if it does."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            doubled = torch.compile(lambda x: x * 2 + 1, fullgraph=True)(torch.arange(8.0))
    except Exception as error:  # noqa: BLE001  (a missing compiler surfaces as any of a dozen types)
        return f"torch.compile does not work here ({type(error).__name__}: {str(error).strip().splitlines()[0][:120]})"
    return None if doubled.tolist() == [2 * i + 1 for i in range(8)] else "torch.compile gives wrong numbers here"


def needs_compiler() -> None:
    """Skip the test that runs, with the reason, where nothing can be compiled."""
    if (reason := why_not_compiled()) is not None:
        pytest.skip(reason)
