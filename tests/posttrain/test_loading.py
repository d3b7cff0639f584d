"""Models from folders and files: the same outputs as transformers gives, and refusals that say what to do."""

from __future__ import annotations

import json
import logging
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from learnscope.model.bits.packed import save_packed
from learnscope.model.bits.quantise import quantised
from learnscope.model.bits.quantised_units import find_units
from learnscope.posttrain.errors import PosttrainError, PosttrainWarning
from learnscope.posttrain.loading import load_model
from learnscope.tensor.bits.quantize import Scheme

IDS = torch.tensor([[5, 17, 3, 60, 2, 9, 31]])
DECODER: dict[str, Any] = {
    "vocab_size": 67, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
ENCODER = {name: value for name, value in DECODER.items() if name != "num_key_value_heads"}
MADE: dict[str, Callable[[], Any]] = {
    "gpt2": lambda: tf.GPT2LMHeadModel(gpt2_config()),
    "llama": lambda: tf.LlamaForCausalLM(tf.LlamaConfig(**DECODER)),
    "llama_tied_bf16": lambda: tf.LlamaForCausalLM(tf.LlamaConfig(**DECODER, tie_word_embeddings=True)).bfloat16(),
    "qwen2": lambda: tf.Qwen2ForCausalLM(tf.Qwen2Config(**DECODER, tie_word_embeddings=True)),
    "qwen3": lambda: tf.Qwen3ForCausalLM(tf.Qwen3Config(**DECODER, head_dim=16)),
    "bert": lambda: tf.BertForSequenceClassification(tf.BertConfig(**ENCODER, num_labels=3)),
    "gpt2_classifier": lambda: tf.GPT2ForSequenceClassification(gpt2_config(num_labels=3, pad_token_id=0)),
    "vit": lambda: tf.ViTForImageClassification(
        tf.ViTConfig(
            hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, image_size=16,
            patch_size=8, num_labels=4,
        )
    ),
}  # fmt: skip


def gpt2_config(**options: Any) -> Any:
    tokens = {"bos_token_id": 1, "eos_token_id": 2}
    return tf.GPT2Config(
        **{"vocab_size": 67, "n_positions": 32, "n_embd": 64, "n_layer": 2, "n_head": 4, **tokens, **options}
    )


def outputs(model: nn.Module) -> Tensor:
    vision = type(model).__name__.startswith("ViT")
    generator = torch.Generator().manual_seed(1)
    given = {"pixel_values": torch.rand(2, 3, 16, 16, generator=generator)} if vision else {"input_ids": IDS}
    with torch.no_grad():
        logits: Tensor = model.eval()(**given).logits
    return logits


def assert_same(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    """By name, precision and bits."""
    assert {name: value.dtype for name, value in a.items()} == {name: value.dtype for name, value in b.items()}
    assert [name for name in a if not torch.equal(a[name], b[name])] == []


@pytest.fixture
def gpt2() -> Any:
    return MADE["gpt2"]()


@pytest.mark.parametrize("kind", MADE)
def test_a_folder_gives_what_transformers_gives(kind: str, tmp_path: Path) -> None:
    made = MADE[kind]()
    made.save_pretrained(tmp_path, max_shard_size="30KB" if kind == "qwen3" else "1GB")
    assert len(list(tmp_path.glob("*.safetensors"))) == (1 if kind != "qwen3" else len(list(tmp_path.glob("model-*"))))
    random = torch.random.get_rng_state()
    loaded = load_model(tmp_path)
    assert torch.equal(torch.random.get_rng_state(), random)
    assert type(loaded.model) is type(made)
    theirs = type(made).from_pretrained(tmp_path)
    for reference in (made, theirs):
        assert_same(loaded.model.state_dict(), reference.state_dict())
    # buffers that are computed, such as rotary frequencies, keep their own precision
    assert_same(dict(loaded.model.named_buffers()), dict(theirs.named_buffers()))
    # where a tensor happens to lie in memory changes the last bit of a sum
    exact = {p.dtype for p in made.parameters()} == {torch.float32}
    torch.testing.assert_close(outputs(loaded.model), outputs(theirs), rtol=1e-5 if exact else 0.02, atol=1e-6)
    assert not loaded.model.training
    assert (loaded.model.config.model_type, loaded.notes, loaded.tokenizer) == (made.config.model_type, (), None)
    assert loaded.origin == str(tmp_path)


def wrapped(weights: dict[str, Tensor]) -> dict[str, Callable[[], Any]]:
    body = {name.removeprefix("transformer."): value for name, value in weights.items()}
    masks = {f"h.{n}.attn.bias": torch.ones(1, 1, 32, 32) for n in range(2)}
    return {
        "plain": lambda: weights,
        "once": lambda: {name: value for name, value in weights.items() if name != "lm_head.weight"},
        "parallel": lambda: {f"module.{name}": value for name, value in weights.items()},
        "compiled in parallel": lambda: {f"module._orig_mod.{name}": value for name, value in weights.items()},
        "lightning": lambda: {"state_dict": {f"model.{name}": value for name, value in weights.items()}, "epoch": 3},
        "body": lambda: {name: value for name, value in body.items() if name != "lm_head.weight"} | masks,
        "parallel body with a head": lambda: {"model": {f"module.{name}": value for name, value in body.items()}},
        "nested": lambda: {"model_state_dict": weights, "optimizer": {"lr": 0.1}},
    }


def test_state_dictionaries_however_they_are_wrapped(gpt2: Any, tmp_path: Path) -> None:
    gpt2.config.save_pretrained(tmp_path)
    expected = outputs(gpt2)
    for name, body in wrapped(gpt2.state_dict()).items():
        torch.save(body(), tmp_path / "model.pt")
        loaded = load_model(tmp_path / "model.pt")
        assert torch.equal(outputs(loaded.model), expected), name
        assert loaded.notes == (), name
    save_file(wrapped(gpt2.state_dict())["once"](), tmp_path / "model.safetensors")
    assert torch.equal(outputs(load_model(str(tmp_path / "model.safetensors")).model), expected)
    folder = tmp_path / "bin"
    gpt2.config.save_pretrained(folder)
    torch.save(gpt2.state_dict(), folder / "pytorch_model.bin")
    assert torch.equal(outputs(load_model(folder).model), expected)


def test_the_order_in_which_configurations_are_looked_for(gpt2: Any, tmp_path: Path) -> None:
    """n_head changes the outputs and no shape, so it tells which configuration was taken."""
    fields = gpt2.config.to_dict()
    path = tmp_path / "m" / "model.pt"
    path.parent.mkdir()
    torch.save({"state_dict": gpt2.state_dict(), "hparams": fields | {"n_head": 8}}, path)
    (path.parent / "config.json").write_text(json.dumps(fields | {"n_head": 2}))
    (tmp_path / "given.json").write_text(json.dumps(fields | {"n_head": 16}))

    def heads(**options: Any) -> int:
        loaded = load_model(path, **options)
        model: Any = loaded.model
        assert loaded.model.config.n_head == model.transformer.h[0].attn.num_heads
        return int(model.transformer.h[0].attn.num_heads)

    assert heads(config_path=tmp_path / "given.json") == 16
    assert heads() == 2
    (path.parent / "config.json").unlink()
    assert heads() == 8
    torch.save({"state_dict": gpt2.state_dict(), "config": {"n_head": 4, "lr": 0.1}}, path)
    assert heads() == 4
    torch.save({"state_dict": gpt2.state_dict(), "config": {"lr": 0.1}}, path)
    with pytest.warns(PosttrainWarning, match="n_head=1 is assumed"):
        assert heads() == 1


def test_a_configuration_read_off_shapes(tmp_path: Path) -> None:
    made = tf.GPT2LMHeadModel(gpt2_config(n_embd=128, n_head=2, n_inner=96, n_layer=3)).half()
    torch.save({"module." + name: value for name, value in made.state_dict().items()}, tmp_path / "model.pth")
    with pytest.warns(PosttrainWarning, match="n_head=2 is assumed"):
        loaded = load_model(tmp_path / "model.pth")
    assert torch.equal(outputs(loaded.model), outputs(made))
    assert next(loaded.model.parameters()).dtype == torch.float16
    assert any("n_head=2 is assumed" in note and "config_path" in note for note in loaded.notes)
    odd = tf.GPT2LMHeadModel(gpt2_config(n_embd=40))
    torch.save(odd.state_dict(), tmp_path / "odd.pt")
    with pytest.raises(PosttrainError, match=r"heads cannot be read .*40 is no multiple .*config_path=, with n_head"):
        load_model(tmp_path / "odd.pt")
    torch.save(MADE["llama"]().state_dict(), tmp_path / "llama.pt")
    with pytest.raises(PosttrainError, match=r"llama.pt has no configuration: .*config_path"):
        load_model(tmp_path / "llama.pt")


class Trap:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return Path.mkdir, (self.folder,)


def test_no_code_of_a_file_is_run(gpt2: Any, tmp_path: Path) -> None:
    gpt2.config.save_pretrained(tmp_path)
    torch.save({"state_dict": gpt2.state_dict(), "config": Trap(tmp_path / "sprung")}, tmp_path / "model.pt")
    with pytest.raises(PosttrainError, match=r"could run code from the file\. Save model\.state_dict"):
        load_model(tmp_path / "model.pt")
    assert not (tmp_path / "sprung").exists()
    # code beside the weights, which a configuration asks to be run
    folder = tmp_path / "remote"
    gpt2.save_pretrained(folder)
    fields = json.loads((folder / "config.json").read_text())
    fields |= {"model_type": "gptt2", "auto_map": {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}}
    (folder / "config.json").write_text(json.dumps(fields))
    (folder / "own.py").write_text(f"import pathlib\npathlib.Path({str(tmp_path / 'sprung')!r}).mkdir()\n")
    with pytest.raises(PosttrainError, match=r"no model type 'gptt2' \(did you mean 'gpt2'\?\), and code that comes"):
        load_model(folder)
    assert not (tmp_path / "sprung").exists()


def test_damaged_files(gpt2: Any, tmp_path: Path) -> None:
    gpt2.save_pretrained(tmp_path / "m")
    torch.save(gpt2.state_dict(), tmp_path / "m" / "model.pt")
    for name in ("model.pt", "model.safetensors"):
        whole = (tmp_path / "m" / name).read_bytes()
        for size in (0, 7, len(whole) // 2, len(whole) - 1):
            (tmp_path / "m" / name).write_bytes(whole[:size])
            with pytest.raises(PosttrainError, match=rf"{name} is damaged or not .*: save it again, or take another"):
                load_model(tmp_path / "m" / name)
        (tmp_path / "m" / name).write_bytes(whole)
        load_model(tmp_path / "m" / name)
    gpt2.save_pretrained(tmp_path / "shards", max_shard_size="50KB")
    lost = sorted((tmp_path / "shards").glob("model-*"))[1]
    lost.unlink()
    with pytest.raises(PosttrainError, match=rf"lacks 1 of the \d+ files of its weights: first {lost.name}"):
        load_model(tmp_path / "shards")
    (tmp_path / "shards" / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(PosttrainError, match=r"index\.json is damaged"):
        load_model(tmp_path / "shards")


def test_configurations_that_do_not_fit(gpt2: Any, tmp_path: Path) -> None:
    gpt2.save_pretrained(tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    body = {name: value for name, value in fields.items() if name != "model_type"}
    for text, message in {
        json.dumps(fields | {"vocab_size": 70}): r"transformer\.wte\.weight is \(67, 64\) there and \(70, 64\) in the",
        json.dumps(fields | {"n_layer": 3}): r"lacks 'transformer\.h\.2\.ln_1\.weight' \(12 such\).*config_path",
        json.dumps(fields | {"n_layer": 1}): r"has 'transformer\.h\.1\.\S+', which the model does not \(12 such\)",
        json.dumps(fields | {"n_head": 5}): r"config\.json describes no GPT2LMHeadModel that can be made",
        json.dumps(fields | {"n_embd": "wide"}): r"config\.json (is no configuration of a gpt2|describes no)",
        json.dumps(fields | {"architectures": ["T5ForConditionalGeneration"]}): "T5ForConditionalGeneration is none of",
        json.dumps(fields | {"architectures": ["os"]}): "os is none of the models",
        json.dumps(fields | {"quantization_config": {"bits": 4}}): "quantised already",
        json.dumps({"vocab_size": 67}): "has no model_type: add it",
        '{"model_type": ': r"config\.json is not JSON",
        "[1]": "holds a list, where an object",
    }.items():
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(PosttrainError, match=message):
            load_model(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(body))
    loaded = load_model(tmp_path)
    assert any("taken for a GPT-2" in note for note in loaded.notes)
    assert torch.equal(outputs(loaded.model), outputs(gpt2))
    llama = MADE["llama"]()
    llama.save_pretrained(tmp_path / "llama")
    (tmp_path / "llama" / "config.json").write_text("{}")
    with pytest.raises(PosttrainError, match="has no model_type"):
        load_model(tmp_path / "llama")


def test_tied_weights_that_were_stored_apart(gpt2: Any, tmp_path: Path) -> None:
    apart = {name: value.clone() for name, value in gpt2.state_dict().items()}
    apart["lm_head.weight"] += 1
    torch.save(apart, tmp_path / "model.pt")
    gpt2.config.save_pretrained(tmp_path)
    with pytest.raises(PosttrainError, match=r"lm_head\.weight that differ .* set tie_word_embeddings to false"):
        load_model(tmp_path / "model.pt")
    (tmp_path / "free.json").write_text(json.dumps(gpt2.config.to_dict() | {"tie_word_embeddings": False}))
    free: Any = load_model(tmp_path / "model.pt", tmp_path / "free.json").model
    assert torch.equal(free.lm_head.weight, free.transformer.wte.weight + 1)


def test_what_is_no_model(gpt2: Any, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    gpt2.config.save_pretrained(tmp_path / "only_config")
    (tmp_path / "text.txt").write_text("no")
    (tmp_path / "runs" / "checkpoint-10").mkdir(parents=True)
    gpt2.config.save_pretrained(tmp_path / "loose")
    torch.save(gpt2.state_dict(), tmp_path / "loose" / "weights.pt")
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    torch.save([torch.ones(3)], tmp_path / "list.pt")
    refusals: list[tuple[Any, str]] = [
        (tmp_path / "empty", "is an empty folder: a model is a Hugging Face folder"),
        (tmp_path / "only_config", r"holds no weights of a model \(it has config.json"),
        (tmp_path / "text.txt", "ends in '.txt': a model is"),
        (tmp_path / "runs", "name one of its models, .*checkpoint-10"),
        (tmp_path / "loose", r"name the file, .*weights\.pt"),
        (tmp_path / "loose" / "weigths.pt", r"there is no model .*weigths\.pt; did you mean .*weights\.pt\?"),
        (tmp_path / "adapter", "holds an adapter, not a model: merge it"),
        (tmp_path / "list.pt", "holds no state dictionary"),
        ("someone/something", "no such file or folder here, and the hub is not asked because HF_HUB_OFFLINE"),
        (3, "a model is a module or a path, not a int"),
    ]
    for given, message in refusals:
        with pytest.raises(PosttrainError, match=message):
            load_model(given)
    with pytest.raises(PosttrainError, match=r"there is no configuration .*none\.json"):
        load_model(tmp_path / "loose" / "weights.pt", tmp_path / "none.json")
    with pytest.raises(PosttrainError, match="config_path= is for weights from a file"):
        load_model(gpt2, tmp_path / "loose" / "config.json")
    with pytest.raises(PosttrainError, match="device='abacus'"):
        load_model(gpt2, device="abacus")
    assert load_model(tmp_path / "loose" / "weights.pt", tmp_path / "loose").model.config is not None


def test_weights_that_are_worth_a_note_or_a_refusal(gpt2: Any, tmp_path: Path) -> None:
    gpt2.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["transformer.wte.weight"][3, :2] = torch.tensor([torch.nan, torch.inf])
    weights["transformer.ln_f.bias"][0] = -torch.inf
    weights["transformer.wpe.weight"] = weights["transformer.wpe.weight"].bfloat16()
    save_file(weights, tmp_path / "model.safetensors")
    loaded = load_model(tmp_path)
    assert loaded.notes == (
        f"{tmp_path} holds bfloat16, float32: all of it is computed in float32",
        f"{tmp_path} holds weights that are not finite: 1 of 64 in transformer.ln_f.bias, and 1 more such tensors",
    )
    weights["transformer.ln_f.weight"] = torch.ones(64, dtype=torch.int8)
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(PosttrainError, match=r"ln_f\.weight is stored as int8, which another package quantised"):
        load_model(tmp_path)


def test_packed_files(gpt2: Any, tmp_path: Path) -> None:
    bits = {unit.name: 4 for unit in find_units(gpt2)}
    save_packed(gpt2, bits, Scheme(), tmp_path / "packed.safetensors")
    gpt2.config.save_pretrained(tmp_path)
    loaded = load_model(tmp_path / "packed.safetensors")
    with quantised(gpt2, bits, Scheme()):
        assert torch.equal(outputs(loaded.model), outputs(gpt2))
    assert not torch.equal(outputs(loaded.model), outputs(gpt2))
    assert any("is packed" in note for note in loaded.notes)
    llama = MADE["llama_tied_bf16"]()
    save_packed(llama, {}, Scheme(), tmp_path / "l" / "packed.safetensors")
    llama.config.save_pretrained(tmp_path / "l")
    assert torch.equal(outputs(load_model(tmp_path / "l").model), outputs(llama))


def test_modules_are_taken_as_they_are(gpt2: Any) -> None:
    plain = nn.Sequential(nn.Linear(3, 2), nn.Dropout())
    loaded = load_model(plain)
    assert loaded.model is plain
    assert plain.training
    assert (loaded.tokenizer, loaded.origin) == (None, "Sequential")
    loaded = load_model(gpt2, tokenizer="bytes", device="cpu")
    assert loaded.model is gpt2
    assert loaded.model.config.n_embd == 64
    assert loaded.tokenizer("a") == {"input_ids": [97]}


def test_a_path_that_exists_is_loaded_without_the_hub_and_in_silence(
    gpt2: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from huggingface_hub import constants

    from posttrain.trained import trained_gpt2

    shutil.copytree(trained_gpt2(), tmp_path / "m")
    capfd.readouterr()
    asked: list[Any] = []

    def connect(*args: Any, **_: Any) -> None:
        asked.append(args)
        raise OSError("no network in this test")

    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.setattr(socket, "getaddrinfo", connect)
    level = logging.getLogger("transformers").level
    loaded = load_model(tmp_path / "m")
    assert loaded.tokenizer.decode(loaded.tokenizer("The break statement")["input_ids"]) == "The break statement"
    assert asked == []
    assert capfd.readouterr() == ("", "")
    assert logging.getLogger("transformers").level == level
    with pytest.raises(PosttrainError, match="the hub cannot be reached"):
        load_model("someone/something")
    assert asked != [], "the trap is one that a call of the hub falls into"
