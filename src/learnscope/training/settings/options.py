"""All options, read from the configuration's classes: names, types, defaults and docstrings."""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
from dataclasses import MISSING, dataclass, fields
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from learnscope.training.settings.config import Config


@dataclass(frozen=True, slots=True)
class Option:
    """One option: `section.name`, as in the file, and `--config.section.name` on the command line."""

    section: str
    name: str
    kind: Any
    default: Any
    doc: str

    @property
    def key(self) -> str:
        return f"{self.section}.{self.name}"

    @property
    def flag(self) -> str:
        return f"--config.{self.key}"

    @property
    def is_list(self) -> bool:
        return any(get_origin(kind) is list for kind in _alternatives(self.kind))

    @property
    def wanted(self) -> str:
        return wanted(self.kind)


@dataclass(frozen=True, slots=True)
class Flag:
    """One of the short flags for tracking."""

    name: str
    doc: str
    value: str | None = None
    sets: tuple[str, ...] = ()


FLAGS = (
    Flag("enable_tracking", "Track both spectra and gradients of the adapter.",
         sets=("enable_spectral_tracking", "enable_gradient_tracking")),
    Flag("enable_spectral_tracking", "Track only spectra.", sets=("enable_spectral_tracking",)),
    Flag("enable_gradient_tracking", "Track only gradients.", sets=("enable_gradient_tracking",)),
    Flag("tracking_frequency", "Measure every N steps (default: 100).", "N",
         ("spectral_log_frequency", "gradient_log_frequency")),
    Flag("tracking_output_dir", "Where the trackers' files go (default: the training's output_dir).", "DIR",
         ("tracking_output_dir",)),
)  # fmt: skip
"""`sets`: options of `config.tracker`."""


@cache
def options() -> dict[str, Option]:
    """Every option by its key, in the order of the help."""
    by_key = {}
    for section, cls in sections().items():
        docs, kinds = _field_docs(cls), get_type_hints(cls)
        for each in fields(cls):
            default = each.default_factory() if each.default_factory is not MISSING else each.default
            option = Option(section, each.name, kinds[each.name], default, docs.get(each.name, ""))
            by_key[option.key] = option
    return by_key


@cache
def sections() -> dict[str, type[Any]]:
    return {section.name: get_type_hints(Config)[section.name] for section in fields(Config)}


def wanted(kind: Any) -> str:
    """A type in words.

    >>> wanted(int | None), wanted(Literal["a", "b"]), wanted(list[str])
    ('a whole number, or null', 'one of a, b', 'a list such as [a,b]')
    """
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "null"}
    parts = []
    for part in _alternatives(kind):
        if get_origin(part) is Literal:
            parts.append(f"one of {', '.join(map(str, get_args(part)))}")
        else:
            parts.append("a list such as [a,b]" if get_origin(part) is list else words.get(part, str(part)))
    return ", or ".join(parts)


def _alternatives(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def _field_docs(cls: type[Any]) -> dict[str, str]:
    """The string below each annotated attribute of a class."""
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(body, ast.ClassDef)
    docs = {}
    for line, following in zip(body.body, body.body[1:], strict=False):
        if not isinstance(line, ast.AnnAssign) or not isinstance(line.target, ast.Name):
            continue
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            docs[line.target.id] = " ".join(str(following.value.value).split())
    return docs
