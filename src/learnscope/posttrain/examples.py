"""Rows of text or token ids as examples of the length that a model takes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from learnscope.options import did_you_mean
from learnscope.posttrain.errors import PosttrainError
from learnscope.posttrain.reader import Reader
from learnscope.posttrain.tokenizing import ByteTokenizer
from learnscope.task.shapes import IGNORE

IDS = "input_ids"
LABELS = ("label", "labels")
NO_TOKENIZER = (
    "the data are text, and no tokenizer was found for {}: pass tokenizer= (a folder, a tokenizer.json, or \"bytes\" "
    "for a model that reads UTF-8 bytes), put tokenizer.json beside the model, or give data with input_ids"
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Example:
    """Token ids, and what they are to be answered with: a label for each of them, or one for all."""

    ids: list[int]
    answer: Any
    document: int
    """The number of the row that it is, or is a piece of."""


@dataclass(slots=True)
class Encoder:
    """Makes examples of rows for a model, and counts what it leaves out."""

    reader: Reader
    tokenizer: Any
    length: int
    text_column: str | None = None
    label_column: str | None = None
    documents: int = 0
    too_short: int = 0
    cut: int = 0
    _columns: tuple[str, str | None] | None = field(default=None, init=False)

    def examples(self, rows: Sequence[Mapping[str, Any]]) -> Iterator[Example]:
        """One or several of a row: a text longer than `length` is cut into pieces, or for a classifier cut short."""
        for number, row in enumerate(rows, 1):
            column, label = self._columns = self._columns or self._find_columns(row)
            if column not in row:
                raise PosttrainError(f"row {number} has no {column!r}, which the others have")
            ids, labels = self._tokens(row, column, label, number)
            if len(ids) < self.reader.least:
                self.too_short += 1
                continue
            self._check_ids(ids, number)
            self.documents += 1
            if self.reader.answer != "tokens":
                yield Example(ids, self._answer(row, label, number), number)
                continue
            self.cut += len(ids) > self.length
            begin = 0
            for size in piece_sizes(len(ids), self.length):
                yield Example(ids[begin : begin + size], labels[begin : begin + size], number)
                begin += size

    def _find_columns(self, row: Mapping[str, Any]) -> tuple[str, str | None]:
        there = list(row)
        for asked in (self.text_column, self.label_column):
            if asked is not None and asked not in there:
                hint = did_you_mean(asked, there)
                raise PosttrainError(f"the data have no column {asked!r}.{hint} There are: {', '.join(there)}.")
        column = self.text_column or next((name for name in (IDS, "text") if name in there), None)
        if column is None:
            raise PosttrainError(
                f"the data have the columns {', '.join(there)}, and neither text nor input_ids: say which holds the "
                "text (text_column)"
            )
        if column != IDS and self.tokenizer is None:
            raise PosttrainError(NO_TOKENIZER.format(self.reader.name))
        usual = LABELS if self.reader.answer != "tokens" else LABELS[1:]  # of tokens, `label` is about something else
        label = self.label_column or next((name for name in usual if name in there), None)
        if label is None and self.reader.answer != "tokens":
            raise PosttrainError(
                f"{self.reader.name} is judged by its answers, and the data have none (columns {', '.join(there)}): "
                "say which holds them (label_column)"
            )
        return column, label

    def _tokens(
        self, row: Mapping[str, Any], column: str, label: str | None, number: int
    ) -> tuple[list[int], list[int]]:
        given = row[column]
        if column != IDS:
            if not isinstance(given, str):
                raise PosttrainError(f"row {number}: {column!r} is {given!r}; text is needed")
            ids = self._encoded(given)
            return ids, ids
        ids, labels = self._given(row, label, number)
        if self.reader.answer != "tokens" and len(ids) > self.length:
            self.cut += 1
            ids = ids[: self.length]
        return ids, labels

    def _given(self, row: Mapping[str, Any], label: str | None, number: int) -> tuple[list[int], list[int]]:
        """Ids and labels that stand in the row, without those that its mask hides."""
        ids = _whole(row[IDS], f"row {number}: {IDS!r}")
        labels, known = ids, self.reader.vocabulary
        if label is not None and self.reader.answer == "tokens" and row.get(label) is not None:
            labels = _whole(row[label], f"row {number}: {label!r}")
            wrong = next((one for one in labels if one != IGNORE and not 0 <= one < known), None)
            if wrong is not None:
                raise PosttrainError(
                    f"row {number}: label {wrong} is no token of {self.reader.name}, which has {known}"
                )
        mask = _whole(row["attention_mask"], f"row {number}: 'attention_mask'") if row.get("attention_mask") else None
        for name, other in (("labels", labels), ("an attention_mask", mask)):
            if other is not None and len(other) != len(ids):
                raise PosttrainError(f"row {number} has {name} of {len(other)} entries for {len(ids)} input_ids")
        kept = [place for place in range(len(ids)) if mask is None or mask[place]]
        return [ids[place] for place in kept], [labels[place] for place in kept]

    def _encoded(self, text: str) -> list[int]:
        ids = list(self.tokenizer(text)["input_ids"])
        if self.reader.answer == "tokens" or len(ids) <= self.length:
            return ids
        self.cut += 1
        if isinstance(self.tokenizer, ByteTokenizer):
            return ids[: self.length]
        # its own way of cutting keeps the token that ends a text
        return list(self.tokenizer(text, truncation=True, max_length=self.length)["input_ids"])

    def _check_ids(self, ids: list[int], number: int) -> None:
        known = self.reader.vocabulary
        wrong = next((one for one in ids if not 0 <= one < known), None)
        if wrong is not None:
            raise PosttrainError(
                f"row {number} has token {wrong}, and {self.reader.name} knows the tokens 0 to {known - 1}: "
                "the tokenizer or the data are another model's"
            )

    def _answer(self, row: Mapping[str, Any], label: str | None, number: int) -> Any:
        assert label is not None
        given, classes = row.get(label), self.reader.classes
        try:
            if self.reader.answer == "number":
                return _finite(given)
            if self.reader.answer == "several":
                several = [_finite(one) for one in given]  # type: ignore[union-attr]
                if len(several) != len(classes):
                    raise ValueError
                return several
            place = classes.index(given) if given in classes else int(given)  # type: ignore[arg-type]
            if not 0 <= place < len(classes) or (isinstance(given, float) and given != place):
                raise ValueError
            return place
        except (TypeError, ValueError, OverflowError):
            wanted = {"number": "a number", "several": f"{len(classes)} numbers"}.get(
                self.reader.answer,
                f"one of {len(classes)} classes, 0 to {len(classes) - 1} or {', '.join(classes[:5])}",
            )
            raise PosttrainError(f"row {number}: {label!r} is {given!r}; {wanted} is needed") from None


def piece_sizes(tokens: int, length: int) -> list[int]:
    """As few pieces as possible, all of nearly the same size: no short rest with hardly any context.

    >>> piece_sizes(130, 128), piece_sizes(128, 128), piece_sizes(301, 100)
    ([65, 65], [128], [76, 75, 75, 75])
    """
    pieces = -(-tokens // length)
    return [tokens // pieces + (place < tokens % pieces) for place in range(pieces)]


def _finite(given: Any) -> float:
    number = float(given)
    if not math.isfinite(number):
        raise ValueError
    return number


def _whole(given: Any, what: str) -> list[int]:
    try:
        found = [int(one) for one in given]
        if isinstance(given, str) or any(one != int(one) for one in given):
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise PosttrainError(f"{what} is {str(given)[:80]!r}; a list of whole numbers is needed") from None
    return found
