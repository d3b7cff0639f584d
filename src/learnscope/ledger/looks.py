"""How an example looks: a text, a small image, or the reason why neither."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from learnscope.characters import visible
from learnscope.ledger.thumbnails import NotShown, as_array, thumbnail

CHARACTERS = 500
"""Of a text; the rest is left out."""
REMARK = 200
"""Characters of a reason or a note."""
TOKENS = 2000
"""Tokens that are decoded, of which most have more than one character."""
FIELDS = (
    "text", "sentence", "content", "prompt", "question", "image", "img", "pixel_values", "input_ids", "x", "input",
    "inputs",
)  # fmt: skip
"""What is looked for in a dictionary, in this order."""
LABELS = ("label", "labels", "target")
_DEEP = 4
"""Containers within each other that are looked into."""


@dataclass(frozen=True, slots=True, eq=False)
class Look:
    """One example as it is shown: with `text`, with `image`, or with a `reason` if it has neither."""

    text: str | None = None
    image: NDArray[np.uint8] | None = None
    """[H, W, 3]."""
    reason: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class How:
    """What is known about the examples of a data set."""

    field: str | int | None = None
    decode: Callable[[list[int]], Any] | None = None
    pad: int | None = None
    """The token that fills up an example."""
    shape: tuple[int, ...] | None = None


def look_at(fetch: Callable[[], Any], how: How, target: int | None = None) -> Look:
    """The look of what `fetch` returns. Whatever goes wrong in it, or in what it returned, is the reason."""
    try:
        example = fetch()
        look = look_of(example, how)
        label = label_of(example)
    except NotShown as error:
        return Look(reason=remark(str(error)))
    except Exception as error:  # noqa: BLE001  (a data set is foreign code: it must not hurt the training)
        return Look(reason=remark(f"{type(error).__name__}: {error}"))
    if label is None or target is None or label == target:
        return look
    # of labels that were changed on purpose, or of a data set in another order: the reader can tell
    said = f"label {label} in the data set, {target} in the training"
    return Look(look.text, look.image, note=remark(f"{said}; {look.note}" if look.note else said))


def look_of(example: Any, how: How, depth: int = 0) -> Look:
    """A text, an image, or token ids that can be decoded; of a pair or a dictionary, the part that is one of them.

    >>> look_of(("a text", 3), How()).text, look_of({"text": "b" * 600, "label": 1}, How()).note
    ('a text', 'the first 500 of 600 characters')
    """
    if depth == _DEEP:
        raise NotShown("it is a list of lists of lists: let a function return what is to be shown")
    if how.field is not None and depth == 0:
        return look_of(_part(example, how.field), how, depth + 1)
    if isinstance(example, str):
        return _text(example)
    if isinstance(example, Mapping):
        names = [name for name in FIELDS if name in example]
        if not names:
            raise NotShown(f"a dictionary with {_names(example)}: say which, ls.ShowExamples(data, field=…)")
        return look_of(example[names[0]], how, depth + 1)
    array = as_array(example)
    if array is None and _is_numbers(example):
        array = np.asarray(example)
    if array is not None:
        return _of_numbers(array, how)
    if isinstance(example, Sequence) and len(example) and not isinstance(example, bytes | bytearray):
        return look_of(example[0], how, depth + 1)
    raise NotShown(f"a {type(example).__name__} is neither a text nor an image")


def label_of(example: Any) -> int | None:
    """The whole number behind the first part of a pair, or under a dictionary's label; None if there is none."""
    if isinstance(example, Mapping):
        found = [example[name] for name in LABELS if name in example]
    else:
        found = [example[1]] if isinstance(example, tuple | list) and len(example) > 1 else []
    try:
        return operator.index(found[0]) if found else None
    except (TypeError, ValueError, RuntimeError):  # several, or no whole number
        return None


def remark(text: str) -> str:
    """A short text on one line."""
    line = " ".join(visible(text).split())
    return line if len(line) <= REMARK else f"{line[: REMARK - 1]}…"


def _text(text: str, more: str = "") -> Look:
    # cut before it is made visible, which takes time, and after, since escapes are longer
    shown = visible(text[:CHARACTERS])[:CHARACTERS]
    cut = f"the first {CHARACTERS} of {len(text):,} characters" if len(text) > CHARACTERS else ""
    return Look(text=shown, note=cut or more)


def _of_numbers(array: NDArray[Any], how: How) -> Look:
    tokens = array.reshape(-1) if array.ndim == 2 and array.shape[0] == 1 else array
    if how.decode is not None and tokens.ndim == 1 and tokens.dtype.kind in "iu":
        ids = [token for token in tokens.tolist() if token != how.pad]
        text = str(how.decode(ids[:TOKENS]))
        return _text(text, f"the first {TOKENS:,} of {len(ids):,} tokens" if len(ids) > TOKENS else "")
    if how.shape is not None:
        if math.prod(how.shape) != array.size:
            raise NotShown(f"{array.size:,} numbers cannot have the shape {how.shape}")
        array = array.reshape(how.shape)
    elif array.ndim == 1 and array.dtype.kind in "iu":
        raise NotShown(f"{array.size:,} whole numbers: if they are tokens, ls.ShowExamples(data, tokenizer=…)")
    elif array.ndim == 1:
        raise NotShown(f"a vector of {array.size:,} numbers: if it is an image, ls.ShowExamples(data, shape=…)")
    image, note = thumbnail(array)
    return Look(image=image, note=note)


def _part(example: Any, field: str | int) -> Any:
    try:
        return example[field]
    except (KeyError, IndexError, TypeError):
        held = f" with {_names(example)}" if isinstance(example, Mapping) else ""
        raise NotShown(f"a {type(example).__name__}{held} has no {field!r}") from None


def _names(example: Mapping[Any, Any]) -> str:
    return ", ".join(map(str, list(example)[:8])) or "nothing"


def _is_numbers(example: Any) -> bool:
    """Whether it is a list of plain numbers, such as token ids; (x, y) with two numbers is no pair to be shown."""
    return isinstance(example, list | tuple) and {type(each) for each in example} in ({int}, {float}, {int, float})
