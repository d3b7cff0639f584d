"""Optional packages: imported when needed; if one is missing, the error says how to install it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from learnscope.store.backend import RunError


def load(module: str, purpose: str) -> Any:
    """The module, or an error that says what to install."""
    try:
        return import_module(module)
    except ImportError as error:
        package = module.split(".")[0]
        raise RunError(f"{purpose} needs {package}, which is not installed: pip install learnscope[sql]") from error
