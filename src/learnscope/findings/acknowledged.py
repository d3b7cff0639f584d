"""Findings that a project accepts, in a file of the project."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from learnscope.characters import visible
from learnscope.findings.explained import in_order
from learnscope.record import Finding
from learnscope.store.errors import RunError
from learnscope.store.files import write_text

FILE = Path(".learnscope") / "acknowledged.toml"
_HEAD = """# Findings that this project accepts, by fingerprint, with the reason. `learnscope acknowledge` adds to it.
"""


def acknowledged_file() -> Path:
    """The file in this folder or the nearest one above it; the one in this folder if there is none."""
    here = Path.cwd()
    return next((folder / FILE for folder in (here, *here.parents) if (folder / FILE).is_file()), here / FILE)


def read_acknowledged(path: str | Path | None = None) -> dict[str, str]:
    """The reason for each fingerprint. A path that was given must exist; the project's own file may be missing."""
    file = Path(path) if path is not None else acknowledged_file()
    if path is None and not file.is_file():
        return {}
    try:
        body = tomllib.loads(file.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise RunError(f"{file} is not TOML: {error}") from error
    for fingerprint, entry in body.items():
        if not isinstance(entry, dict) or not isinstance(entry.get("why"), str):
            raise RunError(f'{file}: ["{fingerprint}"] has no reason; write why = "…" below it')
    return {fingerprint: entry["why"] for fingerprint, entry in body.items()}


def marked(findings: Sequence[Finding], known: Mapping[str, str]) -> list[Finding]:
    """The findings with the reasons of those that are acknowledged, which come last."""
    if not known:
        return list(findings)
    return in_order([replace(finding, acknowledged=known.get(finding.fingerprint)) for finding in findings])


def acknowledge(finding: Finding, why: str, path: str | Path | None = None) -> Path:
    """Add a finding to the file, or change its reason; returns the file."""
    if not why.strip():
        raise RunError("say why the finding is accepted")
    file = Path(path) if path is not None else acknowledged_file()
    text = file.read_text(encoding="utf-8") if file.is_file() else _HEAD
    lines = {"kind": finding.kind, "title": finding.title, "why": why}
    entry = "".join(f"{key} = {_quoted(value)}\n" for key, value in lines.items())
    kept = [part for part in text.split("\n[") if not part.startswith(f'"{finding.fingerprint}"]')]
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, "\n[".join([*kept[:-1], kept[-1].rstrip("\n") + "\n", f'"{finding.fingerprint}"]\n{entry}']))
    return file


def _quoted(text: str) -> str:
    """A string of TOML: JSON's escapes are valid in it."""
    return json.dumps(visible(text), ensure_ascii=False)
