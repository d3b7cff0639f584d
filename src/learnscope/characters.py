"""Characters that change how the text around them is shown, or that no file can hold, as visible escapes.

Names of modules, groups and data may hold any character. On a terminal an escape character hides or repaints what
follows, in a page a bidirectional control reorders it, and half of a surrogate pair cannot be written as UTF-8.
"""

from __future__ import annotations

import json
import re

_UNSAFE = re.compile(
    "["
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters, but for tab and newline
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # bidirectional controls
    "\u2028\u2029"  # separators of lines and paragraphs
    "\ud800-\udfff"  # half of a pair
    "]"
)
# outside of escapes: between the strings of a JSON text there may be line ends, and within them no control character
_RAW = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\u2028\u2029\ud800-\udfff]")
# one escape of a JSON string, so that the second half of an escaped backslash is not taken for the start of another
_ESCAPE = re.compile(r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.)")


def visible(text: str) -> str:
    r"""The text with unsafe characters as escapes.

    >>> visible("a\u202eb\x1b[31m é\n")
    'a\\u202eb\\u001b[31m é\n'
    """
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def visible_json(line: str) -> str:
    r"""The same for all strings of a JSON text: those that are escapes, and those that another writer left as they are.

    >>> print(visible_json('{"a\\u202e": "\\n \\ud83d\\ude42 \\ud83d \\\\u202e"}'))
    {"a\\u202e": "\n \ud83d\ude42 \\ud83d \\u202e"}
    >>> print(visible_json('{"é\u202e": "\x7f"}'))
    {"é\\u202e": "\\u007f"}
    """
    if not line.isascii() or "\x7f" in line:
        line = _RAW.sub(lambda match: f"\\\\u{ord(match[0]):04x}", line)
    return _ESCAPE.sub(_visible_escape, line) if "\\" in line else line


def _visible_escape(match: re.Match[str]) -> str:
    escape = match[0]
    short = {r"\b": r"\u0008", r"\f": r"\u000c", r"\r": r"\u000d"}.get(escape, escape)
    unsafe = len(short) == 6 and _UNSAFE.match(json.loads(f'"{short}"'))
    return "\\" + short if unsafe else escape
