"""Files written whole or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from learnscope.characters import visible, visible_json


def write_atomically(path: Path, write: Callable[[Path], object], *, durable: bool = True) -> None:
    """Call `write` on a temporary file next to `path`, then rename it into place.

    A reader sees the old file or the new one, never a part; after an error the old one is still there. Without
    `durable` there is no fsync: a power failure, not a crash, may then leave the file damaged.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        if durable:
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
        # mkstemp gives 0600; a run folder should be readable like any other output
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str, *, durable: bool = True) -> None:
    write_atomically(path, lambda temporary: temporary.write_text(visible(text), encoding="utf-8"), durable=durable)


def write_json(path: Path, body: Any) -> None:
    write_text(path, visible_json(json.dumps(body, indent=1, allow_nan=False)) + "\n")
