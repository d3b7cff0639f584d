"""Batches for a finished model: from a file, a folder, a name, or the built-in text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from learnscope.model.data import fixed_batches
from learnscope.options import whole_number
from learnscope.posttrain.errors import PosttrainError
from learnscope.posttrain.examples import Encoder, Example
from learnscope.posttrain.reader import ByteTokenizer, Reader, load_tokenizer, reader_of
from learnscope.sources import SourceError, Split, builtin_rows, read_rows
from learnscope.sources.hushed import hushed
from learnscope.task.shapes import IGNORE

BUILTIN = "the built-in text"


class Batches(list[dict[str, Tensor]]):
    """Batches, and facts `about` them: source, split, documents, examples, tokens, notes."""

    def __init__(self, batches: Sequence[dict[str, Tensor]], about: dict[str, Any]) -> None:
        super().__init__(batches)
        self.about = about


def load_data(
    source: Any = None,
    *,
    model: nn.Module,
    tokenizer: Any = None,
    split: str | None = None,
    batch_size: int = 8,
    length: int = 128,
    examples: int | None = None,
    text_column: str | None = None,
    label_column: str | None = None,
) -> Any:
    """Batches with input_ids, attention_mask and labels; a loader, a data set or batches are passed on as they are.

    Args:
        source: a `.txt` file, whose paragraphs are documents; `.jsonl`, `.json`, `.csv` or `.parquet` with `text` or
            `input_ids`, for sequence classifiers with `label`; a folder of the package `datasets` or a name on the hub;
            a list of texts; None for the built-in text.
        model: what the data are for: it limits tokens, lengths and labels.
        tokenizer: a tokenizer, its folder or file, or "bytes".
        split: such as `validation[:100]` or `test[10%:20%]`; of a file, which is one set of rows, only the part counts.
        batch_size: examples a batch; the last batch may be smaller.
        length: tokens an example at most. Longer texts are cut into pieces; for a classifier they are cut short.
        examples: at most so many, the first.
        text_column: the column of the texts, where it is not `text`.
        label_column: the column of the answers, where it is not `label` or `labels`.
    """
    batch_size = whole_number("batch_size", batch_size, 1)
    examples = None if examples is None else whole_number("examples", examples, 1)
    if not (source is None or isinstance(source, str | Path) or is_texts(source)):
        if split is not None:
            raise PosttrainError(f"split={split!r} is for data that are named; of batches, pass those that are meant")
        return source if examples is None else fixed_batches(source, examples=examples)
    reader, tokenizer = reader_of(model), load_tokenizer(tokenizer)
    if isinstance(tokenizer, ByteTokenizer) and reader.vocabulary < len(tokenizer):
        raise PosttrainError(
            f"{reader.name} has {reader.vocabulary} tokens: it does not read bytes, of which there are 256"
        )
    rows, about, notes = source_rows(source, split)
    limit = token_limit(reader, tokenizer, whole_number("length", length, 3))
    encoder = Encoder(reader, tokenizer, limit, text_column, label_column)
    with hushed():  # transformers warns of texts that are longer than a model takes, which are cut here
        made = list(islice(encoder.examples(rows), examples))
    if not made:
        raise PosttrainError(
            f"{about['source']}: none of {len(rows)} documents is left, for all have fewer than {reader.least} tokens, "
            "and a next token can only be predicted after a first: give longer texts, or join short ones into one row"
        )
    notes += _left_out(encoder)
    if reader.answer != "tokens" and reader.pad is None and batch_size > 1:
        batch_size = 1
        notes.append(f"{reader.name} has no padding token, so its texts are given one by one")
    tokens = sum(len(example.ids) for example in made)
    about |= {"documents": encoder.documents, "examples": len(made), "tokens": tokens, "length": limit, "notes": notes}
    pad = padding(reader, tokenizer)
    parts = [made[begin : begin + batch_size] for begin in range(0, len(made), batch_size)]
    return Batches([collated(part, pad, reader) for part in parts], about)


def token_limit(reader: Reader, tokenizer: Any, length: int) -> int:
    """Tokens that an example may have: no more than are asked for, and than model and tokenizer take."""
    limits = [length, reader.positions, getattr(tokenizer, "model_max_length", None)]
    return min(int(number) for number in limits if isinstance(number, int | float) and number > 0)


def padding(reader: Reader, tokenizer: Any) -> int:
    """Any token would do, since a mask hides it, but a classifier may look for its own to find a text's end."""
    pad = reader.pad if reader.pad is not None else getattr(tokenizer, "pad_token_id", None)
    return pad if isinstance(pad, int) and 0 <= pad < reader.vocabulary else 0


def is_texts(source: Any) -> bool:
    return isinstance(source, list) and bool(source) and all(isinstance(text, str) for text in source)


def source_rows(source: Any, split: str | None) -> tuple[Any, dict[str, Any], list[str]]:
    """Rows, facts about them, and a note where a split's name was ignored."""
    try:
        if isinstance(source, list):
            chosen = (Split(None) if split is None else Split.parse(split)).rows(len(source))
            rows: Any = [{"text": text} for text in source[chosen.start : chosen.stop]]
            if not rows:
                raise PosttrainError(f"there are no texts in split {split!r}")
            return rows, {"source": f"{len(source)} texts", "split": split}, []
        if source is None:
            split = split or "validation"
            return builtin_rows(split), {"source": BUILTIN, "split": split}, []
        rows = read_rows(source, split=split)
    except SourceError as error:
        wrong = {"name": f"data={str(source)!r}: ", "split": f"split={split!r}: "}.get(error.about or "", "")
        raise PosttrainError(f"{wrong}{error}") from None
    alone = split is not None and Path(source).expanduser().is_file() and Split.parse(split).name is not None
    notes = [f"{source} is one set of rows, which split={split!r} was taken from"] if alone else []
    return rows, {"source": str(source), "split": split}, notes


def _left_out(encoder: Encoder) -> list[str]:
    notes = []
    if encoder.too_short:
        notes.append(f"{encoder.too_short} documents of fewer than {encoder.reader.least} tokens were left out")
    if encoder.cut:
        how = "into pieces" if encoder.reader.answer == "tokens" else "short"
        notes.append(f"{encoder.cut} documents of more than {encoder.length} tokens were cut {how}")
    return notes


def collated(made: Sequence[Example], pad: int, reader: Reader) -> dict[str, Tensor]:
    """A batch, padded on the right; `example_ids` are the documents' numbers."""
    ids = [torch.tensor(example.ids) for example in made]
    batch = {
        "input_ids": pad_sequence(ids, True, pad),
        "attention_mask": pad_sequence([torch.ones_like(row) for row in ids], True),
        "example_ids": torch.tensor([example.document for example in made]),
    }
    if reader.answer == "embedding":
        return batch
    answers = [torch.tensor(example.answer) for example in made]
    labels = pad_sequence(answers, True, IGNORE) if reader.answer == "tokens" else torch.stack(answers)
    return {**batch, "labels": labels}
