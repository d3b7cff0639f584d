"""What a language model is examined on if there are no data: sequences that are sampled from itself."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from learnscope.model.outputs.sampling import CannotSample, check_can_sample, own_samples
from learnscope.model.weights.content import model_content
from learnscope.options import whole_number
from learnscope.posttrain.data import Batches, collated
from learnscope.posttrain.errors import PosttrainError
from learnscope.posttrain.examples import Example
from learnscope.posttrain.reader import Reader, reader_of
from learnscope.progress import progress_bar
from learnscope.reading.audit_numbers import OWN_SAMPLES
from learnscope.store.memo import ResultCache

_DATA = "give data= (a .jsonl file with {}, or another source)"
_NOTE = (
    "there are no data, so the model is examined on sequences that are sampled from itself: they show what changes its "
    "outputs, and not how good it is on any text (give data= for that)"
)


def reader_without_data(model: nn.Module) -> Reader:
    """Facts about a model that can be examined on its own samples; any other is refused, with what it needs."""
    reader = reader_of(model)
    if reader.answer != "tokens":
        kind = {"class": "classes", "number": "numbers", "several": "several numbers", "embedding": "embeddings"}
        columns = "text" if reader.answer == "embedding" else "text and label"
        raise PosttrainError(
            f"{reader.name} answers with {kind[reader.answer]}, and there are no data to ask it about: "
            f"{_DATA.format(columns)}"
        )
    try:
        check_can_sample(model)
    except CannotSample as error:
        raise PosttrainError(
            f"there are no data, and nothing can be sampled from the model itself: {error}; "
            f"{_DATA.format('text or input_ids')}"
        ) from None
    return reader


def sampled_batches(
    model: nn.Module, *, examples: int, length: int, batch_size: int = 8, seed: int = 0,
    memo: ResultCache | None = None, progress: bool = False,
) -> Batches:  # fmt: skip
    """Batches of sequences that are sampled from the model itself; the same seed gives the same."""
    reader = reader_without_data(model)
    examples, batch_size = whole_number("examples", examples, 1), whole_number("batch_size", batch_size, 1)
    seed = whole_number("seed", seed)
    length = min(whole_number("length", length, 3), reader.positions or length)
    question = {
        "what": "own samples 1", "model": model_content(model), "torch": torch.__version__, "examples": examples,
        "length": length, "seed": seed,
    }  # fmt: skip

    def drawn() -> dict[str, Any]:
        with progress_bar("sampling from the model", show=progress) as show:
            sizes: dict[str, Any] = {"count": examples, "length": length, "seed": seed}
            try:
                ids = own_samples(model, vocabulary=reader.vocabulary, show=show, **sizes)
            except CannotSample as error:
                raise PosttrainError(
                    f"there are no data, and nothing can be sampled from the model itself: {error}"
                ) from None
        return {"ids": ids.tolist()}

    rows = (memo or ResultCache()).once(question, drawn)["ids"]
    made = [Example(ids, ids, number) for number, ids in enumerate(rows, 1)]
    about = {
        "source": OWN_SAMPLES, "split": None, "seed": seed, "documents": examples, "examples": examples,
        "tokens": examples * length, "length": length, "notes": [_NOTE],
    }  # fmt: skip
    parts = [made[begin : begin + batch_size] for begin in range(0, examples, batch_size)]
    return Batches([collated(part, 0, reader) for part in parts], about)
