"""Rows of text or token ids as examples of the length that a model takes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Any

from learnscope.options import did_you_mean
from learnscope.posttrain.errors import PosttrainError
from learnscope.posttrain.reader import ByteTokenizer, Reader
from learnscope.task.shapes import IGNORE

IDS = "input_ids"
LABELS = ("label", "labels")
NO_TOKENIZER = (
    "the data are text, and no tokenizer was found for {}: pass tokenizer= (a folder, a tokenizer.json, or \"bytes\" "
    "for a model that reads UTF-8 bytes), put tokenizer.json beside the model, or give data with input_ids"
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Example:
    """Token ids, and their target: a label for each of them, or one for all."""

    ids: list[int]
    answer: Any
    document: int
    """The number of its row."""


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
        """One or more of each row: texts longer than `length` are cut into pieces, or truncated for a classifier."""
        for number, row in enumerate(rows, 1):
            column, label = self._columns = self._columns or self.find_columns(row)
            if column not in row:
                raise PosttrainError(f"row {number} has no {column!r}, which the others have")
            ids, labels = self._tokens(row, column, label, number)
            if len(ids) < self.reader.least:
                self.too_short += 1
                continue
            known = self.reader.vocabulary
            wrong = next((token for token in ids if not 0 <= token < known), None)
            if wrong is not None:
                raise PosttrainError(
                    f"row {number} has token {wrong}, and {self.reader.name} knows the tokens 0 to {known - 1}: "
                    "the tokenizer or the data are another model's"
                )
            self.documents += 1
            if self.reader.answer != "tokens":
                answer = None if self.reader.answer == "embedding" else self._answer(row, label, number)
                yield Example(ids, answer, number)
                continue
            self.cut += len(ids) > self.length
            begin = 0
            for size in piece_sizes(len(ids), self.length):
                yield Example(ids[begin : begin + size], labels[begin : begin + size], number)
                begin += size

    def find_columns(self, row: Mapping[str, Any]) -> tuple[str, str | None]:
        columns = list(row)
        for asked in (self.text_column, self.label_column):
            if asked is not None and asked not in columns:
                hint = did_you_mean(asked, columns)
                raise PosttrainError(f"the data have no column {asked!r}.{hint} There are: {', '.join(columns)}.")
        column = self.text_column or next((name for name in (IDS, "text") if name in columns), None)
        if column is None:
            raise PosttrainError(
                f"the data have the columns {', '.join(columns)}, and neither text nor input_ids: say which holds the "
                "text (text_column=)"
            )
        if column != IDS and self.tokenizer is None:
            raise PosttrainError(NO_TOKENIZER.format(self.reader.name))
        usual = LABELS if self.reader.answer != "tokens" else LABELS[1:]  # of tokens, `label` is about something else
        label = self.label_column or next((name for name in usual if name in columns), None)
        if self.reader.answer == "embedding":
            return column, None
        if label is None and self.reader.answer != "tokens":
            raise PosttrainError(
                f"{self.reader.name} is judged by its answers, and the data have none (columns {', '.join(columns)}): "
                "say which holds them (label_column=)"
            )
        return column, label

    def _tokens(
        self, row: Mapping[str, Any], column: str, label: str | None, number: int
    ) -> tuple[list[int], list[int]]:
        """Ids and labels of a row; a classifier's ids are truncated."""
        if column == IDS:
            ids, labels = self._given(row, label, number)
        elif isinstance(row[column], str):
            ids = labels = list(self.tokenizer(row[column])["input_ids"])
        else:
            raise PosttrainError(f"row {number}: {column!r} is {row[column]!r}; text is needed")
        if self.reader.answer == "tokens" or len(ids) <= self.length:
            return ids, labels
        self.cut += 1
        if column == IDS or isinstance(self.tokenizer, ByteTokenizer):
            return ids[: self.length], labels
        # the tokenizer's own truncation keeps the token that ends a text
        return list(self.tokenizer(row[column], truncation=True, max_length=self.length)["input_ids"]), labels

    def _given(self, row: Mapping[str, Any], label: str | None, number: int) -> tuple[list[int], list[int]]:
        """Ids and labels in the row, without those that its mask hides."""
        ids = _integers(row[IDS], f"row {number}: {IDS!r}")
        labels, known = ids, self.reader.vocabulary
        if label is not None and self.reader.answer == "tokens" and row.get(label) is not None:
            labels = _integers(row[label], f"row {number}: {label!r}")
            wrong = next((token for token in labels if token != IGNORE and not 0 <= token < known), None)
            if wrong is not None:
                raise PosttrainError(
                    f"row {number}: label {wrong} is no token of {self.reader.name}, which has {known}"
                )
        mask = [1] * len(ids)
        if row.get("attention_mask"):
            mask = _integers(row["attention_mask"], f"row {number}: 'attention_mask'")
        for name, other in (("labels", labels), ("an attention_mask", mask)):
            if len(other) != len(ids):
                raise PosttrainError(f"row {number} has {name} of {len(other)} entries for {len(ids)} input_ids")
        return list(compress(ids, mask)), list(compress(labels, mask))

    def _answer(self, row: Mapping[str, Any], label: str | None, number: int) -> Any:
        assert label is not None
        given, classes = row.get(label), self.reader.classes
        try:
            if self.reader.answer == "number":
                return _finite(given)
            if self.reader.answer == "several":
                several = [_finite(number) for number in given]  # type: ignore[union-attr]
                if len(several) != len(classes):
                    raise ValueError
                return several
            place = classes.index(given) if given in classes else int(given)  # type: ignore[arg-type]
            if not 0 <= place < len(classes) or (isinstance(given, float) and given != place):
                raise ValueError
            return place
        except (TypeError, ValueError, OverflowError):
            needed = {"number": "a number", "several": f"{len(classes)} numbers"}.get(
                self.reader.answer,
                f"one of {len(classes)} classes, 0 to {len(classes) - 1} or {', '.join(classes[:5])}",
            )
            raise PosttrainError(f"row {number}: {label!r} is {given!r}; {needed} is needed") from None


def piece_sizes(tokens: int, length: int) -> list[int]:
    """As few pieces as possible, all of nearly the same size, so that none has hardly any context.

    >>> piece_sizes(130, 128), piece_sizes(128, 128), piece_sizes(301, 100)
    ([65, 65], [128], [76, 75, 75, 75])
    """
    pieces = -(-tokens // length)
    return [tokens // pieces + (place < tokens % pieces) for place in range(pieces)]


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError
    return number


def _integers(values: Any, what: str) -> list[int]:
    try:
        integers = [int(value) for value in values]
        if isinstance(values, str) or integers != list(values):
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise PosttrainError(f"{what} is {str(values)[:80]!r}; a list of whole numbers is needed") from None
    return integers
