"""Reading weights from every kind of source, without running code from a file."""

from __future__ import annotations

import os
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from learnscope.model.weights.checkpoint import CheckpointError, load_into, preserve_weights, read_weights


def make(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def same(a: nn.Module, b: nn.Module) -> bool:
    mine, other = a.state_dict(), b.state_dict()
    return mine.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in mine.items())


def stored(model: nn.Module, how: str, folder: Path) -> Any:
    state = model.state_dict()
    if how == "module":
        return model
    if how == "dict":
        return state
    if how == "nested dict":
        return {"model": state, "epoch": 3, "optimizer": {"state": {}}}
    path = folder / {"safetensors": "w.safetensors", "pt": "w.pt", "bin": "w.bin"}.get(how, "w.pth")
    if how == "safetensors":
        save_file(state, path)
    elif how == "old format":
        torch.save(state, path, _use_new_zipfile_serialization=False)
    elif how == "nested":
        torch.save({"epoch": 3, "state_dict": state, "optimizer": {"lr": 0.1}, "best": torch.tensor(0.3)}, path)
    elif how == "deeply nested":
        torch.save({"model": {"state_dict": state, "hyper": {"depth": 2}}}, path)
    else:
        torch.save(state, path)
    return str(path) if how == "pt" else path


HOW = ["module", "dict", "nested dict", "safetensors", "pt", "pth", "bin", "old format", "nested", "deeply nested"]


@pytest.mark.parametrize("how", HOW)
def test_every_form(how: str, tmp_path: Path) -> None:
    saved, target = make(1), make(2)
    saved(torch.randn(9, 3))  # batch norm's statistics, which are buffers
    assert not same(saved, target)
    places = [t.data_ptr() for t in (*target.parameters(), *target.buffers())]
    load_into(target, read_weights(stored(saved, how, tmp_path)), "it")
    assert same(saved, target)
    assert places == [t.data_ptr() for t in (*target.parameters(), *target.buffers())], "in place"


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "model.", "module._orig_mod.", "_orig_mod.module."])
def test_prefixes_of_wrappers(prefix: str, tmp_path: Path) -> None:
    saved, target = make(1), make(2)
    torch.save({prefix + name: value for name, value in saved.state_dict().items()}, tmp_path / "w.pt")
    load_into(target, read_weights(tmp_path / "w.pt"), "it")
    assert same(saved, target)


def test_into_a_compiled_model() -> None:
    saved, target = make(1), make(2)
    compiled: Any = torch.compile(target, backend="eager")
    load_into(compiled, read_weights(saved), "it")
    assert same(saved, target)
    load_into(compiled, read_weights(torch.compile(saved, backend="eager")), "it")
    assert same(saved, target)


def test_a_prefix_that_belongs_to_the_model_stays() -> None:
    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = nn.Linear(2, 2)

    saved, target = Inner(), Inner()
    load_into(target, saved.state_dict(), "it")
    assert same(saved, target)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
        self.head.weight = self.embedding.weight


@pytest.mark.parametrize("kept", ["embedding.weight", "head.weight", "both"])
def test_tied_weights_may_be_stored_once(kept: str, tmp_path: Path) -> None:
    saved, target = Tied(), Tied()
    state = {name: value for name, value in saved.state_dict().items() if kept in (name, "both")}
    path = tmp_path / "w.pt"
    torch.save(state, path)
    load_into(target, read_weights(path), "it")
    assert torch.equal(target.head.weight, saved.head.weight)
    assert target.head.weight is target.embedding.weight
    if kept != "both":
        save_file(state, tmp_path / "w.safetensors")
        again = Tied()
        load_into(again, read_weights(tmp_path / "w.safetensors"), "it")
        assert torch.equal(again.embedding.weight, saved.embedding.weight)


def test_weights_that_are_not_tied_are_missed(tmp_path: Path) -> None:
    target = Tied()
    target.head.weight = nn.Parameter(torch.zeros(5, 3))
    with pytest.raises(CheckpointError, match=r"it lacks 'head\.weight'"):
        load_into(target, {"embedding.weight": torch.zeros(5, 3)}, "the file")


class Malicious:
    """What a hostile file does when it is unpickled carelessly."""

    def __init__(self, sentinel: Path) -> None:
        self.sentinel = sentinel

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.sentinel}",)


