"""The tokenizer of a model: given, or found where the model is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from learnscope.posttrain.errors import PosttrainError
from learnscope.sources.errors import first_line
from learnscope.sources.files import near_names
from learnscope.sources.hub import hub_reason
from learnscope.sources.hushed import hushed

BYTES = "bytes"
MARKS = ("tokenizer_config.json", "tokenizer.json")
_OLDER = ("vocab.json", "vocab.txt", "tokenizer.model", "spiece.model")
"""Files of a tokenizer whose kind only config.json tells."""


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
                f"tokenizer {given}: {first_line(error)}; name a folder or file that tokenizer.save_pretrained wrote"
            ) from None
    if path.suffix == ".json" or str(given).startswith((".", "/", "~")):
        raise PosttrainError(f"tokenizer: there is no file or folder {given}{near_names(path)}")
    from transformers import AutoTokenizer

    try:
        with hushed():
            return AutoTokenizer.from_pretrained(str(given), trust_remote_code=False)
    except Exception as error:  # noqa: BLE001  (the hub, the network and the format each raise their own)
        raise PosttrainError(f"tokenizer {given!r}: there is no such folder here, and {hub_reason(error)}") from None


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
