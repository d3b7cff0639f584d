"""How runs, findings and sessions show themselves: one line in a terminal, a small card in a notebook.

A card takes the notebook's own text colour and has no background, so that it is readable in light and dark themes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from learnscope.characters import visible

LONGEST = 400
"""Characters of a name or a title that a card shows."""
COLOURS = {"critical": "#c62828", "warning": "#a15c00", "info": "#1565c0", "ok": "#2e7d32", "unknown": "#616161"}
"""Of a badge with white text: at least 4.5 to 1 in contrast."""
_CARD = "font-family: system-ui, sans-serif; font-size: 14px; line-height: 1.45; max-width: 60em; padding: 4px 0"
_BADGE = "color: #fff; border-radius: 4px; padding: 1px 7px; font-size: 12px; font-weight: 600"


def one_line(*parts: str) -> str:
    """
    >>> one_line("Run runs/a", "finished", "", "1,200 steps")
    '<Run runs/a | finished | 1,200 steps>'
    """
    return f"<{' | '.join(_shown(part) for part in parts if part)}>"


def safe(text: object, longest: int = LONGEST) -> str:
    """Text for HTML: escaped, on one line, with the characters that hide or reorder others made visible."""
    from html import escape  # a session that shows nothing does not wait for it

    return escape(_shown(str(text), longest))


def _shown(text: str, longest: int = LONGEST) -> str:
    plain = " ".join(visible(text).split())
    return plain if len(plain) <= longest else f"{plain[: longest - 1]}…"


def badge(severity: str, text: str = "") -> str:
    colour = COLOURS.get(severity, COLOURS["unknown"])
    return f'<span style="{_BADGE}; background: {colour}">{safe(text or severity)}</span>'


def folded(summary: str, *paragraphs: str) -> str:
    """A line that opens; `summary` and `paragraphs` are HTML."""
    inside = "".join(f'<p style="margin: 4px 0 4px 18px">{paragraph}</p>' for paragraph in paragraphs if paragraph)
    return f'<details style="margin: 3px 0"><summary style="cursor: pointer">{summary}</summary>{inside}</details>'


def facts_line(facts: Iterable[str]) -> str:
    """Small facts beside each other, as HTML."""
    return " &middot; ".join(safe(fact) for fact in facts if fact)


def card(*parts: str) -> str:
    """Parts of HTML below each other."""
    inside = "".join(f'<div style="margin: 3px 0">{part}</div>' for part in parts if part)
    return f'<div class="learnscope" style="{_CARD}">{inside}</div>'


def small_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table of texts."""
    cell = 'style="text-align: left; padding: 2px 10px 2px 0; border-bottom: 1px solid rgba(128, 128, 128, 0.35)"'
    top = "".join(f"<th {cell}>{safe(each, 60)}</th>" for each in head)
    body = "".join(f"<tr>{''.join(f'<td {cell}>{safe(each, 160)}</td>' for each in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
