"""A text that comes with Python: the language's own reference, from the standard library's `pydoc_data`.

About 0.35 million characters of English, so that a language model can be examined without any data. The same Python
version gives the same text; another version has a slightly different reference.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from functools import cache

from learnscope.sources.errors import SourceError
from learnscope.sources.files import paragraphs
from learnscope.sources.reading import Split

PASSAGE = 400
"""Characters in a complete passage: it ends with the paragraph that reaches them."""
SHARED = 40
"""Topics quote each other; a paragraph longer than this is kept once, in the shortest topic that has it."""
VALIDATION = 0.15
"""Share of the topics used for validation; about a quarter of the text, since topics differ in length."""
_RULE = re.compile(r"\n([*=\-~^\"#+])\1{2,}(?=\n|$)")


def builtin_rows(split: str = "validation") -> list[dict[str, str]]:
    """Passages of `train` or `validation`, or a part of them, as rows with `text` and `topic`.

    Each topic is in one split, by the hash of its name, and no paragraph is in both.

    >>> rows = builtin_rows("validation[:2]")
    >>> [sorted(row) for row in rows]
    [['text', 'topic'], ['text', 'topic']]
    """
    part = Split.parse(split)
    if part.name not in (None, "train", "validation"):
        raise SourceError(f"the built-in text has the splits train and validation, not {part.name!r}", about="split")
    validation = part.name != "train"
    rows = [
        {"text": text, "topic": topic}
        for topic, texts in _passages().items()
        for text in texts
        if (int(hashlib.sha256(topic.encode()).hexdigest()[:16], 16) < VALIDATION * 2**64) == validation
    ]
    chosen = part.rows(len(rows))
    if not chosen:
        raise SourceError(f"the built-in text has {len(rows)} passages, and none of them in {split!r}", about="split")
    return rows[chosen.start : chosen.stop]


def text_hash() -> str:
    """A hash of this Python's text, to be stored with what was made from it."""
    text = "\n\n".join(f"{topic}\n{passage}" for topic, passages in _passages().items() for passage in passages)
    return hashlib.sha256(text.encode()).hexdigest()


@cache
def _passages() -> dict[str, tuple[str, ...]]:
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise SourceError(
            "this Python came without pydoc_data, the built-in text: name a data set, or install the whole "
            "standard library"
        ) from None
    used: set[str] = set()
    passages: dict[str, tuple[str, ...]] = {}
    for topic in sorted(topics, key=lambda name: (len(topics[name]), name)):
        texts = []
        for paragraph in paragraphs(_RULE.sub("", f"\n{topics[topic]}")):
            words = " ".join(paragraph.split())
            if words not in used:
                texts.append(paragraph)
            if len(words) > SHARED:
                used.add(words)
        passages[topic] = tuple(_joined(texts))
    return {topic: passages[topic] for topic in sorted(passages)}


def _joined(parts: list[str]) -> Iterator[str]:
    """Paragraphs joined to passages; a short last one is added to the passage before."""
    passages: list[list[str]] = [[]]
    for part in parts:
        if sum(map(len, passages[-1])) >= PASSAGE:
            passages.append([])
        passages[-1].append(part)
    if len(passages) > 1 and sum(map(len, passages[-1])) < PASSAGE / 2:
        passages[-2:] = [passages[-2] + passages[-1]]
    return ("\n\n".join(passage) for passage in passages if passage)
