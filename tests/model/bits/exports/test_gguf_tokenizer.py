"""Tokenizers in GGUF files: the same tokens when they are read again, or a reason why they are left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from learnscope.model.bits.exports.export import export
from model.bits.exports.exported_models import gpt2, llama

gguf = pytest.importorskip("gguf")
TEXTS = ["The low lower lowest tower", "  two  spaces, äé \n\ttab 1234", "newer<|end|>widest"]
CORPUS = ["low lower lowest newer newest wider widest tower two the then 12 34"] * 4


def byte_level(*, prefix: bool = False, normalizer: Any = None, split: str | None = None) -> Any:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    if split is not None:
        bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(split), "isolated"), bytes_only])
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=290, special_tokens=["<|end|>"], initial_alphabet=alphabet)
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<|end|>", eos_token="<|end|>")


def sentencepiece_like(*, merges: int | None = None) -> Any:
    """Merges of every pair whose join is a token, by rank, as those of SentencePiece are."""
    from transformers import LlamaTokenizer

    words = ["lo", "▁lo", "▁low", "er", "▁lower", "es", "est", "▁lowest", "▁t", "▁to"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁lowerstwidnhk1234", *words]
    vocabulary = {token: number for number, token in enumerate(dict.fromkeys(tokens))}
    pairs = [
        (word[:cut], word[cut:])
        for word in words
        for cut in range(1, len(word))
        if word[:cut] in vocabulary and word[cut:] in vocabulary
    ]
    return LlamaTokenizer(vocab=vocabulary, merges=pairs[:merges])


def read_again(folder: Path, name: str = "m.gguf") -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder, gguf_file=name)


def test_bytes_give_the_same_tokens_when_read_again(tmp_path: Path) -> None:
    tokenizer = byte_level()
    model = gpt2(vocab_size=len(tokenizer) + 3)  # a model may have more rows than there are tokens
    told = export(model, {}, None, tmp_path / "m.gguf", tokenizer=tokenizer)
    assert told.notes == ()
    assert abs(told.file_bytes - told.promised_bytes) <= 0.01 * told.promised_bytes
    fields = gguf.GGUFReader(tmp_path / "m.gguf").fields
    assert fields["tokenizer.ggml.pre"].contents() == "gpt-2"
    assert len(fields["tokenizer.ggml.tokens"].contents()) == len(tokenizer) + 3
    assert fields["tokenizer.ggml.eos_token_id"].contents() == tokenizer.eos_token_id
    back = read_again(tmp_path)
    for text in TEXTS:
        assert back(text)["input_ids"] == tokenizer(text)["input_ids"]


def test_a_way_to_split_that_has_a_name_is_named(tmp_path: Path) -> None:
    from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

    tokenizer = byte_level(split=PRETOKENIZE_REGEX)
    model = llama("qwen2", vocab_size=len(tokenizer))
    assert export(model, {}, None, tmp_path / "m.gguf", tokenizer=tokenizer).notes == ()
    assert gguf.GGUFReader(tmp_path / "m.gguf").fields["tokenizer.ggml.pre"].contents() == "qwen2"
    back = read_again(tmp_path)
    for text in TEXTS[:2]:
        assert back(text)["input_ids"] == tokenizer(text)["input_ids"]


def test_byte_fallback_gives_the_same_tokens_when_read_again(tmp_path: Path) -> None:
    tokenizer = sentencepiece_like()
    model = llama(vocab_size=len(tokenizer))
    (note,) = export(model, {}, None, tmp_path / "m.gguf", tokenizer=tokenizer).notes
    assert note == "llama.cpp puts one more space before texts that begin with a space"
    fields = gguf.GGUFReader(tmp_path / "m.gguf").fields
    assert fields["tokenizer.ggml.model"].contents() == "llama"
    kinds = fields["tokenizer.ggml.token_type"].contents()
    assert kinds[0] == gguf.TokenType.UNKNOWN
    assert kinds[3] == gguf.TokenType.BYTE
    back = read_again(tmp_path)
    for text in TEXTS[:2]:
        assert back.tokenize(text) == tokenizer.tokenize(text)


def test_what_gguf_cannot_say_is_left_out_with_the_reason(tmp_path: Path) -> None:
    from tokenizers import normalizers

    cases = [
        (byte_level(prefix=True), "puts a space before every text"),
        (byte_level(normalizer=normalizers.Lowercase()), "normalises text by Lowercase"),
        (byte_level(split=r"\d|\D+"), "splits text in a way that has no name in GGUF"),
        (sentencepiece_like(merges=3), "are tokens whose pair is one too"),
        (object(), "object is not built on the tokenizers library"),
    ]
    model = gpt2(vocab_size=300)
    for tokenizer, reason in cases:
        (note,) = export(model, {}, None, tmp_path / "m.gguf", tokenizer=tokenizer).notes
        assert "the tokenizer is left out" in note
        assert reason in note
        assert "tokenizer.ggml.tokens" not in gguf.GGUFReader(tmp_path / "m.gguf").fields
    (note,) = export(gpt2(), {}, None, tmp_path / "m.gguf", tokenizer=byte_level()).notes
    assert "and the model has 96" in note
