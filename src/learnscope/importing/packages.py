"""Packages that read foreign files: imported when they are used, without moving random generators."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from learnscope.generators import unmoved_generators
from learnscope.store.errors import RunError


def needed(module: str, what: str, extra: str) -> Any:
    """A module of an optional package; if it is missing, the error says what to install."""
    try:
        with unmoved_generators():
            return import_module(module)
    except ImportError as error:
        package = module.split(".")[0]
        raise RunError(
            f"reading {what} needs {package}, of which {module} cannot be imported ({error}): "
            f"pip install 'learnscope[{extra}]'"
        ) from error


def with_version(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return package
