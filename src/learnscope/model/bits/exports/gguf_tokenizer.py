"""A tokenizer as GGUF metadata, where GGUF can say what it does; else the reason why it is left out.

A tokenizer that llama.cpp would read without an error and apply differently is worse than none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from learnscope.model.bits.exports.planning import library
from learnscope.model.bits.torchao_export import ExportError

Write = Callable[[Any], None]
_PREFERRED = ("llama-bpe", "qwen2")
"""Of several names for one way to split text, those of the families that are written here."""


class _LeftOut(Exception):
    """Why a tokenizer cannot be written."""


def tokenizer_metadata(tokenizer: Any, vocabulary: int) -> tuple[Write, str | None]:
    """What writes the tokenizer's metadata with a `GGUFWriter`, and what is to be said, such as why it is left out."""
    if tokenizer is None:
        return _without, None
    try:
        write = _written(tokenizer, vocabulary)
        # transformers puts no space before a text that has one, llama.cpp always does; there is no key for it
        metaspace = '"Metaspace"' in tokenizer.backend_tokenizer.to_str()
        return write, "llama.cpp puts one more space before texts that begin with a space" if metaspace else None
    except _LeftOut as reason:
        return _without, f"the tokenizer is left out: {reason}"


def _without(writer: Any) -> None:
    writer.add_tokenizer_model("no_vocab")


def _written(tokenizer: Any, vocabulary: int) -> Write:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise _LeftOut(f"{type(tokenizer).__name__} is not built on the tokenizers library")
    parts: dict[str, Any] = json.loads(backend.to_str())
    tokens = dict(sorted((number, token) for token, number in tokenizer.get_vocab().items()))
    if max(tokens, default=-1) >= vocabulary:
        raise _LeftOut(f"it has a token {max(tokens)}, and the model has {vocabulary}")
    model = parts["model"]
    if model["type"] != "BPE":
        raise _LeftOut(f"its model is {model['type']}; BPE on bytes and BPE with byte fallback can be written")
    merges = [tuple(pair.split(" ", 1)) if isinstance(pair, str) else tuple(pair) for pair in model["merges"]]
    types = _types(parts, tokens, vocabulary, tokenizer)
    names = [tokens.get(number, f"[PAD{number}]") for number in range(vocabulary)]
    if model.get("byte_fallback"):
        own = partial(_write_sentencepiece, scores=_scores(names, model["vocab"], merges), spaced=_spaced(parts))
    else:
        joined = [" ".join(part.replace(" ", "Ġ") for part in pair) for pair in merges]
        own = partial(_write_bytes, pre=_pre_tokenizer(parts), merges=joined)

    def write(writer: Any) -> None:
        own(writer)
        writer.add_token_list(names)
        writer.add_token_types(types)
        _write_special(tokenizer, writer)

    return write


def _write_bytes(writer: Any, pre: str, merges: list[str]) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_merges(merges)


def _write_sentencepiece(writer: Any, scores: list[float], spaced: bool) -> None:
    writer.add_tokenizer_model("llama")
    writer.add_token_scores(scores)
    writer.add_add_space_prefix(spaced)


def _write_special(tokenizer: Any, writer: Any) -> None:
    for name, add in (
        ("bos", writer.add_bos_token_id), ("eos", writer.add_eos_token_id),
        ("unk", writer.add_unk_token_id), ("pad", writer.add_pad_token_id),
    ):  # fmt: skip
        number = getattr(tokenizer, f"{name}_token_id", None)
        if isinstance(number, int):
            add(number)
    empty = list(tokenizer("")["input_ids"])
    writer.add_add_bos_token(bool(empty) and empty[0] == tokenizer.bos_token_id)
    template = getattr(tokenizer, "chat_template", None)
    if isinstance(template, str):
        writer.add_chat_template(template)


def _types(parts: Mapping[str, Any], tokens: Mapping[int, str], vocabulary: int, tokenizer: Any) -> list[Any]:
    kinds = library("gguf", "TokenType")
    added = {token["id"]: token["special"] for token in parts.get("added_tokens") or ()}
    unknown = getattr(tokenizer, "unk_token_id", None)
    types = []
    for number in range(vocabulary):
        token = tokens.get(number)
        if token is None:
            kind = kinds.UNUSED
        elif parts["model"].get("byte_fallback") and number == unknown:
            kind = kinds.UNKNOWN
        elif number in added:
            kind = kinds.CONTROL if added[number] else kinds.USER_DEFINED
        elif parts["model"].get("byte_fallback") and len(token) == 6 and token.startswith("<0x"):
            kind = kinds.BYTE
        else:
            kind = kinds.NORMAL
        types.append(kind)
    return types


def _pre_tokenizer(parts: Mapping[str, Any]) -> str:
    """The name of the way in which text is split before bytes are merged."""
    if parts.get("normalizer") not in (None, {"type": "NFC"}):
        raise _LeftOut(f"it normalises text by {parts['normalizer']['type']}")
    pre = parts.get("pre_tokenizer") or {}
    steps = pre.get("pretokenizers", [pre])
    if not any(step.get("type") == "ByteLevel" for step in steps):
        raise _LeftOut("its BPE is neither on bytes nor with byte fallback")
    if any(step.get("type") == "ByteLevel" and step.get("add_prefix_space") for step in steps):
        raise _LeftOut("it puts a space before every text, which GGUF's names for BPE on bytes do not say")
    if len(steps) == 1 and steps[0].get("use_regex", True):
        return "gpt-2"
    try:
        known = library("transformers.integrations.gguf.gguf_tokenizer_mapping", "GGUF_PRE_TOKENIZER_SPLITS")
    except ExportError:
        known = {}
    splits = [step["pattern"].get("Regex") for step in steps if step.get("type") == "Split"]
    for name in (*_PREFERRED, *known):
        if len(steps) == 2 and splits == [known.get(name)]:
            return str(name)
    raise _LeftOut("it splits text in a way that has no name in GGUF")


def _scores(names: list[str], known: Collection[str], merges: list[tuple[str, ...]]) -> list[float]:
    """SentencePiece merges whatever pair is a token, best score first: minus the rank of the merge."""
    pairs = set(merges)
    ranks: dict[str, int] = {}
    for rank, (left, right) in enumerate(merges):
        ranks.setdefault(left + right, rank)
    for token in known:
        for cut in range(1, len(token)):
            pair = token[:cut], token[cut:]
            if pair not in pairs and pair[0] in known and pair[1] in known:
                raise _LeftOut(
                    f"{pair[0]!r} and {pair[1]!r} are tokens whose pair is one too, and it does not merge them"
                )
    return [float(-ranks.get(name, len(merges))) for name in names]


def _spaced(parts: Mapping[str, Any]) -> bool:
    """Whether a space is put before the text."""
    pre, normalizer = parts.get("pre_tokenizer") or {}, parts.get("normalizer") or {}
    if pre.get("type") == "Metaspace":
        return bool(pre.get("prepend_scheme", "always") != "never")
    steps = normalizer.get("normalizers", [normalizer])
    if pre or not any(step.get("type") == "Replace" for step in steps):
        raise _LeftOut("it does not write spaces as '▁', as GGUF's SentencePiece does")
    return any(step.get("type") == "Prepend" for step in steps)
