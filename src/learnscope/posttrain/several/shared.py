"""Texts that all of several models are measured on, none of which took part in the search of any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from learnscope.model.data import cut, joined
from learnscope.model.outputs.halves import sides
from learnscope.model.weights.content import data_content
from learnscope.posttrain.data import collated, padding
from learnscope.posttrain.examples import IDS, Encoder, Example
from learnscope.posttrain.reader import Reader
from learnscope.posttrain.several.spans import NoOffsets, common_span, digest, tokens_of
from learnscope.probes.bits.shared_texts import NO_BYTES
from learnscope.sources.hushed import hushed
from learnscope.task import IGNORE, Task

BATCH = 8
NONE_LEFT = "there is no text that every model reads and that no search has seen: give more data"
OTHER_ANSWERS = "it answers otherwise than {}: {} beside {}"
OTHER_VOCABULARY = "the data are token ids, and it has {:,} tokens where {} has {:,}: give data= as text"


@dataclass(frozen=True)
class Reading:
    """How one of several models reads rows of text, and the numbers of those that its search may see."""

    encoder: Encoder
    searched: frozenset[int]

    @property
    def reader(self) -> Reader:
        return self.encoder.reader


@dataclass(frozen=True)
class Shared:
    """The texts for one model: its batches, and for each text its id, its bytes, and a digest of its tokens."""

    batches: Sequence[Any]
    texts: Sequence[Mapping[str, Any]]


Found = tuple[dict[str, Shared], dict[str, str]]
"""By model: the texts, or the reason why there are none."""


def searched_documents(task: Task, batches: Sequence[Any]) -> frozenset[int]:
    """The numbers of the documents that a search over bits may see of these batches."""
    pairs = zip(batches, sides(task, batches), strict=True)
    return frozenset(
        int(document)
        for batch, of_batch in pairs
        for document, side in zip(batch["example_ids"].tolist(), of_batch, strict=True)
        if side != 1
    )


def shared_texts(readings: Mapping[str, Reading], rows: Sequence[Mapping[str, Any]], most: int) -> Found:
    """The first rows that no search may see, as each model reads them; models that answer otherwise are left out."""
    kept, why = _alike(readings)
    searched = frozenset[int]().union(*(reading.searched for reading in kept.values()))
    free = [number for number in range(1, len(rows) + 1) if number not in searched]
    column, _ = next(iter(kept.values())).encoder.find_columns(rows[0])
    by_text = next(iter(kept.values())).reader.answer == "tokens" and column != IDS
    if by_text or column == IDS:
        kept, lost = _with_offsets(kept, str(rows[0][column])) if by_text else _same_vocabulary(kept)
        why |= lost
    made: dict[str, list[Example]] = {name: [] for name in kept}
    texts: dict[str, list[dict[str, Any]]] = {name: [] for name in kept}
    for number in free:
        read = _spans(kept, rows[number - 1][column]) if by_text else _examples(kept, rows[number - 1])
        for name, (example, text) in (read or {}).items():
            made[name].append(replace(example, document=number))
            texts[name].append(text)
        if len(next(iter(made.values()))) >= most:
            break
    if not all(made.values()):
        return {}, why | dict.fromkeys(kept, NONE_LEFT)
    return {name: Shared(_batches(kept[name], made[name]), texts[name]) for name in kept}, why


def _alike(readings: Mapping[str, Reading]) -> tuple[dict[str, Reading], dict[str, str]]:
    """Those that answer as the first does, and why the others cannot be compared with it."""
    first = next(iter(readings))
    asked = readings[first].reader
    kept, why = {}, {}
    for name, reading in readings.items():
        reader = reading.reader
        if reader.answer == "embedding":
            why[name] = "an encoder without a head has no loss"
        elif (reader.answer, reader.classes) != (asked.answer, asked.classes):
            why[name] = OTHER_ANSWERS.format(first, _answers(reader), _answers(asked))
        else:
            kept[name] = reading
    return kept or {first: readings[first]}, why


def _answers(reader: Reader) -> str:
    named = ", ".join(reader.classes[:4]) + (", …" if len(reader.classes) > 4 else "")
    return f"{reader.answer} ({named})" if named else reader.answer


def _with_offsets(kept: Mapping[str, Reading], text: str) -> tuple[dict[str, Reading], dict[str, str]]:
    """Without those whose tokenizer has no offsets."""
    found, why = {}, {}
    for name, reading in kept.items():
        try:
            tokens_of(reading.encoder.tokenizer, text)
            found[name] = reading
        except NoOffsets as error:
            why[name] = str(error)
    return found or dict(kept), why


def _same_vocabulary(kept: Mapping[str, Reading]) -> tuple[dict[str, Reading], dict[str, str]]:
    """Without those whose tokens are not those of the first, where the data are token ids."""
    first, sizes = next(iter(kept)), {name: reading.reader.vocabulary for name, reading in kept.items()}
    own = sizes[first]
    why = {name: OTHER_VOCABULARY.format(size, first, own) for name, size in sizes.items() if size != own}
    return {name: reading for name, reading in kept.items() if name not in why}, why


def _spans(kept: Mapping[str, Reading], text: str) -> dict[str, tuple[Example, dict[str, Any]]] | None:
    """The same characters of a text for all models; None if nothing of it is left."""
    with hushed():  # transformers warns of texts that are longer than a model takes
        read = {name: tokens_of(reading.encoder.tokenizer, text) for name, reading in kept.items()}
    span = common_span(list(read.values()), [reading.encoder.length for reading in kept.values()])
    if span is None:
        return None
    found = {}
    size = len(text[slice(*span)].encode())
    for name, tokens in read.items():
        ids, labels = tokens.predicted(*span)
        about = {"id": digest(text[: span[1]], span), "bytes": size, "tokens": digest(ids, labels)}
        found[name] = Example(ids, labels, 0), about
    return found


def _examples(kept: Mapping[str, Reading], row: Mapping[str, Any]) -> dict[str, tuple[Example, dict[str, Any]]] | None:
    """A row of token ids, or of a text with its label."""
    found = {}
    length = min(reading.encoder.length for reading in kept.values())
    for name, reading in kept.items():
        example = next(iter(replace(reading.encoder, length=length).examples([row])), None)
        if example is None:
            return None
        about = {"bytes": NO_BYTES, "tokens": digest(example.ids, example.answer)}
        found[name] = example, {"id": digest({key: str(value) for key, value in row.items()}), **about}
    return found


def _batches(reading: Reading, made: Sequence[Example]) -> list[dict[str, Any]]:
    reader, size = reading.reader, BATCH
    if reader.answer != "tokens" and reader.pad is None:
        size = 1
    pad = padding(reader, reading.encoder.tokenizer)
    return [collated(made[begin : begin + size], pad, reader) for begin in range(0, len(made), size)]


def shared_batches(task: Task, batches: Sequence[Any], most: int) -> Shared | None:
    """Of batches that every model takes as they are: the examples that no search sees; None if they cannot be cut."""
    if type(task).take is not Task.take:
        return None
    counts = [bool(counted) for batch in batches for counted in _counted(task, batch)]
    found, texts = list[Any](), list[dict[str, Any]]()
    for batch, of_batch in zip(batches, sides(task, batches, counts), strict=True):
        for place, side in enumerate(of_batch):
            if side == 1 and len(found) < most:
                found.append(cut(task, batch, place, place + 1))
                content = data_content([found[-1]])
                texts.append({"id": content[:12], "bytes": NO_BYTES, "tokens": content[:12]})
    return Shared(list(joined(task, found, examples=BATCH)), texts) if found else None


def _counted(task: Task, batch: Any) -> list[bool]:
    """Whether each example has a position that counts: a first token is never predicted."""
    targets = task.targets(batch)
    if targets is None or targets.is_floating_point():
        return [True] * task.size(batch)
    counts = targets != IGNORE
    return (counts[:, 1:].flatten(1).any(1) if counts.ndim > 1 else counts).tolist()