@pytest.mark.parametrize("how", ["archive", "old format", "bare pickle"])
@pytest.mark.parametrize("ending", [".pt", ".pth", ".bin", ".ckpt"])
@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_a_hostile_file_is_not_executed(how: str, ending: str, tmp_path: Path) -> None:
    sentinel, path = tmp_path / "sentinel", tmp_path / f"evil{ending}"
    body = {"weight": torch.zeros(2), "more": Malicious(sentinel)}
    if how == "bare pickle":
        path.write_bytes(pickle.dumps(body))
    else:
        torch.save(body, path, _use_new_zipfile_serialization=how == "archive")
    match = r"not a torch file" if how == "bare pickle" else r"holds more than weights.*could run code.*safetensors"
    with pytest.raises(CheckpointError, match=match) as refusal:
        read_weights(path)
    assert not sentinel.exists()
    assert "weights_only" not in str(refusal.value), "torch advises to run the file's code: not here"
    torch.load(path, weights_only=False) if how != "bare pickle" else pickle.loads(path.read_bytes())
    assert sentinel.exists(), "the positive control: this file does execute when it is read carelessly"


def test_a_whole_pickled_model_is_refused_with_what_to_do(tmp_path: Path) -> None:
    torch.save(make(), tmp_path / "model.pt")
    with pytest.raises(CheckpointError, match=r"Save model\.state_dict\(\)"):
        read_weights(tmp_path / "model.pt")


@pytest.mark.parametrize("how", ["safetensors", "pt", "old format"])
@pytest.mark.parametrize("share", [0.0, 0.0001, 0.3, 0.9, 0.999])
def test_a_truncated_file_is_called_damaged(how: str, share: float, tmp_path: Path) -> None:
    path = Path(stored(nn.Linear(60, 60), how, tmp_path))
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(CheckpointError, match=rf"{re.escape(str(path))} is damaged or not a"):
        read_weights(path)


@pytest.mark.parametrize("ending", [".pt", ".safetensors"])
def test_other_bytes_are_called_damaged(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"w{ending}"
    for body in (
        os.urandom(3000),
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
        b"\x80\x02}q\x00."[:4],
    ):
        path.write_bytes(body)
        with pytest.raises(CheckpointError, match="is damaged or not a"):
            read_weights(path)


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no checkpoint file"):
        read_weights(tmp_path / "nowhere.pt")
    with pytest.raises(CheckpointError, match="there is no checkpoint file"):
        read_weights(tmp_path)
    (tmp_path / "w.pkl").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"ends in '\.pkl'; known are \.safetensors"):
        read_weights(tmp_path / "w.pkl")
    with pytest.raises(CheckpointError, match="not a list"):
        read_weights([1, 2])
    torch.save({"epoch": 3, "loss": 0.5}, tmp_path / "e.pt")
    with pytest.raises(
        CheckpointError, match="holds no state dictionary: looked for tensors at the top and under state_dict"
    ):
        read_weights(tmp_path / "e.pt")
    with pytest.raises(CheckpointError, match="the dictionary holds no state dictionary"):
        read_weights({})


def test_what_does_not_fit_is_named_and_nothing_is_loaded() -> None:
    target = make(2)
    before = {name: value.clone() for name, value in target.state_dict().items()}
    good = make(1).state_dict()

    def refused(weights: dict[str, Tensor], match: str) -> None:
        with pytest.raises(CheckpointError, match=match):
            load_into(target, weights, "ckpt.pt")
        assert all(torch.equal(value, before[name]) for name, value in target.state_dict().items())

    refused({**good, "2.weight": torch.zeros(2, 5)}, r"ckpt\.pt does not fit: 2\.weight is \(2, 5\) there and \(2, 4\)")
    refused({name: v for name, v in good.items() if name != "0.bias"}, r"lacks '0\.bias' \(1 such\)")
    refused({**good, "3.weight": torch.zeros(1)}, r"has '3\.weight', which the model does not \(1 such\)")
    refused({"other": torch.zeros(1)}, r"lacks '0\.weight' \(9 such\) and has 'other'")


@pytest.mark.parametrize("fails", [False, True])
def test_the_callers_weights_are_preserved_bit_for_bit(fails: bool) -> None:
    model = make(1)
    model.register_buffer("loose", torch.tensor([float("nan"), -0.0]), persistent=False)
    before = [
        t.detach().clone().contiguous().view(-1).view(torch.uint8) for t in (*model.parameters(), *model.buffers())
    ]

    def disturb() -> None:
        with preserve_weights(model):
            load_into(model, {**make(2).state_dict()}, "it")
            model.loose.zero_()
            if fails:
                raise KeyboardInterrupt

    if fails:
        with pytest.raises(KeyboardInterrupt):
            disturb()
    else:
        disturb()
    after = [t.detach().contiguous().view(-1).view(torch.uint8) for t in (*model.parameters(), *model.buffers())]
    assert all(map(torch.equal, before, after))
