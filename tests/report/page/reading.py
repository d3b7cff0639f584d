"""What a browser would read from a page."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from learnscope.report.page.packing import unpack


def payload_of(page: Path) -> dict[str, Any]:
    """The payload of a page; its numbers are under `columns`."""
    text = page.read_text(encoding="utf-8")
    packed = re.search(r'id="payload">([^<]*)</script>', text)
    assert packed is not None
    body, floats, integers = unpack(base64.b64decode(packed[1]))
    return body | {"columns": {"f": floats, "i": integers}}


def numbers(body: dict[str, Any], reference: list[Any]) -> NDArray[Any]:
    """The numbers behind a reference, as `column` of data.js finds them."""
    kind, start, length = reference[:3] if len(reference) > 2 else (*reference, 0)
    if kind == "s":
        return start + length * np.arange(reference[3])
    if kind == "n":
        return np.array(start)
    found: NDArray[Any] = body["columns"][kind][start : start + length]
    return found
