"""The one error of this room."""

from __future__ import annotations

from typing import Literal

About = Literal["name", "split"]


class SourceError(ValueError):
    """Rows that cannot be read: the message names the cause and the cure.

    `about` says which argument is wrong, where it is one: a caller can put its own word for it in front.
    """

    def __init__(self, message: str, *, about: About | None = None) -> None:
        super().__init__(message)
        self.about = about


def first_line(error: BaseException) -> str:
    """Other packages explain at length; the beginning of their first line names the cause."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
