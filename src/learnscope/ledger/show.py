"""Where examples are found by their ids, and how they are to be shown."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from learnscope.ledger.looks import How, Look, look_at
from learnscope.options import is_whole

SECONDS = 30.0
"""After which no further example is read."""
_HELD = 10
"""Wrappers around a data set that are looked into."""


class ShowExamples:
    """Shows training examples in the report: `ls.ExampleLedger(show=ls.ShowExamples(data, tokenizer=tokenizer))`.

    Examples may be texts, images (tensors, arrays or pictures of Pillow: H×W, or with one or three channels first or
    last, of bytes or of numbers in any range), token ids, or tuples and dictionaries with one of them. Only those that
    the report lists are read, when the run is closed; each is kept as at most 500 characters or 48 × 48 pixels.

    Args:
        data: what has the examples by their ids: a data set, a list, a dictionary, an `IndexedDataset`, or a function
            of the id. Of a loader, its data set.
        field: the part of an example to show, a key of a dictionary or a place in a tuple. By default the first of a
            tuple, and of a dictionary `text`, `image`, `input_ids` and a few like them.
        tokenizer: turns token ids into text: anything with a method `decode`, or a function.
        shape: of images that come as flat vectors, such as `(28, 28)` or `(3, 32, 32)`.

    >>> ShowExamples(["first", "second"]).look(1).text
    'second'
    """

    def __init__(
        self,
        data: Any,
        *,
        field: str | int | None = None,
        tokenizer: Any = None,
        shape: Sequence[int] | None = None,
    ) -> None:
        self.data = _data_set(data)
        found = hasattr(type(self.data), "__getitem__") or callable(self.data)
        if not found or isinstance(self.data, str | bytes):
            raise TypeError(f"show={_name(data)}: {_KINDS}")
        if isinstance(self.data, tuple):
            raise TypeError(f"show= is a tuple: {_KINDS}. Of arrays or tensors, show their images or texts alone")
        decode = getattr(tokenizer, "decode", tokenizer)
        if tokenizer is not None and not callable(decode):
            raise TypeError(f"tokenizer={_name(tokenizer)}: it has no decode(ids), and is no function")
        if shape is not None and not (shape and all(is_whole(length, 1) for length in shape)):
            raise ValueError(f"shape={shape!r}: of an image, such as (28, 28) or (3, 32, 32)")
        pad = getattr(tokenizer, "pad_token_id", None)
        self.how = How(field, decode, pad if is_whole(pad) else None, None if shape is None else tuple(shape))

    def __repr__(self) -> str:
        """For the manifest: what it is of, not the data."""
        given = {"field": self.how.field, "shape": self.how.shape}
        options = [f"{name}={value!r}" for name, value in given.items() if value is not None]
        return f"ShowExamples({', '.join([_name(self.data), *options])})"

    def look(self, id: int, target: int | None = None, view: Callable[[Any], Any] | None = None) -> Look:
        """How one example looks, seen through `view` (a task's `show`) if there is one."""

        def fetch() -> Any:
            example = self.example(id)
            return example if view is None else view(example)

        return look_at(fetch, self.how, target)

    def looks(
        self, targets: Mapping[int, int | None], view: Callable[[Any], Any] | None = None
    ) -> Iterator[tuple[int, Look]]:
        """The same of several, by id; those for which there is no time have that as their reason."""
        until = time.monotonic() + SECONDS
        for id, target in targets.items():
            late = time.monotonic() > until
            yield id, Look(reason=f"not read: others took {SECONDS:g} s") if late else self.look(id, target, view)

    def example(self, id: int) -> Any:
        """What the data set, or the function, has for this id."""
        if hasattr(type(self.data), "by_index"):
            return self.data.by_index(id)
        if not hasattr(type(self.data), "__getitem__"):
            return self.data(id)
        if id < 0 and not isinstance(self.data, Mapping):
            raise IndexError(f"id {id}: a data set would count it from its end")
        return self.data[id]


_KINDS = "it takes a data set that is indexed by the examples' ids, or a function from an id to the example"


def _data_set(data: Any) -> Any:
    """The data set of a loader; below subsets, the one whose items carry their own index."""
    below = [data]
    while len(below) < _HELD and not hasattr(type(below[-1]), "by_index") and hasattr(below[-1], "dataset"):
        below.append(below[-1].dataset)
    if hasattr(type(below[-1]), "by_index"):
        return below[-1]
    return data if hasattr(type(data), "__getitem__") or len(below) == 1 else below[1]


def _name(data: Any) -> str:
    return getattr(data, "__qualname__", None) or type(data).__name__
