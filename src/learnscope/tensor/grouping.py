"""Many items, of which those of equal shape are computed together."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def compute_in_groups(
    items: Sequence[Item],
    key: Callable[[Item], Hashable],
    compute: Callable[[list[Item]], Iterable[Result]],
    *,
    at_once: Callable[[Item], int] | None = None,
) -> list[Result]:
    """`compute` on the items of equal `key` together, at most `at_once(item)` of them; results in the items' order."""
    groups: dict[Hashable, list[int]] = {}
    for index, item in enumerate(items):
        groups.setdefault(key(item), []).append(index)
    results: dict[int, Result] = {}
    for indices in groups.values():
        step = len(indices) if at_once is None else max(1, at_once(items[indices[0]]))
        for start in range(0, len(indices), step):
            part = indices[start : start + step]
            results.update(zip(part, compute([items[index] for index in part]), strict=True))
    return [results[index] for index in range(len(items))]
