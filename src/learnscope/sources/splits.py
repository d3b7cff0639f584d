"""`train`, `train[:1000]`, `validation[10%:20%]`, `[:100]`: a part of a data set, by name and place."""

from __future__ import annotations

import re
from dataclasses import dataclass

from learnscope.sources.errors import SourceError

_WRITTEN = re.compile(r"([\w.-]+)?(?:\[\s*(\d+%?)?\s*:\s*(\d+%?)?\s*\])?")


@dataclass(frozen=True, slots=True)
class Split:
    """A name (None: whichever there is) and the rows from `first` up to `last`, as they were written.

    >>> Split.parse("validation[10%:50]").rows(200)
    range(20, 50)
    """

    name: str | None
    first: str | None = None
    last: str | None = None

    @classmethod
    def parse(cls, written: str) -> Split:
        match = _WRITTEN.fullmatch(written.strip())
        if match is None or not written.strip():
            raise SourceError(
                f"{written!r} is not understood; write train, train[:1000] or train[10%:20%]", about="split"
            )
        return cls(match[1], match[2], match[3])

    def __str__(self) -> str:
        part = "" if self.first is self.last is None else f"[{self.first or ''}:{self.last or ''}]"
        return f"{self.name or ''}{part}"

    def rows(self, count: int) -> range:
        """Which of `count` rows; none if the end is before the beginning."""
        begin, end = _place(self.first, count, 0), _place(self.last, count, count)
        return range(begin, max(begin, end))


def _place(written: str | None, count: int, otherwise: int) -> int:
    if written is None:
        return otherwise
    place = round(count * int(written[:-1]) / 100) if written.endswith("%") else int(written)
    return min(place, count)
