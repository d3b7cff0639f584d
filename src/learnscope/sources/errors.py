"""The error for rows that cannot be read."""

from __future__ import annotations

from typing import Literal

About = Literal["name", "split"]


class SourceError(ValueError):
    """Rows that cannot be read: the message names the cause and the cure.

    `about` says which argument is wrong, if it is an argument: a caller can put its own name for it in front.
    """

    def __init__(self, message: str, *, about: About | None = None) -> None:
        super().__init__(message)
        self.about = about


def first_line(error: BaseException) -> str:
    """The start of the first line of a message, which names the cause; other packages' messages are long."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
