"""How a model reads text: its tokenizer, its vocabulary, the length of its texts, and the kind of its answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn

from learnscope.posttrain.encoders import is_headless
from learnscope.posttrain.errors import PosttrainError
from learnscope.sources.errors import first_line
from learnscope.sources.files import near_names
from learnscope.sources.hub import hub_reason
from learnscope.sources.hushed import hushed
from learnscope.task import unwrap

Answer = Literal["tokens", "class", "number", "several", "embedding"]
BYTES = "bytes"
MARKS = ("tokenizer_config.json", "tokenizer.json")
_OLDER = ("vocab.json", "vocab.txt", "tokenizer.model", "spiece.model")
"""Files of a tokenizer whose kind only config.json tells."""


@dataclass(frozen=True, slots=True)
class Reader:
    """A model that reads tokens; `positions` is None if texts may have any length."""

    name: str
    answer: Answer
    vocabulary: int
    positions: int | None = None
    classes: tuple[str, ...] = ()
    pad: int | None = None

    @property
    def least(self) -> int:
        """Tokens below which there is nothing to predict."""
        return 2 if self.answer == "tokens" else 1


def reader_of(model: nn.Module) -> Reader:
    """Facts about a model that reads tokens; any other is refused."""
    inner = unwrap(model)
    name = type(inner).__name__
    config: Any = getattr(inner, "config", None)
    vocabulary = _vocabulary(inner, config)
    if vocabulary is None:
        raise PosttrainError(
            f"{name} reads no tokens, so no text can be made into batches for it: examine it in Python, "
            "ModelAnalyzer(model).analyze(loader), with batches that it takes, such as (inputs, targets) or a "
            "dictionary with pixel_values and labels"
        )
    positions = getattr(config, "max_position_embeddings", None)
    # RoBERTa counts positions from after the padding's: no token uses the rows before
    tables = [m for path, m in inner.named_modules() if path.endswith("position_embeddings")]
    paddings = [m.padding_idx + 1 for m in tables if isinstance(m, nn.Embedding) and m.padding_idx is not None]
    positions = positions - (paddings or [0])[0] if isinstance(positions, int) and positions > 0 else None
    if is_headless(inner):
        return Reader(name, "embedding", vocabulary, positions, pad=getattr(config, "pad_token_id", None))
    if not name.endswith("ForSequenceClassification"):
        return Reader(name, "tokens", vocabulary, positions)
    labels = tuple(str(config.id2label[place]) for place in range(config.num_labels))
    answer: Answer = {"regression": "number", "multi_label_classification": "several"}.get(
        config.problem_type or ("regression" if len(labels) == 1 else ""), "class"
    )  # type: ignore[assignment]
    return Reader(name, answer, vocabulary, positions, labels, config.pad_token_id)


def check_tokens(model: nn.Module, batches: Sequence[Any]) -> None:
    """Refuse token ids outside the vocabulary, which torch would only call out of range."""
    inner = unwrap(model)
    known = _vocabulary(inner, getattr(inner, "config", None))
    for number, batch in enumerate(batches):
        ids = batch.get("input_ids") if isinstance(batch, Mapping) else None
        if known is None or not isinstance(ids, Tensor) or not ids.numel() or ids.is_floating_point():
            continue
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= known:
            raise PosttrainError(
                f"batch {number} has token {low if low < 0 else high}, and {type(inner).__name__} knows the tokens 0 "
                f"to {known - 1}: the tokenizer or the data are another model's"
            )


def _vocabulary(model: nn.Module, config: Any) -> int | None:
    if type(model).__name__.endswith("ForImageClassification"):
        return None
    try:
        table = model.get_input_embeddings()  # type: ignore[operator]
    except (AttributeError, NotImplementedError, TypeError):  # a model of another make, or one without a table
        table = next((module for module in model.modules() if isinstance(module, nn.Embedding)), None)
    if isinstance(table, nn.Embedding):
        return table.num_embeddings
    known = getattr(config, "vocab_size", None)
    return known if isinstance(known, int) else None


class ByteTokenizer:
    """UTF-8 bytes as token ids, for models that read bytes.

    >>> ByteTokenizer()("é!")
    {'input_ids': [195, 169, 33]}
    """

    pad_token_id = None
    vocab_size = 256

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": list(text.encode())}

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(int(token) for token in ids).decode(errors="replace")

    def __len__(self) -> int:
        return self.vocab_size


def load_tokenizer(given: Any) -> Any:
    """A tokenizer as it is; "bytes"; or one from a folder, a tokenizer.json, or the hub."""
    if given is not None and not isinstance(given, str | Path) and not callable(given):
        raise PosttrainError(f"a tokenizer is called with a text, which a {type(given).__name__} cannot be: wrap it")
    if not isinstance(given, str | Path):
        return given
    if given == BYTES:
        return ByteTokenizer()
    path = Path(given).expanduser()
    if path.exists():
        try:
            return _from_path(path)
        except Exception as error:  # noqa: BLE001  (each kind of tokenizer fails on a damaged file in its own way)
            raise PosttrainError(
                f"tokenizer={str(given)!r}: {first_line(error)}; name a folder or file that "
                "tokenizer.save_pretrained wrote"
            ) from None
    if path.suffix == ".json" or str(given).startswith((".", "/", "~")):
        raise PosttrainError(f"tokenizer={str(given)!r}: there is no such file or folder{near_names(path)}")
    from transformers import AutoTokenizer

    try:
        with hushed():
            return AutoTokenizer.from_pretrained(str(given), trust_remote_code=False)
    except Exception as error:  # noqa: BLE001  (the hub, the network and the format each raise their own)
        raise PosttrainError(f"tokenizer={given!r}: there is no such folder here, and {hub_reason(error)}") from None


def tokenizer_beside(path: Path) -> tuple[Any, list[str]]:
    """The tokenizer in a model's folder or beside its file, if there is one; or why it cannot be loaded."""
    folder = path if path.is_dir() else path.parent
    marks = MARKS if path.is_file() else (*MARKS, *_OLDER)
    if not any((folder / name).is_file() for name in marks):
        return None, []
    try:
        return _from_path(folder), []
    except Exception as error:  # noqa: BLE001  (as above; the model can be examined on token ids without it)
        return None, [f"the tokenizer in {folder} cannot be loaded: {first_line(error)}"]


def _from_path(path: Path) -> Any:
    import transformers  # sets its own level of logging

    make: Any = transformers.PreTrainedTokenizerFast  # has no types
    with hushed():
        if path.is_file():
            return make(tokenizer_file=str(path))
        if not any((path / name).is_file() for name in (MARKS[0], *_OLDER)) and (path / MARKS[1]).is_file():
            return make(tokenizer_file=str(path / MARKS[1]))
        return transformers.AutoTokenizer.from_pretrained(str(path), local_files_only=True, trust_remote_code=False)
