"""A checkpoint of the user's own, written with torch.save."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from learnscope.store.files import write_atomically


def write_checkpoint(path: Path, content: Mapping[str, Any]) -> None:
    """Write the dictionary whole or not at all: after a kill, the file is the earlier checkpoint or this one."""
    write_atomically(path, lambda temporary: torch.save(dict(content), temporary))
