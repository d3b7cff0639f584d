"""The error for rows that cannot be read."""

from __future__ import annotations

from typing import Literal

MOST = 1000
"""Characters of another package's message; of longer ones the middle is left out."""
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


def whole_reason(error: BaseException) -> str:
    """All lines of a message as one sentence: checks of a configuration name the field first, and the reason last.

    >>> whole_reason(ValueError("Validation error for field 'hidden_size':\\n    TypeError: expected int, got str"))
    "Validation error for field 'hidden_size': TypeError: expected int, got str"
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    text = " ".join(lines)
    return text if len(text) <= MOST else f"{text[: MOST // 2].rstrip()} … {text[-MOST // 2 :].lstrip()}"
