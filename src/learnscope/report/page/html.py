"""One HTML file: the front end, its styles and a payload, with nothing to fetch."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from learnscope.report.page.packing import as_text
from learnscope.store.files import write_text

SCRIPTS = (
    "base.js", "data.js", "state.js", "marks.js", "panel_parts.js", "curves.js", "scales.js", "heatmap.js", "tables.js",
    "findings.js", "layers.js", "examples.js", "numbers.js", "budget.js", "robustness.js", "units.js", "audit.js",
    "adapters.js", "comparison.js", "ranking.js", "runs.js", "live.js", "bar.js", "page.js",
)  # fmt: skip
"""The front end in the order in which its files are joined; they share one scope, and nothing is built."""
STYLES = ("uPlot.min.css", "page.css")


def write_page(path: Path, packed: bytes, body: dict[str, Any]) -> Path:
    """Write the page of a packed payload; `body` is what was packed."""
    write_text(path, page(packed, body))
    return path


def page(packed: bytes, body: dict[str, Any], *, connect: str = "'none'") -> str:
    """The page as text. `connect` is where its scripts may ask for data: nowhere, or `'self'` when it is served."""
    library, own, styles = assets()
    policy = (
        f"default-src 'none'; script-src '{_hash(library)}' '{_hash(own)}'; style-src '{_hash(styles)}'; "
        f"img-src data: blob:; connect-src {connect}; base-uri 'none'; form-action 'none'"
    )
    title = escape(str(body.get("name") or "run"))[:200]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n<meta name="color-scheme" content="light dark">\n'
        f"<title>{title} · learnscope</title>\n"
        f'<link rel="icon" href="data:,">\n<style>{styles}</style>\n</head>\n<body>\n'
        f'<div id="page">{_without_scripts(body)}</div>\n'
        f'<script type="text/plain" id="payload">{as_text(packed)}</script>\n'
        f"<script>{library}</script>\n<script>{own}</script>\n</body>\n</html>\n"
    )


@cache
def assets() -> tuple[str, str, str]:
    """The library that draws curves, the front end, and the styles."""
    folder = files("learnscope.report.page").joinpath("assets")
    own = "\n".join(folder.joinpath(name).read_text(encoding="utf-8") for name in SCRIPTS)
    styles = "\n".join(folder.joinpath(name).read_text(encoding="utf-8") for name in STYLES)
    library = folder.joinpath("uPlot.iife.min.js").read_text(encoding="utf-8")
    return library, f'(() => {{\n"use strict";\n{own}\n}})();', styles


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _without_scripts(body: dict[str, Any]) -> str:
    """What a reader without scripts sees: the verdict and the findings."""
    lines = "".join(
        f"<li><strong>{escape(str(finding['severity']))}: {escape(str(finding['title']))}</strong> "
        f"{escape(str(finding['detail']))} {escape(str(finding['advice']))}</li>"
        for finding in body.get("findings") or []
    )
    sentence = escape(str((body.get("verdict") or {}).get("sentence") or ""))
    name = escape(str(body.get("name") or ""))[:200]
    return (
        f'<noscript><main class="noscript"><h1>{name}</h1><p>{sentence}</p><ul>{lines}</ul>'
        "<p>Figures need JavaScript.</p></main></noscript>"
    )
