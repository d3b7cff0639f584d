"""The examples to look at first as lines of text, for reports without pictures."""

from __future__ import annotations

import pandas as pd

from learnscope.findings.examples.notable import notable
from learnscope.ledger.shown import shown_of
from learnscope.ledger.stored import stored_frame
from learnscope.reading.words import num
from learnscope.store.reader import RunReader

EACH, CHARACTERS = 10, 200
"""Examples of a kind, and characters of each."""
HEAD = ("listed as", "id", "label", "mean p(label)", "text")


def example_texts(reader: RunReader) -> list[tuple[str, str, str, str, str]]:
    """A line for each of the notable examples that is a text; none if no texts were kept."""
    texts = {id: look.text for id, look in shown_of(reader.backend)[0].items() if look.text is not None}
    frame = stored_frame(reader.backend) if texts else None
    if frame is None or not len(frame):
        return []
    first = notable(frame)
    lines = []
    for kind, rows in (("hardest", first.hardest), ("forgotten", first.forgotten), ("doubted", first.doubted)):
        for row in rows[rows["id"].isin(list(texts))].head(EACH).to_dict("records"):
            label = row.get("target")
            cells = (kind, str(row["id"]), "" if pd.isna(label) else str(label), num(float(row["confidence"])))
            lines.append((*cells, _cell(texts[int(row["id"])])))
    return lines


def _cell(text: str) -> str:
    # backticks would be code, in which Markdown has no escapes, also not for the end of a cell
    line = " ".join(text.replace("`", "'").split())
    return line if len(line) <= CHARACTERS else f"{line[: CHARACTERS - 1]}…"
