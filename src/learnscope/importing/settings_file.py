"""Settings that Lightning (`hparams.yaml`) and Ultralytics (`args.yaml`) write beside what they log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

FILES = ("hparams.yaml", "args.yaml")
_LARGEST = 1 << 20


def settings_beside(folder: Path, notes: list[str]) -> dict[str, Any]:
    """What these files say; why one of them could not be read is added to `notes`. No object is made from its tags."""
    settings: dict[str, Any] = {}
    for path in (folder / name for name in FILES):
        if not path.is_file():
            continue
        try:
            text = path.read_text(encoding="utf-8") if path.stat().st_size <= _LARGEST else None
            if text is None or any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text)):
                notes.append(
                    f"{path.name} is too large, or has aliases, which may stand for any amount: it was not read"
                )
                continue
            body = yaml.safe_load(text)
        except (yaml.YAMLError, OSError, UnicodeDecodeError, RecursionError) as error:
            notes.append(f"{path.name} could not be read: {' '.join(str(error).split())[:200]}")
            continue
        settings |= {str(key): value for key, value in body.items()} if isinstance(body, dict) else {}
    return settings
