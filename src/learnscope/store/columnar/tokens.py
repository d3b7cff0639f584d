"""Lines of JSON taken apart, a few megabytes at once: the text around their numbers, and the numbers.

The lines of a run differ in their numbers; of the texts around these there are few. So a text need be parsed once.
What is unusual (escaped quotes, integers that a float64 may round, anything that is no JSON number) is marked as odd,
and left to a reader of single lines.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

INTEGER, FLOAT = b"\x01", b"\x02"
"""What stands in a text for a number; no line that is not odd has these characters."""

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]
_DIGIT, _POINT, _EXPONENT, _MINUS, _PLUS, _ODD = 1, 2, 3, 4, 5, 6
_EXACT_DIGITS = 15

_CLASS_OF = {ord("."): _POINT, ord("e"): _EXPONENT, ord("E"): _EXPONENT, ord("-"): _MINUS, ord("+"): _PLUS}
_CLASS_OF |= dict.fromkeys(b"0123456789", _DIGIT)
_CLASSES = bytes(
    _CLASS_OF.get(character, _ODD if character < 32 and character != 10 else 0) for character in range(256)
)


@dataclass(frozen=True)
class Pieces:
    """The lines of a piece of a file."""

    texts: list[bytes]
    """Of each line, with `INTEGER` or `FLOAT` in the place of each number."""
    odd: NDArray[np.bool_]
    """The lines whose text and numbers are not to be relied on."""
    numbers: NDArray[np.float64]
    first: Ints
    """Of each line, the place of its first number; one more at the end."""
    ends: Ints
    """Of each line, the place of its line end."""


def take_apart(lines: bytes) -> Pieces:
    """`lines` ends with a line end."""
    data = np.frombuffer(lines, np.uint8)
    ends = np.flatnonzero(data == ord("\n"))
    inside, odd = _inside(data, ends)
    classes = np.frombuffer(lines.translate(_CLASSES), np.uint8)
    unusual = np.concatenate([np.flatnonzero(classes == _ODD), _escapes(lines, data)])
    classes = classes * (1 - inside)
    exponent = classes == _EXPONENT  # the last letter of true and false is none
    exponent[1:] &= classes[:-1] != _DIGIT
    classes[exponent] = 0
    classes[unusual] = 0
    of_number = classes != 0
    begins = of_number.copy()
    begins[1:] &= ~of_number[:-1]
    starts = np.flatnonzero(begins)
    is_float, wrong = _checked(data, classes, of_number, starts)
    for places in (unusual, wrong):
        odd[np.searchsorted(ends, places)] = True
    numbers = _numbers(data, of_number, odd[np.searchsorted(ends, starts)])
    text = data.copy()
    text[starts] = np.where(is_float, FLOAT[0], INTEGER[0])
    texts = text[~of_number | begins].tobytes().split(b"\n")[:-1]
    first = np.concatenate([[0], np.searchsorted(starts, ends)])
    return Pieces(texts, odd, numbers, first, ends)


def _escapes(lines: bytes, data: Bytes) -> Ints:
    """Where a backslash stands for something about quotes; of other escapes, none hides the end of a string."""
    if b"\\" not in lines:
        return np.zeros(0, np.int64)
    escapes = np.flatnonzero(data[:-1] == ord("\\"))
    following = data[escapes + 1]
    of_quotes: Ints = escapes[(following == ord('"')) | (following == ord("\\"))]
    return of_quotes


def _inside(data: Bytes, ends: Ints) -> tuple[Bytes, NDArray[np.bool_]]:
    """Which characters stand within strings (1), and which lines have a string without an end."""
    inside: Bytes = np.cumsum(data == ord('"'), dtype=np.uint8) & np.uint8(1)
    at_end = inside[ends].astype(np.int8)
    before = np.concatenate([[0], at_end[:-1]])
    if at_end.any():
        inside ^= np.repeat(before, np.diff(ends, prepend=-1)).astype(np.uint8)
    return inside, at_end != before


def _checked(data: Bytes, classes: Bytes, of_number: NDArray[np.bool_], starts: Ints) -> tuple[NDArray[np.bool_], Ints]:
    """Which numbers are floats, and places of what JSON does not allow in a number or a float64 may round."""
    is_float = np.zeros(len(starts), bool)
    if not len(starts):
        return is_float, starts
    last = np.flatnonzero(of_number[:-1] & ~of_number[1:])  # the last character is a line end
    points, exponents = np.flatnonzero(classes == _POINT), np.flatnonzero(classes == _EXPONENT)
    point_of, exponent_of = (np.searchsorted(starts, places, "right") - 1 for places in (points, exponents))
    is_float[point_of] = is_float[exponent_of] = True
    exponent_at = np.full(len(starts), len(data))
    exponent_at[exponent_of] = exponents
    signs = np.flatnonzero(classes >= _MINUS)
    leads = signs[np.isin(signs, starts, assume_unique=True)]
    within = signs[~np.isin(signs, starts, assume_unique=True)]
    digits = starts.copy()
    digits[np.searchsorted(starts, leads)] += 1
    wrong = [
        starts[(classes[starts] != _DIGIT) & (classes[starts] != _MINUS)],
        digits[(data[digits] == ord("0")) & (classes[digits + 1] == _DIGIT)],
        last[classes[last] != _DIGIT],
        points[(classes[points - 1] != _DIGIT) | (classes[points + 1] != _DIGIT)],
        points[points > exponent_at[point_of]],
        points[1:][np.diff(point_of) == 0],
        exponents[1:][np.diff(exponent_of) == 0],
        within[classes[within - 1] != _EXPONENT],
        digits[classes[digits] != _DIGIT],
        starts[(last - digits >= _EXACT_DIGITS) & ~is_float],
    ]
    return is_float, np.concatenate(wrong)


def _numbers(data: Bytes, of_number: NDArray[np.bool_], skipped: NDArray[np.bool_]) -> NDArray[np.float64]:
    """The numbers; 0 for those of odd lines, of which some are none."""
    followed = of_number.copy()
    followed[1:] |= of_number[:-1]
    texts = np.where(of_number, data, np.uint8(ord(" ")))[followed].tobytes().split()
    if skipped.any():
        texts = [b"0" if skip else text for text, skip in zip(texts, skipped.tolist(), strict=True)]
    return np.fromiter(map(float, texts), np.float64, len(texts))
